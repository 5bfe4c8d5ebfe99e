"""Real keys."""

from dataclasses import dataclass

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side


@register_mask("padding")
@dataclass(frozen=True)
class Padding(Mask):
    """Keys that are no padding.

    visible(i, j): segment(j) ≥ 0. Every plan adds this rule by itself, and gives padding queries nothing to see;
    written out, it changes nothing.
    """

    def visible(self, q: Side, k: Side) -> Tensor:
        return k.segment >= 0
