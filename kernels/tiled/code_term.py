"""Offsets by difference of codes: a block's index is made of two rows of integers, or read as a diagonal pattern."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.kernels.offsets import LOG2_E, CodeTerm
from maskzoo.kernels.tiled.lying import Lying, Part, gathered, ranges, scatter, summed

MOST_KEPT = 8
"""Diagonal blocks kept: in a window, or in documents of one length, each recurs at once."""

Diagonal = tuple[int, int, int, int, int]
"""First difference, outer and inner side, and the range of heads: all on which a diagonal block depends."""


class CodeBlocks:
    """A code term in blocks; a `Term`.

    A block's index is inner − outer: for scores keys × queries the codes of queries and of keys. For scores queries ×
    keys both change sign, by a table that is read from its end. Where both codes rise by one, as positions do, each
    line of the block is the one before moved by one: a view of the table, in reverse order of lines.
    """

    def __init__(self, term: CodeTerm, lying: Lying, dtype: torch.dtype, wanted: bool) -> None:
        self.shared = len(term.q_code) == len(term.k_code) == 1
        self._lying = lying
        # Sums by index are fast in int64 only, and everything else in int32.
        number = torch.int64 if wanted else torch.int32
        last = term.table.shape[1] - 1
        if lying.transposed:
            inner, outer, table = term.q_code, term.k_code, term.table
        else:
            inner, outer, table = term.k_code, term.q_code - last, term.table.flip(1)
        self._table = lying.table(table.to(dtype)).contiguous()
        self._inner, self._outer = _Side(inner.to(number)), _Side(outer.to(number))
        self._blocks: dict[Diagonal, Tensor] = {}
        self._total = term.table.new_zeros(term.table.shape, dtype=dtype) if wanted else None
        self._sums: dict[Diagonal, Tensor] = {}
        self._indices: dict[tuple[int, int], Tensor] = {}

    def add(self, scores: Tensor, part: Part) -> None:
        diagonal = self._diagonal(part)
        block = gathered(self._lying.read(self._table, part), self._index(part)) if diagonal is None else None
        if block is None:
            assert diagonal is not None
            block = self._kept(diagonal, part)
        scores.add_(self._lying.laid(block), alpha=LOG2_E)

    def collect(self, slope: Tensor, part: Part) -> None:
        own, diagonal = summed(slope), self._diagonal(part)
        if diagonal is None:
            assert self._total is not None
            scatter(self._total[self._lying.heads(part)], self._index(part), own)
        elif diagonal in self._sums:
            self._sums[diagonal] = self._sums.pop(diagonal).add_(own)
        else:
            if len(self._sums) == MOST_KEPT:
                self._flush(next(iter(self._sums)))
            self._sums[diagonal] = own

    def gradient(self) -> Tensor | None:
        for diagonal in list(self._sums):
            self._flush(diagonal)
        return self._total

    def _sides(self, part: Part) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Positions along the inner and the outer side."""
        queries = (part.queries,)
        return (queries, part.keys) if self._lying.transposed else (part.keys, queries)

    def _index(self, part: Part) -> Tensor:
        inner, outer = self._sides(part)
        return self._inner.at(part.sequence, inner) - self._outer.at(part.sequence, outer)[:, None]

    def _diagonal(self, part: Part) -> Diagonal | None:
        """The block if it is a diagonal one."""
        (inner, *more), (outer, *others) = self._sides(part)
        if more or others:
            return None
        first, second = (side.start(part.sequence, s) for side, s in ((self._inner, inner), (self._outer, outer)))
        if first is None or second is None:
            return None
        heads = self._lying.heads(part)
        # Codes may have been wrapped; a difference lies within the table.
        difference = (first - second) % 2**32
        return difference, outer.stop - outer.start, inner.stop - inner.start, heads.start, heads.stop

    def _kept(self, diagonal: Diagonal, part: Part) -> Tensor:
        block = self._blocks.pop(diagonal, None)
        if block is None:
            if len(self._blocks) == MOST_KEPT:
                self._blocks.pop(next(iter(self._blocks)))
            block = self._made(diagonal, part)
        # The one used last is given up last.
        self._blocks[diagonal] = block
        return block

    def _made(self, diagonal: Diagonal, part: Part) -> Tensor:
        first, outer, inner, _, _ = diagonal
        table = self._lying.read(self._table, part)
        heads, entries, fold = table.shape
        lowest = first - outer + 1
        assert lowest >= 0 and first + inner <= entries, "a difference of codes lies outside the table"
        begin = table.storage_offset() + lowest * fold
        return table.as_strided((heads, outer, inner, fold), (entries * fold, fold, fold, 1), begin).flip(1)

    def _flush(self, diagonal: Diagonal) -> None:
        """Add the gradients of a kept block to those of the table."""
        first, outer, inner, begin, end = diagonal
        assert self._total is not None
        if (outer, inner) not in self._indices:
            lines, places = (torch.arange(side, device=self._total.device) for side in (outer, inner))
            self._indices[outer, inner] = places - lines[:, None] + (outer - 1)
        lowest = first - outer + 1
        total = self._total[begin:end, lowest : first + inner]
        scatter(total, self._indices[outer, inner], self._sums.pop(diagonal))


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
