"""A list of pairs that the user brings."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskzoo.masks.base import register_mask
from maskzoo.masks.brought import Brought
from maskzoo.masks.listed import Listed
from maskzoo.positions import Positions


@register_mask("pairs")
@dataclass(frozen=True, eq=False)
class Pairs(Brought, Listed):
    """Pairs brought as a list of (query, key) places; made in Python, not in text.

    visible(i, j): (i, j) stands in the list, by place in the row (padding counts). A pair that stands there twice is
    visible once. Time and memory follow the number of pairs: no array over all pairs is made.

    Args:
        places: integers [2, E], query places above key places, for every sequence of the batch; or [3, E] with the
            sequence of each pair, its row of the batch, on top.

    Raises:
        ValueError: no integer tensor of two or three rows; when planned, a place that does not exist.
    """

    places: Tensor

    def __post_init__(self) -> None:
        places = self.places
        if not isinstance(places, Tensor) or places.dim() != 2 or len(places) not in (2, 3):
            got = list(places.shape) if isinstance(places, Tensor) else type(places).__name__
            raise ValueError(
                f"pairs takes a tensor [2, E] (query places, key places) or [3, E] (sequences above them), got {got}"
            )
        if places.dtype == torch.bool or places.dtype.is_floating_point or places.dtype.is_complex:
            raise ValueError(f"pairs takes integer places, got {places.dtype}")
        object.__setattr__(self, "places", places.detach().to(torch.int64).clone())

    @property
    def contents(self) -> Tensor:
        return self.places

    @property
    def needs_sequence(self) -> bool:
        return len(self.places) == 3

    def pairs(self, q: Positions, k: Positions) -> Tensor:
        places = self.places.to(q.device)
        if len(places) == 3:
            return places
        batch = max(q.batch, k.batch)
        sequence = torch.arange(batch, device=q.device).repeat_interleave(places.shape[1])
        return torch.cat([sequence[None], places.repeat(1, batch)])

    def text(self) -> str:
        return f"pairs({list(self.places.shape)})"
