"""Pictures in characters."""

from __future__ import annotations

import math
import textwrap

import numpy as np

from maskzoo.drawing.picture import Panel, Picture
from maskzoo.drawing.ticks import tick_step, tick_text

SHADES = "·░▒▓█"
HALVES = "·▄▀█"
ASCII_SHADES = ".:+*#"
_IN_ASCII = str.maketrans({"×": "x", "│": "|", "─": "-", "…": "~"})


def prints_blocks(encoding: str | None) -> bool:
    """Whether text of this encoding can hold the characters of a picture."""
    try:
        f"{SHADES}{HALVES}│─×…".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def characters(picture: Picture, width: int, ascii_only: bool) -> str:
    """The picture in lines of at most `width` characters (30 at the least)."""
    width = max(width, 30)
    lines = textwrap.wrap(picture.rule, width) + textwrap.wrap(picture.size, width)
    for panel in picture.panels:
        lines += ["", *textwrap.wrap(panel.title, width), *_panel(picture, panel, width, ascii_only)]
    text = "\n".join(line.rstrip() for line in lines)
    return text.translate(_IN_ASCII).encode("ascii", "replace").decode() if ascii_only else text


def _panel(picture: Picture, panel: Panel, width: int, ascii_only: bool) -> list[str]:
    queries, keys = panel.visible.shape
    names = [tick_text(label)[:12] for label in picture.labels or map(str, range(queries))]
    margin = max(len("query"), *map(len, names)) + 1
    room = width - margin
    cut = 2 * keys + len(picture.k_starts) <= room
    right = 1 if cut else math.ceil(keys / room)
    # A character is twice as high as wide: a pair is two of them, or half of one.
    if cut:
        down, glyphs = 1, np.char.multiply(_shades(picture, panel, 1, 1, ascii_only), 2)
    elif right == 1 and panel.weights is None and panel.offsets is None and not ascii_only:
        down, glyphs = 2, _halves(picture, panel)
    else:
        down = 1 if right == 1 and ascii_only else 2 * right
        glyphs = _shades(picture, panel, down, right, ascii_only)
    size = 2 if cut else 1
    q_cuts, k_cuts = (picture.q_starts, picture.k_starts) if cut else ([], [])
    step = down * tick_step(math.ceil(keys / down), max(1, size * keys // right // (len(str(keys)) + 2)))
    header = ""
    for key in range(0, keys, step):
        header = header.ljust(key // right * size + sum(start <= key for start in k_cuts)) + str(key)
    if len(header) > room:
        header = header[: -len(str(key))]
    lines = ["query".ljust(margin) + "key", " " * margin + header]
    every = 1 if picture.labels and down == 1 else step
    for line, row in enumerate(np.insert(glyphs, k_cuts, "│", axis=1)):
        query = line * down
        if query in q_cuts:
            lines.append(" " * margin + "─" * len("".join(row)))
        lines.append(f"{names[query] if query % every == 0 else '':>{margin - 1}} " + "".join(row))
    if down * right > 2:
        more = "more is visible" if panel.offsets is None else "the offset is higher"
        lines += textwrap.wrap(f"each character: {down} queries × {right} keys, darker where {more}", width)
    return lines


def _shades(picture: Picture, panel: Panel, down: int, right: int, ascii_only: bool) -> np.ndarray:
    """One character a cell, darker for more."""
    cells = picture.cells(panel, down, right)
    shades = np.array(list(ASCII_SHADES if ascii_only else SHADES))
    # The lowest offset is still one that is seen.
    level = np.ceil(cells.shade * 4) if panel.offsets is None else 1 + np.rint(cells.shade * 3)
    glyphs = shades[level.astype(int)]
    glyphs[cells.hidden] = shades[0]
    glyphs[cells.padded] = " "
    glyphs[cells.leak] = "!"
    return glyphs


def _halves(picture: Picture, panel: Panel) -> np.ndarray:
    """One character for two queries, each its upper or lower half."""
    visible = np.pad(panel.visible, ((0, len(panel.visible) % 2), (0, 0))).astype(int)
    glyphs = np.array(list(HALVES))[2 * visible[::2] + visible[1::2]]
    glyphs[picture.cells(panel, 2, 1).padded] = " "
    return glyphs
