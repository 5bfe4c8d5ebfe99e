"""Another sequence."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side


@register_mask("cross")
@dataclass(frozen=True)
class Cross(Mask):
    """Every real key of another sequence, as a decoder sees its source (give the source as `k_at`).

    visible(i, j): segment(i) = segment(j) ≥ 0: where several pairs of sequences are packed, each target sees the source
    that has its own segment number. Queries and keys both count from the start.

    Source: encoder–decoder attention, Vaswani et al. 2017, *Attention Is All You Need*, section 3.2.3.
    """

    between_sequences: ClassVar[bool] = True

    def visible(self, q: Side, k: Side) -> Tensor:
        return (q.segment == k.segment) & (k.segment >= 0)
