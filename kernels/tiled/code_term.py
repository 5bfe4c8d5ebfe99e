"""Offsets by difference of codes: a block's index is made of two rows of integers, or read as a diagonal pattern."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.kernels.offsets import LOG2_E, CodeTerm
from maskzoo.kernels.tiled.lying import Lying, Part, gathered, ranges, scatter, summed

LINES = 32
"""Lines of a diagonal block that are offset in one step."""

MOST_MOVED = 2**22
"""Entries of all moved copies of a table; they are fewer than LINES where they would be more."""


class CodeBlocks:
    """A code term in blocks; a `Term`.

    A block's index is inner − outer: for scores keys × queries the codes of queries and of keys. For scores queries ×
    keys both change sign, by a table that is read from its end. Where both codes rise by one, as positions do, each
    line of the block is the one before moved by one. So a few lines are one piece of as many copies of the table, each
    moved by one against the one before, and the next few lines are the piece before it.
    """

    def __init__(self, term: CodeTerm, lying: Lying, dtype: torch.dtype, wanted: bool) -> None:
        self.shared = len(term.q_code) == len(term.k_code) == 1
        self._lying = lying
        # Sums by index are fast in int64 only, and everything else in int32.
        number = torch.int64 if wanted else torch.int32
        heads, entries = term.table.shape
        if lying.transposed:
            inner, outer, table = term.q_code, term.k_code, term.table
        else:
            inner, outer, table = term.k_code, term.q_code - (entries - 1), term.table.flip(1)
        self._inner, self._outer = _Side(inner.to(number)), _Side(outer.to(number))
        self._table = lying.table(table.to(dtype)).contiguous()
        self._lines = min(LINES, outer.shape[1], max(1, MOST_MOVED // max(1, heads * entries)))
        self._moved: Tensor | None = None
        self._total = term.table.new_zeros(term.table.shape, dtype=dtype) if wanted else None
        self._moved_total: Tensor | None = None

    def add(self, scores: Tensor, part: Part) -> None:
        first = self._first(part)
        if first is None:
            block = gathered(self._lying.read(self._table, part), self._index(part))
            scores.add_(self._lying.laid(block), alpha=LOG2_E)
            return
        if self._moved is None:
            self._moved = self._room()
            self._diagonals(self._moved).copy_(self._table[:, None])
        torch._foreach_add_(self._by_lines(scores), self._pieces(self._moved, part, first), alpha=LOG2_E)

    def collect(self, slope: Tensor, part: Part) -> None:
        assert self._total is not None
        own, first = summed(slope), self._first(part)
        if first is None:
            scatter(self._total[self._lying.heads(part)], self._index(part), own)
            return
        if self._moved_total is None:
            self._moved_total = self._room()
        torch._foreach_add_(self._pieces(self._moved_total, part, first), self._by_lines(own[None]))

    def gradient(self) -> Tensor | None:
        if self._moved_total is not None and self._total is not None:
            by_stack = self._diagonals(self._moved_total).sum(1)  # [stacks, N, fold]
            self._total += by_stack.mT.flatten(0, 1)
            self._moved_total = None
        return self._total

    def _sides(self, part: Part) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Positions along the inner and the outer side."""
        queries = (part.queries,)
        return (queries, part.keys) if self._lying.transposed else (part.keys, queries)

    def _index(self, part: Part) -> Tensor:
        inner, outer = self._sides(part)
        return self._inner.at(part.sequence, inner) - self._outer.at(part.sequence, outer)[:, None]

    def _first(self, part: Part) -> int | None:
        """The difference in the first place, if the block is diagonal."""
        (inner, *more), (outer, *others) = self._sides(part)
        if more or others:
            return None
        first, second = self._inner.start(part.sequence, inner), self._outer.start(part.sequence, outer)
        # Codes may have been wrapped; a difference lies within the table.
        return None if first is None or second is None else (first - second) % 2**32

    def _room(self) -> Tensor:
        """For moved copies of a table: [heads or stacks, lines, N + lines − 1, 1 or fold]."""
        heads, entries, fold = self._table.shape
        return self._table.new_zeros(heads, self._lines, entries + self._lines - 1, fold)

    def _diagonals(self, moved: Tensor) -> Tensor:
        """The copies without their moves: [heads or stacks, lines, N, 1 or fold]."""
        heads, lines, width, fold = moved.shape
        strides = lines * width * fold, (width + 1) * fold, fold, 1
        return moved.as_strided((heads, lines, width - lines + 1, fold), strides)

    def _by_lines(self, scores: Tensor) -> list[Tensor]:
        """Scores, as `opened`, some lines at a time: [sequences, stacks, lines, fold or 1, places]."""
        scores = scores.flatten(3).unsqueeze(3) if self._lying.transposed else scores
        return list(scores.split(self._lines, 2))

    def _pieces(self, moved: Tensor, part: Part, first: int) -> list[Tensor]:
        """The pieces of moved copies that belong to the scores that `_by_lines` gives."""
        (inner, outer), lines, fold = self._sides(part), self._lines, moved.shape[3]
        places, rest = inner[0].stop - inner[0].start, outer[0].stop - outer[0].start
        assert rest - 1 <= first <= self._table.shape[1] - places, "a difference of codes lies outside the table"
        steps = -(-rest // lines) - 1
        begin, width = first - steps * lines, places + steps * lines
        own = self._lying.read(moved, part)[:, :, begin : begin + width].flatten(2)  # [heads or stacks, lines, …]
        own = own.unsqueeze(2) if self._lying.transposed else own.unflatten(0, (-1, self._lying.fold)).transpose(1, 2)
        pieces = list(own[None].unfold(4, places * fold, lines * fold).unbind(4)[::-1])
        pieces[-1] = pieces[-1][:, :, : rest - steps * lines]
        return pieces


class _Side:
    """The codes of one side, [B or 1, T]."""

    def __init__(self, code: Tensor) -> None:
        self._code = code
        self._breaks = torch.zeros(code.shape, dtype=torch.int32, device=code.device)
        torch.cumsum(code.diff(dim=1) != 1, 1, dtype=torch.int32, out=self._breaks[:, 1:])
        self._starts: dict[tuple[int, int, int], int | None] = {}

    def at(self, sequence: int, spans: tuple[slice, ...]) -> Tensor:
        return ranges(self._code[min(sequence, len(self._code) - 1)], spans)

    def start(self, sequence: int, span: slice) -> int | None:
        """The first code of a range in which each is one more than that before; None for another range."""
        sequence = min(sequence, len(self._code) - 1)
        key = sequence, span.start, span.stop
        if key not in self._starts:
            rises = int(self._breaks[sequence, span.start]) == int(self._breaks[sequence, span.stop - 1])
            self._starts[key] = int(self._code[sequence, span.start]) if rises else None
        return self._starts[key]
