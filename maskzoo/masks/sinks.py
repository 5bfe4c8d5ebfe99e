"""The first positions."""

from dataclasses import dataclass

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side, check_integer


@register_mask("sinks")
@dataclass(frozen=True)
class Sinks(Mask):
    """The first `size` keys of the segment, for every query: `causal & (window(256) | sinks(4))`.

    visible(i, j): index(j) < size. This does not imply `causal`: the first queries would see the sinks after them.

    Source: attention sinks, Xiao et al. 2023, *Efficient Streaming Language Models with Attention Sinks*, section 3.

    Args:
        size: how many keys, at least 1.
    """

    size: int

    def __post_init__(self) -> None:
        check_integer(self, "size", minimum=1)

    def visible(self, q: Side, k: Side) -> Tensor:
        return k.index < self.size
