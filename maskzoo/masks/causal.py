"""The past and the present."""

from dataclasses import dataclass

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side


@register_mask("causal")
@dataclass(frozen=True)
class Causal(Mask):
    """Keys at the query's own position and before it."""

    def visible(self, q: Side, k: Side) -> Tensor:
        return q.index >= k.index
