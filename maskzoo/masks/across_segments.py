"""Beyond one's own document, image or graph."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side


@register_mask("across_segments")
@dataclass(frozen=True)
class AcrossSegments(Mask):
    """Every real key of any segment: naming it lifts the boundary that every plan otherwise draws between segments.

    visible(i, j): segment(i) ≥ 0 and segment(j) ≥ 0. `full` stays inside the segment, `across_segments` does not, and
    `causal & across_segments` compares positions of different segments too. `index` still counts from the start of each
    segment: for the order of the whole row, state it (`positions.with_fields(index=…)`).
    """

    crosses_segments: ClassVar[bool] = True

    def visible(self, q: Side, k: Side) -> Tensor:
        return (q.segment >= 0) & (k.segment >= 0)
