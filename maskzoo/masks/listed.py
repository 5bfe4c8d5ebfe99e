"""`Listed`: a rule that is a list of pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from maskzoo.masks.base import Mask
from maskzoo.provider import Side

if TYPE_CHECKING:
    from maskzoo.positions import Positions


class Listed(Mask):
    """A rule that names its visible pairs one by one, as the edges of a graph do, instead of testing every pair.

    A provider is a frozen dataclass that writes `pairs`. It meets the rest of the algebra like any mask, and no array
    over all pairs is made for it.
    """

    @property
    def needs_sequence(self) -> bool:
        return True

    def pairs(self, q: Positions, k: Positions) -> Tensor:
        """The visible pairs: int64 [3, E] of sequence (row of the batch), place of the query and place of the key.

        In any order; a pair may stand there twice. Where the positions have batch 1, the sequence is 0.
        """
        raise TypeError(f"{type(self).__name__} is a list of pairs without any: write its pairs(self, q, k)")

    def visible(self, q: Side, k: Side) -> Tensor:
        return q.listed(self, k)  # type: ignore[operator]  # what a side answers only to lists
