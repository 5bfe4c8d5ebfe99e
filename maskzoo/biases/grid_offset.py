"""Learned offsets for places of a grid."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maskzoo.biases.base import OffsetBias, picked, register_bias
from maskzoo.provider import Side, check_integer


@register_bias("grid_offset")
class GridOffset(OffsetBias):
    """A learned offset for each pair of row and column differences in an image, or with times in a video.

    Reads the fields `row` and `col`, and `time` where `times` is given. The weights start at zero and are laid out as
    in Swin: [H, 2·rows − 1, 2·cols − 1], query − key, flattened; times stand before rows. Differences of more than the
    size of the grid get those of its edge.

    Args:
        rows, cols: the size of the grid, in patches.
        times: the number of frames, for a grid of three dimensions.

    Source: Liu et al., "Swin Transformer", ICCV 2021, section 3.2; Liu et al., "Video Swin Transformer", CVPR 2022.
    """

    def __init__(self, rows: int, cols: int, times: int | None = None, *, heads: int) -> None:
        super().__init__(heads)
        self.rows, self.cols, self.times = rows, cols, times
        sizes = {"rows": rows, "cols": cols} if times is None else {"times": times, "rows": rows, "cols": cols}
        for name in sizes:
            check_integer(self, name, minimum=1, maximum=2**10)
        self.sizes = tuple(sizes.values())
        entries = 1
        for size in self.sizes:
            entries *= 2 * size - 1
        self.weight = nn.Parameter(torch.zeros(heads, entries))

    def code(self, at: Side) -> Tensor:
        place = (at.row, at.col) if self.times is None else (at.time, at.row, at.col)
        return torch.stack(place, dim=-1)

    def table(self, differences: Tensor) -> Tensor:
        column = torch.zeros_like(differences[:, 0])
        for size, difference in zip(self.sizes, differences.unbind(1), strict=True):
            column = column * (2 * size - 1) + difference.clamp(1 - size, size - 1) + size - 1
        return picked(self.weight, column)
