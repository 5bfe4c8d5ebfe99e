"""What a picture shows, before it becomes characters or pixels."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """One head: visible bool [Tq, Tk] and, in a picture of weights or of a bias, those, float [Tq, Tk]."""

    title: str
    visible: np.ndarray
    weights: np.ndarray | None = None
    offsets: np.ndarray | None = None


@dataclass(frozen=True)
class Cells:
    """A panel in cells of several queries × several keys, all arrays of shape [rows, columns].

    Attributes:
        shade: 0 to 1, the share of pairs that are visible, or the highest weight in terms of the picture's highest, or
            where the mean offset stands between the picture's lowest and highest.
        hidden: no pair is visible.
        padded: every pair has padding on one side.
        leak: a hidden pair has weight.
    """

    shade: np.ndarray
    hidden: np.ndarray
    padded: np.ndarray
    leak: np.ndarray


@dataclass(frozen=True, repr=False)
class Picture:
    """A drawn rule: `print(picture)`, `picture.save("rule.png")`, or the last line of a notebook cell.

    Attributes:
        rule: the whole effective rule.
        size: lengths and density, in words.
        panels: one per head, or a single one.
        q_segment, k_segment: segment of each query [Tq] and key [Tk], −1 for padding.
        labels, k_labels: a text for each query and key; None: its place in the row.
    """

    rule: str
    size: str
    panels: Sequence[Panel]
    q_segment: np.ndarray
    k_segment: np.ndarray
    labels: Sequence[str] | None = None
    k_labels: Sequence[str] | None = None

    def cells(self, panel: Panel, down: int, right: int) -> Cells:
        """The panel in cells of down × right pairs; those at the far edges may hold fewer."""
        rows, columns = np.arange(0, len(self.q_segment), down), np.arange(0, len(self.k_segment), right)
        seen = np.stack([np.count_nonzero(panel.visible[row : row + down], axis=0) for row in rows])
        seen = np.add.reduceat(seen, columns, axis=1)
        q_padded = np.logical_and.reduceat(self.q_segment < 0, rows)
        k_padded = np.logical_and.reduceat(self.k_segment < 0, columns)
        padded = q_padded[:, None] | k_padded
        if panel.offsets is not None:
            total = np.where(panel.visible, panel.offsets, 0.0)
            total = np.add.reduceat(np.add.reduceat(total, rows, axis=0), columns, axis=1)
            low, high = self.offset_range
            shade = (total / np.maximum(seen, 1) - low) / (high - low or 1.0)
            return Cells(shade.clip(0, 1), seen == 0, padded, leak=np.zeros_like(padded))
        if panel.weights is None:
            pairs = np.diff(rows, append=len(self.q_segment))[:, None] * np.diff(columns, append=len(self.k_segment))
            return Cells(seen / pairs, seen == 0, padded, leak=np.zeros_like(padded))
        peak = max(float(own.weights.max()) for own in self.panels if own.weights is not None)
        highest = np.maximum.reduceat(np.maximum.reduceat(panel.weights, rows, axis=0), columns, axis=1)
        leak = (panel.weights != 0) & ~panel.visible
        leak = np.logical_or.reduceat(np.logical_or.reduceat(leak, rows, axis=0), columns, axis=1)
        return Cells(highest.clip(0) / (peak if peak > 0 else 1.0), seen == 0, padded, leak)

    @property
    def offset_range(self) -> tuple[float, float]:
        """Lowest and highest offset of a visible pair in any panel of a bias; (0, 0) if there is none."""
        shown = [panel.offsets[panel.visible] for panel in self.panels if panel.offsets is not None]
        shown = [offsets for offsets in shown if offsets.size]
        return (min(float(x.min()) for x in shown), max(float(x.max()) for x in shown)) if shown else (0.0, 0.0)

    @property
    def q_starts(self) -> list[int]:
        """Queries at which a new segment, or padding, begins."""
        return (np.flatnonzero(np.diff(self.q_segment)) + 1).tolist()

    @property
    def k_starts(self) -> list[int]:
        """Keys at which a new segment, or padding, begins."""
        return (np.flatnonzero(np.diff(self.k_segment)) + 1).tolist()

    def text(self, width: int | None = None, *, ascii_only: bool | None = None) -> str:
        """The picture in characters.

        Args:
            width: characters in a line; the terminal's when not given.
            ascii_only: keep to ASCII; when not given, where standard output can print no more.
        """
        from maskzoo.drawing.terminal import characters, prints_blocks

        width = shutil.get_terminal_size().columns if width is None else width
        ascii_only = not prints_blocks(sys.stdout.encoding) if ascii_only is None else ascii_only
        return characters(self, width, ascii_only)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def figure(self) -> Figure:
        """The picture as a matplotlib figure of its own, outside pyplot."""
        from maskzoo.drawing.figure import figure

        return figure(self)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure().savefig(buffer, format="png")
        return buffer.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write a PNG or SVG file, by the ending of `path`. It appears whole or not at all.

        Returns:
            the path.

        Raises:
            ValueError: another ending.
            OSError: the folder does not exist or cannot be written.
        """
        path = Path(path)
        kind = path.suffix.lower()
        if kind not in (".png", ".svg"):
            raise ValueError(f"a picture is saved as .png or .svg, by the ending of its name; got {str(path)!r}")
        buffer = io.BytesIO()
        self.figure().savefig(buffer, format=kind[1:], metadata={"Date": None} if kind == ".svg" else None)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            aside.write_bytes(buffer.getvalue())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        return path
