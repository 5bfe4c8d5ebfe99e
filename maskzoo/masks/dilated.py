"""A window with gaps."""

from dataclasses import dataclass

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side, check_integer


@register_mask("dilated")
@dataclass(frozen=True)
class Dilated(Mask):
    """Every `step`-th key back from the query, `size` of them, itself included.

    visible(i, j): i − j ∈ {0, step, 2·step, …, (size − 1)·step}, by index. `dilated(size, 1)` is `window(size)`.

    Source: the dilated sliding window (its causal half) of Beltagy et al. 2020, *Longformer*, section 3.1.

    Args:
        size: how many keys, at least 1.
        step: the distance between them, at least 1.
    """

    size: int
    step: int

    def __post_init__(self) -> None:
        check_integer(self, "size", minimum=1)
        check_integer(self, "step", minimum=1)

    def visible(self, q: Side, k: Side) -> Tensor:
        back = q.index - k.index
        return (back >= 0) & (back < self.size * self.step) & (back % self.step == 0)
