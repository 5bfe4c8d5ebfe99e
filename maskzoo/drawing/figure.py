"""Pictures in matplotlib, without pyplot and its global state."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from maskzoo.drawing.picture import Panel, Picture
from maskzoo.drawing.ticks import tick_step, tick_text

MOST_CELLS = 256
"""Cells along a side; where there are more positions, a cell stands for several."""

VISIBLE, FAINT, HIDDEN, PADDED, LEAK, BOUNDARY = "#1f4e79", "#ffffff", "#ececec", "#bdbdbd", "#d62728", "#e07b00"
_INK = LinearSegmentedColormap.from_list("maskzoo", [FAINT, VISIBLE])


def figure(picture: Picture) -> Figure:
    """Panels side by side, at most four in a row: queries down, keys to the right."""
    columns = min(len(picture.panels), 4)
    rows = math.ceil(len(picture.panels) / columns)
    side = 5.0 if columns == 1 else 3.4
    size = (columns * side + 0.8, rows * (side * _aspect(picture) + 0.5) + 1.1)
    drawn = Figure(figsize=size, dpi=150, layout="constrained")
    title = "\n".join([*textwrap.wrap(picture.rule, 28 * columns + 36), picture.size])
    drawn.suptitle(title, fontsize=10, parse_math=False)
    grid = drawn.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(picture.panels) :]:
        axes.set_axis_off()
    for panel, axes in zip(picture.panels, grid, strict=False):
        _paint(picture, panel, axes)
    _add_key(picture, drawn, list(grid))
    return drawn


def _aspect(picture: Picture) -> float:
    """Height over width: square pairs, unless that would be a very flat or very tall panel."""
    return min(max(len(picture.q_segment) / len(picture.k_segment), 0.25), 2.0)


def _paint(picture: Picture, panel: Panel, axes: Axes) -> None:
    queries, keys = panel.visible.shape
    down, right = math.ceil(queries / MOST_CELLS), math.ceil(keys / MOST_CELLS)
    cells = picture.cells(panel, down, right)
    colours = _INK(cells.shade)[..., :3]
    for where, colour in ((cells.hidden, HIDDEN), (cells.padded, PADDED), (cells.leak, LEAK)):
        colours[where] = to_rgb(colour)
    height, width = len(colours) * down, colours.shape[1] * right
    axes.imshow(colours, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest", aspect="auto")
    axes.set(xlim=(-0.5, keys - 0.5), ylim=(queries - 0.5, -0.5), ylabel="query")
    axes.set_xlabel("key" if down == right == 1 else f"key (a cell is {down} queries × {right} keys)")
    axes.set_box_aspect(_aspect(picture))
    axes.set_title(textwrap.shorten(panel.title, 44, placeholder="…"), fontsize=9, parse_math=False)
    if max(queries, keys) <= 48:
        axes.hlines(np.arange(queries - 1) + 0.5, -0.5, keys - 0.5, color="white", linewidth=0.5)
        axes.vlines(np.arange(keys - 1) + 0.5, -0.5, queries - 0.5, color="white", linewidth=0.5)
    axes.hlines(np.array(picture.q_starts) - 0.5, -0.5, keys - 0.5, color=BOUNDARY, linewidth=1)
    axes.vlines(np.array(picture.k_starts) - 0.5, -0.5, queries - 0.5, color=BOUNDARY, linewidth=1)
    _set_ticks(axes.xaxis, keys, picture.k_labels, rotation=90)
    _set_ticks(axes.yaxis, queries, picture.labels, rotation=0)


def _set_ticks(axis: Axis, length: int, labels: Sequence[str] | None, rotation: int) -> None:
    places = range(0, length, tick_step(length, 10 if labels is None else 40))
    if labels is None:
        axis.set_ticks(places, [str(place) for place in places], fontsize=8)
    else:
        texts = [tick_text(labels[place])[:14] for place in places]
        axis.set_ticks(places, texts, fontsize=7, rotation=rotation, family="monospace", parse_math=False)


def _add_key(picture: Picture, drawn: Figure, grid: list[Axes]) -> None:
    """What the colours mean: a scale for weights, and the colours that occur."""
    weights = [panel.weights for panel in picture.panels if panel.weights is not None]
    biased = any(panel.offsets is not None for panel in picture.panels)
    if weights or biased:
        low, high = picture.offset_range if biased else (0.0, max(float(own.max()) for own in weights))
        scale = ScalarMappable(cmap=_INK)
        scale.set_clim(low, high if high > low else low + 1.0)
        label = "offset of the score" if biased else "attention weight"
        drawn.colorbar(scale, ax=grid, label=label, shrink=0.7, aspect=30)
    meanings = [] if weights or biased else [("visible", VISIBLE)]
    meanings += [("hidden", HIDDEN)]
    if (picture.q_segment < 0).any() or (picture.k_segment < 0).any():
        meanings += [("padding", PADDED)]
    if any(((panel.weights != 0) & ~panel.visible).any() for panel in picture.panels if panel.weights is not None):
        meanings += [("leak: hidden, yet with weight", LEAK)]
    patches = [Patch(facecolor=colour, edgecolor="grey", linewidth=0.5, label=name) for name, colour in meanings]
    drawn.legend(handles=patches, loc="outside lower center", ncols=len(patches), fontsize=8, frameon=False)
