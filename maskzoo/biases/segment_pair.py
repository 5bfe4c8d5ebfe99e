"""Learned offsets between kinds of positions."""

import torch
from torch import Tensor, nn

from maskzoo.biases.base import OffsetBias, picked, register_bias
from maskzoo.positions import PADDING
from maskzoo.provider import Side, check_integer


@register_bias("segment_pair")
class SegmentPair(OffsetBias):
    """A learned offset for each pair of kinds: of the query's part of the sequence, and the key's.

    score(h, i, j) += weight[h, kind(i) · kinds + kind(j)], the weights starting at zero. The kind is a field of the
    positions: speaker and listener, question and passage, class token and patch.

    Args:
        kinds: how many kinds there are.
        field: the name of the field, whose values are 0 … kinds − 1 (any in padding).
    """

    def __init__(self, kinds: int, field: str = "kind", *, heads: int) -> None:
        super().__init__(heads)
        self.kinds, self.field = kinds, field
        check_integer(self, "kinds", minimum=1, maximum=2**10)
        if not isinstance(field, str) or not field.isidentifier():
            raise ValueError(f"segment_pair(field={field!r}): field must be the name of a field of the positions")
        self.weight = nn.Parameter(torch.zeros(heads, kinds**2))

    def q_code(self, q: Side) -> Tensor:
        return self._kind(q) * self.kinds

    def k_code(self, k: Side) -> Tensor:
        return -self._kind(k)

    def _kind(self, at: Side) -> Tensor:
        kind = getattr(at, self.field)
        kind = torch.where(at.segment == PADDING, torch.zeros_like(kind), kind)
        wrong = (kind < 0) | (kind >= self.kinds)
        if bool(wrong.any()):
            sequence, place = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"{self!r}: the field {self.field!r} must lie from 0 to {self.kinds - 1}; it is "
                f"{int(kind[sequence, place])} at place {place} of sequence {sequence}"
            )
        return kind

    def table(self, differences: Tensor) -> Tensor:
        return picked(self.weight, differences)
