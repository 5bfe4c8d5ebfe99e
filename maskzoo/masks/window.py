"""The nearest positions."""

from dataclasses import dataclass

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side, check_integer


@register_mask("window")
@dataclass(frozen=True)
class Window(Mask):
    """Keys nearer than `size`: the query's own position and size − 1 before it, or also as many after it.

    visible(i, j): 0 ≤ i − j < size, or |i − j| < size with both sides; by index.

    Source: sliding-window attention, Beltagy et al. 2020, *Longformer*, section 3.1. The count includes the query.

    Args:
        size: how many positions a causal window sees, itself included.
        both_sides: also look ahead, to distance size − 1.
    """

    size: int
    both_sides: bool = False

    def __post_init__(self) -> None:
        check_integer(self, "size", minimum=1)
        if not isinstance(self.both_sides, bool):
            raise ValueError(f"window(both_sides={self.both_sides!r}): both_sides must be True or False")

    def visible(self, q: Side, k: Side) -> Tensor:
        back = q.index - k.index
        return (back < self.size) & (back > -self.size if self.both_sides else back >= 0)
