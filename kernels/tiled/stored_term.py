"""Offsets with a stored index: a block's index is put together from tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.kernels.offsets import LOG2_E, ListedTerm, StoredTerm
from maskzoo.kernels.tiled.lying import Lying, Part, gathered, scatter, summed
from maskzoo.kernels.tiles import Runs, unfolded

MOST_KEPT = 8
"""Indices kept: where heads are taken one by one, all of them read the same."""

COPIES, MOST_COPIED = 8, 1024
"""Copies of a table with at most so many entries, read in turn: sums into one place have to wait for one another."""


class StoredBlocks:
    """A stored term in blocks; a `Term`."""

    shared = True

    def __init__(
        self,
        term: StoredTerm | ListedTerm,
        lying: Lying,
        group: Tensor,
        rows: Runs,
        size: int,
        keys: int,
        dtype: torch.dtype,
        wanted: bool,
    ) -> None:
        assert isinstance(term, StoredTerm), "an index by pairs is read by the kernel 'edges'"
        self._lying, self._size, self._index = lying, size, term.index
        self._number = torch.int64 if wanted else torch.int32
        self._groups = group.tolist()
        groups = int(group.max()) + 1 if group.numel() else 1
        _, line, tile = unfolded(rows)
        # Tiles that are not visible read any: their scores are hidden afterwards.
        places = torch.zeros(len(rows.start) - 1, -(-keys // size), dtype=torch.int64, device=line.device)
        places[line, tile] = term.place.long()
        self._places = places.view(groups, -1, places.shape[1])
        heads, self._entries = term.table.shape
        self._copies = COPIES if wanted and self._entries <= MOST_COPIED else 1
        self._table = lying.table(term.table.to(dtype).repeat(1, self._copies))
        self._kept: dict[tuple[int, ...], Tensor] = {}
        self._total = term.table.new_zeros(heads, self._copies * self._entries, dtype=dtype) if wanted else None

    def add(self, scores: Tensor, part: Part) -> None:
        block = gathered(self._lying.read(self._table, part), self._at(part))
        scores.add_(self._lying.laid(block), alpha=LOG2_E)

    def collect(self, slope: Tensor, part: Part) -> None:
        assert self._total is not None
        scatter(self._total[self._lying.heads(part)], self._at(part), summed(slope))

    def gradient(self) -> Tensor | None:
        return None if self._total is None else self._total.unflatten(1, (self._copies, -1)).sum(1)

    def _at(self, part: Part) -> Tensor:
        """The index of a part, [queries, keys] or [keys, queries]."""
        own = self._groups[part.sequence % len(self._groups)]
        group = own[self._lying.heads(part).start % len(own)]
        key = group, *part.bounds
        if key not in self._kept:
            if len(self._kept) == MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = self._made(group, part)
        return self._kept[key]

    def _made(self, group: int, part: Part) -> Tensor:
        size, queries = self._size, part.queries
        lines = slice(queries.start // size, -(-queries.stop // size))
        tiles = [tile for span in part.keys for tile in range(span.start // size, -(-span.stop // size))]
        index = self._index[self._places[group, lines][:, tiles]]  # [lines, tiles, size, size]
        order = (1, 3, 0, 2) if self._lying.transposed else (0, 2, 1, 3)
        whole = index.permute(order).to(self._number, memory_format=torch.contiguous_format)
        sides = [queries.stop - queries.start, sum(span.stop - span.start for span in part.keys)]
        outer, inner = sides[::-1] if self._lying.transposed else sides
        found = whole.flatten(2).flatten(0, 1)[:outer, :inner].contiguous()
        return found.add_(torch.arange(inner, device=found.device) % self._copies * self._entries)
