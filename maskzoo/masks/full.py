"""Everything."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side


@register_mask("full")
@dataclass(frozen=True)
class Full(Mask):
    """Every key of the query's own segment."""

    def visible(self, q: Side, k: Side) -> Tensor:
        return torch.ones_like(q.slot + k.slot, dtype=torch.bool)
