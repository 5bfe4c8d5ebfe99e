"""Offsets looked up pair by pair: where in a flat array of values each pair of a part finds its own."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from maskzoo.kernels.offsets import LOG2_E, CodeTerm, ListedTerm, Offsets
from maskzoo.kernels.segments import Part


class Lookup(Protocol):
    """One term of the offsets, for pairs of parts.

    Attributes:
        values: its table [H, N] or its dense tensor.
    """

    values: Tensor

    def places(self, part: Part) -> Tensor:
        """For each pair of each unit, which of the flattened values is added to its score: int64 [U·E]."""


def lookups(offsets: Offsets | None, heads: int) -> tuple[Lookup | None, Lookup | None, Lookup | None]:
    """The code term, the stored term and the dense tensor."""
    if offsets is None:
        return None, None, None
    code, stored, dense = offsets.code, offsets.stored, offsets.dense
    assert stored is None or isinstance(stored, ListedTerm), "an index by tiles is read by the kernel 'tiled'"
    return (
        None if code is None else ByCode(code, heads),
        None if stored is None else ByIndex(stored, heads),
        None if dense is None else ByPosition(dense, heads),
    )


def add(lookup: Lookup, scores: Tensor, part: Part) -> None:
    """Add a term to the scores of a part, as logarithms to base 2, in place."""
    scores.add_(lookup.values.flatten().index_select(0, lookup.places(part)), alpha=LOG2_E)


class ByCode:
    """The term of a difference of codes."""

    def __init__(self, term: CodeTerm, heads: int) -> None:
        self._q_code, self._k_code, self._heads = term.q_code, term.k_code, heads
        self._shared = len(term.q_code) == len(term.k_code) == 1
        self.values = term.table

    def places(self, part: Part) -> Tensor:
        sequence, head = _unit_numbers(part, self._heads)
        block = part.block
        names, which = torch.unique(sequence[:1] if self._shared else sequence, return_inverse=True)
        own = []
        for one in names.tolist():
            q_code, k_code = (code[one if len(code) > 1 else 0] for code in (self._q_code, self._k_code))
            own.append(q_code[block.begin : block.end].index_select(0, block.row) - k_code.index_select(0, block.key))
        index = own[0] if len(own) == 1 else torch.stack(own)[which]
        return (head[:, None] * self.values.shape[1] + index).flatten()


class ByIndex:
    """The term of an index by pairs."""

    def __init__(self, term: ListedTerm, heads: int) -> None:
        self._index, self._heads = term.index, heads
        self.values = term.table

    def places(self, part: Part) -> Tensor:
        _, head = _unit_numbers(part, self._heads)
        index = self._index[part.block.first : part.block.first + len(part.block.key)]
        return (head[:, None] * self.values.shape[1] + index.long()).flatten()


class ByPosition:
    """The dense tensor."""

    def __init__(self, dense: Tensor, heads: int) -> None:
        self._heads = heads
        self.values = dense.contiguous()
        shape = (1,) * (4 - dense.dim()) + dense.shape
        steps = shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1
        self._steps = [step if side > 1 else 0 for step, side in zip(steps, shape, strict=True)]

    def places(self, part: Part) -> Tensor:
        sequence, head = _unit_numbers(part, self._heads)
        by_sequence, by_head, by_query, by_key = self._steps
        own = (part.block.row.long() + part.block.begin) * by_query + part.block.key.long() * by_key
        return ((sequence * by_sequence + head * by_head)[:, None] + own).flatten()


def _unit_numbers(part: Part, heads: int) -> tuple[Tensor, Tensor]:
    """Sequence and head of each unit of a part: int64 [U]."""
    unit = torch.tensor(part.units, device=part.block.key.device)
    return unit // heads, unit % heads
