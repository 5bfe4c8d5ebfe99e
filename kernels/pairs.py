"""`Pairs`: which pairs are visible, as a list. What rules over graphs give, and what the kernel `edges` reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maskzoo.kernels.tiles import FULL, Runs, Tiles, gathered, unfolded, unpacked

BITS_AT_ONCE = 2**22
"""Pairs of tiles that `from_tiles` unfolds at once, one byte each."""


@dataclass(frozen=True)
class Pairs:
    """Visible pairs of Tq queries × Tk keys, one by one.

    Attributes:
        queries, keys: Tq, Tk.
        group: int64 [B or 1, H or 1]: which group of rows a sequence and head reads.
        start: int64 [G·Tq + 1]: query i of group g sees the keys key[start[g·Tq + i] … start[g·Tq + i + 1] − 1].
        key: int32 [E]: ascending within a query, none twice.
    """

    queries: int
    keys: int
    group: Tensor
    start: Tensor
    key: Tensor

    @property
    def groups(self) -> int:
        """G: how many different rules the sequences and heads have between them."""
        return (len(self.start) - 1) // self.queries

    @property
    def bytes(self) -> int:
        """Memory of all arrays."""
        return sum(array.numel() * array.element_size() for array in (self.group, self.start, self.key))

    @property
    def row(self) -> Tensor:
        """Group and query of each pair as one number, g·Tq + i: int64 [E]."""
        rows = torch.arange(len(self.start) - 1, device=self.start.device)
        return torch.repeat_interleave(rows, self.start.diff(), output_size=len(self.key))

    def to(self, device: torch.device | str) -> Pairs:
        """The same on another device."""
        return replace(self, group=self.group.to(device), start=self.start.to(device), key=self.key.to(device))


def visible(pairs: Pairs) -> Tensor:
    """Every pair: bool [B or 1, H or 1, Tq, Tk]."""
    dense = torch.zeros(len(pairs.start) - 1, pairs.keys, dtype=torch.bool, device=pairs.key.device)
    dense[pairs.row, pairs.key] = True
    return dense.view(pairs.groups, pairs.queries, pairs.keys)[pairs.group]


def from_tiles(tiles: Tiles) -> Pairs:
    """The pairs that tiles hold, unfolded some lines of tiles at a time."""
    begin = tiles.rows.start
    size, device = tiles.size, begin.device
    reach = torch.zeros(len(tiles.rows.count) + 1, dtype=torch.int64, device=device)
    torch.cumsum(tiles.rows.count, 0, out=reach[1:])
    reach = reach[begin]  # tiles before each line
    step, line, keys, counts = max(1, BITS_AT_ONCE // size**2), 0, [], []
    while line < len(begin) - 1:
        fits = int(torch.searchsorted(reach, reach[line] + step, right=True)) - 1
        stop = max(line + 1, min(fits, len(begin) - 1))
        key, count = _unfolded(tiles, line, stop)
        keys.append(key)
        counts.append(count)
        line = stop
    count = torch.cat(counts).view(tiles.groups, -1)[:, : tiles.queries].flatten()
    start = torch.zeros(len(count) + 1, dtype=torch.int64, device=device)
    torch.cumsum(count, 0, out=start[1:])
    return Pairs(tiles.queries, tiles.keys, tiles.group, start, torch.cat(keys))


def _unfolded(tiles: Tiles, line: int, stop: int) -> tuple[Tensor, Tensor]:
    """The keys seen by the queries of some lines of tiles, int32 [E], and how many by each, int64 [lines · size]."""
    size, (start, *arrays) = tiles.size, tiles.rows
    first, count, pattern = (array[start[line] : start[stop]] for array in arrays)
    run, own, tile = unfolded(Runs(start[line : stop + 1] - start[line], first, count, pattern))
    full = torch.full((1, size, size // 8), 255, dtype=torch.uint8, device=start.device)
    # FULL is −1: the last entry of this table.
    bits = unpacked(torch.cat([tiles.patterns, full])[pattern[run].long()])
    place = torch.arange(size, device=start.device)
    bits &= (tile[:, None] * size + place < tiles.keys)[:, None, :]
    bits &= ((own + line) % tiles.query_tiles * size)[:, None, None] + place[:, None] < tiles.queries
    entry, query, key = bits.nonzero(as_tuple=True)
    row, order = torch.sort(own[entry] * size + query, stable=True)
    return (tile[entry] * size + key)[order].int(), torch.bincount(row, minlength=(stop - line) * size)


def tiles_from(pairs: Pairs, size: int) -> Tiles:
    """The tiles that pairs fall into; time and memory follow the number of pairs."""
    device, query_tiles, key_tiles = pairs.key.device, -(-pairs.queries // size), -(-pairs.keys // size)
    row, key = pairs.row, pairs.key.long()
    group, query = row // pairs.queries, row % pairs.queries
    code, order = torch.sort((group * query_tiles + query // size) * key_tiles + key // size, stable=True)
    place = (query % size * size + key % size)[order]  # within its tile; ascending, as the pairs are
    tile, count = torch.unique_consecutive(code, return_counts=True)
    line, column = tile // key_tiles, tile % key_tiles
    high = (pairs.queries - line % query_tiles * size).clamp(max=size)
    wide = (pairs.keys - column * size).clamp(max=size)
    partial = (count < high * wide).nonzero()[:, 0]
    which, sample = _distinct(place, count, partial, size)
    value = torch.full_like(tile, FULL)
    value[partial] = which
    patterns = _bits(place, count, sample, size).to(device)
    return gathered(size, pairs.queries, pairs.keys, pairs.group, pairs.groups, line, column, value, patterns)


def _distinct(place: Tensor, count: Tensor, partial: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Which pattern each partial tile has, int64 [N], and one tile with each of the patterns, int64 [P].

    Patterns are told apart by a sum of random numbers, and each is then compared with what it is said to equal.
    """
    begin, seed = count.cumsum(0) - count, 0
    while True:
        random = torch.Generator().manual_seed(seed)
        value = torch.randint(-(2**62), 2**62, (size * size,), generator=random).to(place.device)
        owner = torch.repeat_interleave(torch.arange(len(count), device=place.device), count)
        total = torch.zeros_like(count).index_add_(0, owner, value[place])
        names, which = torch.unique(total[partial], return_inverse=True)
        sample = torch.empty_like(names).scatter_(0, which, partial)
        twin = torch.arange(len(count), device=place.device)
        twin[partial] = sample[which]
        moved = torch.arange(len(place), device=place.device) + (begin[twin] - begin)[owner]
        if torch.equal(count, count[twin]) and torch.equal(place, place[moved]):
            return which, sample
        seed += 1


def _bits(place: Tensor, count: Tensor, chosen: Tensor, size: int) -> Tensor:
    """The patterns of some tiles, as `Tiles.patterns`."""
    number = torch.full_like(count, -1)
    number[chosen] = torch.arange(len(chosen), device=place.device)
    number = torch.repeat_interleave(number, count)
    number, place = number[number >= 0], place[number >= 0]
    bits = torch.zeros(len(chosen) * size * size // 8, dtype=torch.uint8, device=place.device)
    bits.index_add_(0, number * (size * size // 8) + place // 8, (1 << place % 8).to(torch.uint8))
    return bits.view(-1, size, size // 8)
