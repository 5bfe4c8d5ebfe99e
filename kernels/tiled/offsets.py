"""Offsets in the scores of a block: adding them, and gathering the gradients of what they were made of."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from maskzoo.kernels.offsets import Offsets
from maskzoo.kernels.tiled.code_term import CodeBlocks
from maskzoo.kernels.tiled.dense_term import DenseBlocks
from maskzoo.kernels.tiled.lying import Lying, Part
from maskzoo.kernels.tiled.schedule import Block, Chunk, Members
from maskzoo.kernels.tiled.stored_term import StoredBlocks
from maskzoo.kernels.tiles import Runs


class Term(Protocol):
    """One term of the offsets.

    Attributes:
        shared: whether its offsets are the same for all sequences that read the same tiles.
    """

    shared: bool

    def add(self, scores: Tensor, part: Part) -> None:
        """Add the part's offsets to its scores, which lie as `Lying.opened` gives them."""

    def collect(self, slope: Tensor, part: Part) -> None:
        """Add the part's gradient of the scores, which lies as the scores do, to that of the term."""

    def gradient(self) -> Tensor | None:
        """The gradient of the table or the dense tensor, None if it is not wanted."""


class Share(NamedTuple):
    """Members of a lane that stand for the same heads of one or several neighbouring sequences.

    Attributes:
        place: of which places among the members.
        sequence, sequences: the first sequence, and how many.
        heads: stacks of query heads within a sequence.
    """

    place: slice
    sequence: int
    sequences: int
    heads: slice


class OffsetBlocks:
    """The offsets of one call.

    Args:
        offsets: what is added to the scores.
        lying: how the scores lie.
        group, rows, size, keys: of the tiles.
        dtype: of the scores.
        wanted: whether the gradients of the code term, the stored term and the dense tensor are wanted.
    """

    def __init__(
        self,
        offsets: Offsets,
        lying: Lying,
        group: Tensor,
        rows: Runs,
        size: int,
        keys: int,
        dtype: torch.dtype,
        wanted: tuple[bool, bool, bool] = (False, False, False),
    ) -> None:
        self._lying = lying
        self._terms: list[Term | None] = [None] * 3
        if offsets.code is not None:
            self._terms[0] = CodeBlocks(offsets.code, lying, dtype, wanted[0])
        if offsets.stored is not None:
            self._terms[1] = StoredBlocks(offsets.stored, lying, group, rows, size, keys, dtype, wanted[1])
        if offsets.dense is not None:
            self._terms[2] = DenseBlocks(offsets.dense, lying, dtype, wanted[2])
        self._wanted = wanted
        self._shares: dict[tuple[int, int, int, bool], list[Share]] = {}

    def add(self, scores: Tensor, block: Block, chunk: Chunk) -> None:
        """Add the offsets to scores [n, rows, keys] or [n, keys, rows], as logarithms to base 2, in place."""
        for term in self._terms:
            if term is not None:
                for part in self._parts(block, chunk, term.shared):
                    term.add(self._lying.opened(scores, part), part)

    def ordered(self, blocks: list[Block]) -> list[Block]:
        """The blocks, heads that read the same part of a stored index one after the other."""
        if self._terms[1] is None:
            return blocks
        return sorted(blocks, key=lambda block: block.lanes[0].rows.start)

    @property
    def collects(self) -> bool:
        """Whether any gradient is wanted."""
        return any(self._wanted)

    def collect(self, slope: Tensor, block: Block, chunk: Chunk) -> None:
        """Take in the gradient of the scores (natural logarithms)."""
        for term, wanted in zip(self._terms, self._wanted, strict=True):
            if term is not None and wanted:
                for part in self._parts(block, chunk, term.shared):
                    term.collect(self._lying.opened(slope, part), part)

    def gradients(self) -> list[Tensor | None]:
        """Of the table of the code term, that of the stored term, and the dense tensor."""
        return [None if term is None else term.gradient() for term in self._terms]

    def _parts(self, block: Block, chunk: Chunk, shared: bool) -> list[Part]:
        parts, fold = [], self._lying.fold
        for i, (lane, spans) in enumerate(zip(block.lanes, chunk.spans, strict=True)):
            queries = slice(lane.rows.start // fold, lane.rows.stop // fold)
            for share in self._shared(lane.members, shared):
                first = i * lane.members.count
                place = slice(first + share.place.start, first + share.place.stop)
                parts.append(Part(place, share.sequence, share.sequences, share.heads, queries, spans))
        return parts

    def _shared(self, members: Members, shared: bool) -> list[Share]:
        places = members.queries
        key = places.start, places.stop, places.step, shared
        if key not in self._shares:
            self._shares[key] = _shares(range(places.start, places.stop, places.step), self._lying.stacks, shared)
        return self._shares[key]


def _shares(places: range, stacks: int, shared: bool) -> list[Share]:
    """Which sequences and heads the stacks at these places are.

    Args:
        stacks: of query heads in a sequence.
        shared: whether sequences may be taken together.
    """
    heads: dict[int, list[int]] = {}
    for place in places:
        heads.setdefault(place // stacks, []).append(place % stacks)
    sets = list(heads.values())
    if any(own != list(range(own[0], own[-1] + 1)) for own in sets):
        return [
            Share(slice(i, i + 1), place // stacks, 1, slice(place % stacks, place % stacks + 1))
            for i, place in enumerate(places)
        ]
    if shared and all(own == sets[0] for own in sets):
        return [Share(slice(0, len(places)), next(iter(heads)), len(sets), slice(sets[0][0], sets[0][-1] + 1))]
    found, begin = [], 0
    for sequence, own in heads.items():
        found.append(Share(slice(begin, begin + len(own)), sequence, 1, slice(own[0], own[-1] + 1)))
        begin += len(own)
    return found
