"""One's own document, image or graph."""

from dataclasses import dataclass

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side


@register_mask("same_segment")
@dataclass(frozen=True)
class SameSegment(Mask):
    """Keys of the query's own segment: its document, image or graph.

    visible(i, j): segment(i) = segment(j). Every plan adds this rule by itself, unless the rule names a provider that
    crosses segments (`across_segments`).
    """

    def visible(self, q: Side, k: Side) -> Tensor:
        return q.segment == k.segment
