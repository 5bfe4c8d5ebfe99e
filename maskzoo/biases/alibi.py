"""Attention with linear biases."""

import math

import torch
from torch import Tensor

from maskzoo.biases.base import OffsetBias, register_bias
from maskzoo.provider import Side


def alibi_slopes(heads: int) -> Tensor:
    """The geometric slopes of each head, float32 [H].

    Source: Press et al. 2022, section 3; for H that is no power of two, the rule of the authors' code.
    """
    power = 2 ** math.floor(math.log2(heads))
    exact = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
    return torch.tensor(exact + between)


@register_bias("alibi")
class Alibi(OffsetBias):
    """A penalty that grows linearly with distance, at a fixed slope per head.

    score(h, i, j) += −slope(h) · |i − j|: the paper's form under a causal mask, where only the past is left, and the
    symmetric form where both directions are visible.
    Source: Press, Smith and Lewis, "Train Short, Test Long", ICLR 2022.
    """

    slopes: Tensor

    def __init__(self, *, heads: int) -> None:
        super().__init__(heads)
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def code(self, at: Side) -> Tensor:
        return at.index

    def table(self, differences: Tensor) -> Tensor:
        return -self.slopes[:, None] * differences.abs()
