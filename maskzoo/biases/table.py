"""A relation between positions that the user brings, with a learned table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maskzoo.biases.base import Bias, register_bias
from maskzoo.provider import Side, check_integer


@register_bias("table")
class Table(Bias):
    """A learned offset for each value of a relation brought as an integer tensor; made in Python, not in text.

    score(h, i, j) += weight[h, index[…, i, j]], by place in the row (padding counts); the weights start at zero.

    Args:
        relation: integers [Tq, Tk] or [B, Tq, Tk], from 0 to entries − 1. It is copied, and moves with the module.
        entries: N, how many values there are; the highest that occurs + 1 when not given.
    """

    relation: Tensor

    def __init__(self, relation: Tensor, entries: int | None = None, *, heads: int) -> None:
        super().__init__(heads)
        if not isinstance(relation, Tensor):
            raise ValueError(
                f"table takes an integer tensor, got {type(relation).__name__}: it is made in Python, "
                "maskzoo.biases.Table(tensor, heads=H), and not in text"
            )
        if relation.dtype == torch.bool or relation.dtype.is_floating_point or relation.dtype.is_complex:
            raise ValueError(f"table takes an integer tensor, got {relation.dtype}")
        if relation.dim() not in (2, 3) or not relation.numel():
            raise ValueError(f"table takes a tensor of shape [Tq, Tk] or [B, Tq, Tk], got {list(relation.shape)}")
        low, high = (int(end) for end in relation.aminmax())
        self.entries = high + 1 if entries is None else entries
        check_integer(self, "entries", minimum=1)
        if low < 0 or high >= self.entries:
            raise ValueError(
                f"table(entries={self.entries}): the relation must lie from 0 to {self.entries - 1}, "
                f"but reaches from {low} to {high}"
            )
        dtype = torch.uint8 if high < 2**8 else torch.int32
        self.register_buffer("relation", relation.detach().to(dtype, copy=True), persistent=False)
        self.weight = nn.Parameter(torch.zeros(heads, self.entries))

    @property
    def batch(self) -> int:
        return self.relation.shape[0] if self.relation.dim() == 3 else 1

    @property
    def needs_sequence(self) -> bool:
        return self.relation.dim() == 3

    def index(self, q: Side, k: Side) -> Tensor:
        queries, keys = self.relation.shape[-2:]
        if (queries, keys) != (q.slots, k.slots):
            raise ValueError(
                f"{self!r} has {queries} queries and {keys} keys, but the positions have {q.slots} and {k.slots}"
            )
        relation = self.relation.to(q.slot.device)
        if relation.dim() == 2:
            return relation[q.slot, k.slot].long()
        sequence = q.sequence if self.batch > 1 else torch.zeros_like(q.sequence)
        return relation[sequence, q.slot, k.slot].long()

    def table(self, entries: int) -> Tensor:
        return self.weight

    def text(self) -> str:
        return f"table({list(self.relation.shape)}, entries={self.entries})"
