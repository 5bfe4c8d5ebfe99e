"""Learned offsets for relative positions, the same beyond a reach."""

import torch
from torch import Tensor, nn

from maskzoo.biases.base import OffsetBias, picked, register_bias
from maskzoo.provider import Side, check_integer


@register_bias("clipped_relative")
class ClippedRelative(OffsetBias):
    """A learned offset for each relative position; all beyond the reach share the outermost one.

    score(h, i, j) += weight[h, clip(j − i, −reach, reach) + reach], the weights starting at zero.

    Args:
        reach: k of the paper, the farthest relative position with an offset of its own.

    Source: Shaw, Uszkoreit and Vaswani, "Self-Attention with Relative Position Representations", NAACL 2018,
    section 3.2; there each clipped position has a vector that is multiplied with the query, here a number per head.
    """

    def __init__(self, reach: int, *, heads: int) -> None:
        super().__init__(heads)
        self.reach = reach
        check_integer(self, "reach", minimum=0, maximum=2**20)
        self.weight = nn.Parameter(torch.zeros(heads, 2 * reach + 1))

    def code(self, at: Side) -> Tensor:
        return at.index

    def table(self, differences: Tensor) -> Tensor:
        return picked(self.weight, (-differences).clamp(-self.reach, self.reach) + self.reach)
