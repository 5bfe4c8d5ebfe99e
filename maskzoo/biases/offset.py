"""Learned offsets for near positions."""

import torch
from torch import Tensor, nn

from maskzoo.biases.base import OffsetBias, picked, register_bias
from maskzoo.provider import Side, check_integer


@register_bias("offset")
class Offset(OffsetBias):
    """A learned offset for each relative position from `before` to `after`; nothing is added beyond.

    score(h, i, j) += weight[h, j − i + before] where −before ≤ j − i ≤ after, and 0 elsewhere; the weights start at
    zero. (`clipped_relative` goes on with its outermost weights instead.)

    Args:
        before: the farthest key before the query that has a weight.
        after: the farthest key after the query that has a weight.
    """

    def __init__(self, before: int, after: int = 0, *, heads: int) -> None:
        super().__init__(heads)
        self.before, self.after = before, after
        check_integer(self, "before", minimum=0, maximum=2**20)
        check_integer(self, "after", minimum=0, maximum=2**20)
        self.weight = nn.Parameter(torch.zeros(heads, before + after + 1))

    def code(self, at: Side) -> Tensor:
        return at.index

    def table(self, differences: Tensor) -> Tensor:
        ahead = -differences
        near = (ahead >= -self.before) & (ahead <= self.after)
        return picked(self.weight, ahead.clamp(-self.before, self.after) + self.before) * near
