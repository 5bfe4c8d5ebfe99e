"""Causal by blocks."""

from dataclasses import dataclass

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side, check_integer


@register_mask("block")
@dataclass(frozen=True)
class Block(Mask):
    """Block-causal: the whole of the query's own block of `size` positions, and all blocks before it.

    visible(i, j): ⌊j / size⌋ ≤ ⌊i / size⌋, by index. `block(1)` is `causal`.

    Source: Arriola et al. 2025, *Block Diffusion*, section 3.1; frame-causal attention of video models.

    Args:
        size: positions in a block, at least 1.
    """

    size: int

    def __post_init__(self) -> None:
        check_integer(self, "size", minimum=1)

    def visible(self, q: Side, k: Side) -> Tensor:
        return q.index // self.size >= k.index // self.size
