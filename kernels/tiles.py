"""`Tiles`: which pairs are visible, as runs of square tiles. What the planner makes and the sparse kernels read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

FULL = -1
"""In `Runs.pattern`: every pair of the run's tiles is visible."""


class Runs(NamedTuple):
    """Neighbouring tiles of each line of tiles (one query tile, or one key tile), in ascending order.

    Attributes:
        start: int64 [G·n + 1]: the runs of line t of group g are start[g·n + t] … start[g·n + t + 1] − 1.
        first: int32 [N]: the first tile of the run.
        count: int32 [N]: how many tiles; 1 where there is a pattern.
        pattern: int32 [N]: the run's pattern, or FULL.
    """

    start: Tensor
    first: Tensor
    count: Tensor  # type: ignore[assignment]  # a tuple's own count is never used
    pattern: Tensor


@dataclass(frozen=True)
class Tiles:
    """Visible pairs of Tq queries × Tk keys, cut into tiles of `size` × `size`; empty tiles are left out.

    A tile that reaches over the last query or key counts as full if all pairs that do exist are visible; in a pattern
    the pairs beyond are not set.

    Attributes:
        size: side of a tile, a multiple of 8.
        queries, keys: Tq, Tk.
        group: int64 [B or 1, H or 1]: which group of lines a sequence and head reads.
        rows: runs of key tiles, by query tile.
        columns: runs of query tiles, by key tile.
        patterns: uint8 [P, size, size / 8]: each distinct partial tile, queries by keys; key 8c + b is bit b of byte c.
    """

    size: int
    queries: int
    keys: int
    group: Tensor
    rows: Runs
    columns: Runs
    patterns: Tensor

    @property
    def query_tiles(self) -> int:
        """Tiles along the queries."""
        return -(-self.queries // self.size)

    @property
    def key_tiles(self) -> int:
        """Tiles along the keys."""
        return -(-self.keys // self.size)

    @property
    def groups(self) -> int:
        """G: how many different rules the sequences and heads have between them."""
        return (len(self.rows.start) - 1) // self.query_tiles

    @property
    def bytes(self) -> int:
        """Memory of all arrays."""
        arrays = (self.group, self.patterns, *self.rows, *self.columns)
        return sum(array.numel() * array.element_size() for array in arrays)

    def to(self, device: torch.device | str) -> Tiles:
        """The same on another device."""
        return replace(
            self,
            group=self.group.to(device),
            patterns=self.patterns.to(device),
            rows=Runs(*(array.to(device) for array in self.rows)),
            columns=Runs(*(array.to(device) for array in self.columns)),
        )


def unpacked(patterns: Tensor) -> Tensor:
    """Patterns as bool [P, size, size]."""
    bits = torch.arange(8, dtype=torch.uint8, device=patterns.device)
    return (patterns[..., None] >> bits & 1).bool().flatten(2)


def packed(patterns: Tensor) -> Tensor:
    """bool [P, size, size] as bits: uint8 [P, size, size / 8]."""
    weights = 1 << torch.arange(8, dtype=torch.uint8, device=patterns.device)
    return (patterns.unflatten(2, (-1, 8)) * weights).sum(-1, dtype=torch.uint8)


def unfolded(runs: Runs) -> tuple[Tensor, Tensor, Tensor]:
    """Of every tile that is not empty, in the order of the runs: its run, its line and its place there: int64 [N]."""
    start, first, count, _ = runs
    line = torch.repeat_interleave(torch.arange(len(start) - 1, device=start.device), start.diff())
    run = torch.repeat_interleave(torch.arange(len(first), device=start.device), count)
    begin = count.cumsum(0) - count
    return run, line[run], first[run] + torch.arange(len(run), device=start.device) - begin[run]


def codes(tiles: Tiles) -> Tensor:
    """One number for each tile: 0 empty, 1 full, 2 + its pattern: int32 [G, query tiles, key tiles]."""
    run, line, tile = unfolded(tiles.rows)
    dense = tiles.rows.pattern.new_zeros(len(tiles.rows.start) - 1, tiles.key_tiles)
    dense[line, tile] = tiles.rows.pattern[run] + 2
    return dense.view(tiles.groups, tiles.query_tiles, tiles.key_tiles)


def visible(tiles: Tiles) -> Tensor:
    """Every pair: bool [B or 1, H or 1, Tq, Tk]."""
    table = torch.cat([torch.zeros_like(tiles.patterns[:1]), torch.zeros_like(tiles.patterns[:1]), tiles.patterns])
    if len(tiles.patterns) == 0:
        table = tiles.patterns.new_zeros(2, tiles.size, tiles.size // 8)
    table[1] = 255
    pairs = unpacked(table)[codes(tiles).long()].permute(0, 1, 3, 2, 4)  # [G, nq, size, nk, size]
    return pairs.flatten(3, 4).flatten(1, 2)[:, : tiles.queries, : tiles.keys][tiles.group]


def from_visible(pairs: Tensor, size: int) -> Tiles:
    """Tiles of visible pairs that are at hand as bool [B or 1, H or 1, Tq, Tk]."""
    batch, heads, queries, keys = pairs.shape
    flat = pairs.flatten(0, 1)
    padding = (0, -keys % size, 0, -queries % size)
    cut = F.pad(flat, padding).unflatten(2, (-1, size)).unflatten(1, (-1, size)).transpose(2, 3)
    exists = F.pad(torch.ones_like(flat[:1]), padding).unflatten(2, (-1, size)).unflatten(1, (-1, size)).transpose(2, 3)
    some, every = cut.any(-1).any(-1), (cut | ~exists).all(-1).all(-1)  # [G, nq, nk]
    bits = packed(cut[some & ~every])
    distinct, which = unique_rows(bits.flatten(1))
    code = every.int() * (some.int())
    code[some & ~every] = which.int() + 2
    return Tiles(
        size=size,
        queries=queries,
        keys=keys,
        group=torch.arange(batch * heads, device=pairs.device).view(batch, heads),
        rows=runs(code.flatten(0, 1)),
        columns=runs(code.mT.flatten(0, 1)),
        patterns=distinct.view(-1, size, size // 8),
    )


def coarser(tiles: Tiles, size: int) -> Tiles:
    """The same pairs in larger tiles, of a side that is a multiple of theirs."""
    times, device = size // tiles.size, tiles.group.device
    assert size % tiles.size == 0
    run, line, tile = unfolded(tiles.rows)
    group, query_tile = line // tiles.query_tiles, line % tiles.query_tiles
    query_tiles, key_tiles = -(-tiles.queries // size), -(-tiles.keys // size)
    own = (group * query_tiles + query_tile // times) * key_tiles + tile // times
    place, which = torch.unique(own, return_inverse=True)
    code = torch.zeros(len(place), times * times, dtype=torch.int64, device=device)
    code[which, query_tile % times * times + tile % times] = tiles.rows.pattern[run].long() + 2
    line, tile = place // key_tiles, place % key_tiles
    # Small tiles beyond the last query or key are missing in a large one that is full.
    small = torch.arange(times, device=device)
    rows = line[:, None] % query_tiles * times + small < tiles.query_tiles
    columns = tile[:, None] * times + small < tiles.key_tiles
    exists = (rows[:, :, None] & columns[:, None]).flatten(1)
    partial = ((code != 1) & exists).any(1)
    last = torch.stack([line % query_tiles == query_tiles - 1, tile == key_tiles - 1], dim=1)
    bits, pattern = _joined(tiles, code[partial], last[partial], size)
    value = torch.full_like(place, FULL)
    value[partial] = pattern
    return gathered(size, tiles.queries, tiles.keys, tiles.group, tiles.groups, line, tile, value, bits)


def gathered(
    size: int,
    queries: int,
    keys: int,
    group: Tensor,
    groups: int,
    line: Tensor,
    tile: Tensor,
    value: Tensor,
    patterns: Tensor,
) -> Tiles:
    """Tiles from single ones that are not empty, in ascending order of line and place.

    Args:
        line, tile: int64 [N], its line of query tiles among all groups', and its place there.
        value: [N], its pattern, or FULL.
        Others as in `Tiles`; groups: how many there are.
    """
    query_tiles, key_tiles = -(-queries // size), -(-keys // size)
    turned = torch.sort((line // query_tiles * key_tiles + tile) * query_tiles + line % query_tiles)
    one = torch.ones_like(tile)
    column, place = turned.values // query_tiles, turned.values % query_tiles
    return Tiles(
        size=size,
        queries=queries,
        keys=keys,
        group=group,
        rows=merged(line, tile, one, value, groups * query_tiles),
        columns=merged(column, place, one, value[turned.indices], groups * key_tiles),
        patterns=patterns,
    )


def _joined(tiles: Tiles, code: Tensor, last: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Distinct patterns of large tiles, and which of them each has.

    Args:
        code: int64 [N, times²], of the small tiles of each: 0 empty, 1 full, 2 + its pattern.
        last: bool [N, 2], whether it is the last along the queries, and along the keys.
    """
    times = size // tiles.size
    distinct, which = torch.unique(torch.cat([code, last.long()], dim=1), dim=0, return_inverse=True)
    table = torch.cat([tiles.patterns.new_full((2, *tiles.patterns.shape[1:]), 255), tiles.patterns])
    table[0] = 0
    bits = table[distinct[:, :-2]].unflatten(1, (times, times))  # [P, times, times, side, side / 8]
    bits = bits.transpose(2, 3).reshape(len(distinct), size, size // 8)
    inside = torch.arange(size, device=bits.device)
    rows = inside < torch.where(distinct[:, -2:-1] > 0, (tiles.queries - 1) % size + 1, size)
    columns = packed((inside < torch.where(distinct[:, -1:] > 0, (tiles.keys - 1) % size + 1, size))[:, None])
    bits = torch.where(rows[:, :, None], bits & columns, 0)
    joined, number = unique_rows(bits.flatten(1))
    return joined.view(-1, size, size // 8), number[which]


def unique_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of uint8 [N, W], W a multiple of 8, and which of them each row is: int64 [N].

    Rows are compared by a 64-bit hash, and then in full: torch's own function for this sorts whole rows.
    """
    words = rows.contiguous().view(torch.int64)
    factors = torch.arange(1, words.shape[1] + 1, device=rows.device) * -7046029254386353131 | 1
    mixed = words ^ (words >> 29)
    names, which = torch.unique((mixed * factors).sum(1), return_inverse=True)
    first = torch.full_like(names, len(rows)).scatter_reduce_(
        0, which, torch.arange(len(rows), device=rows.device), "amin"
    )
    if not torch.equal(words, words[first][which]):
        distinct, which = torch.unique(rows, dim=0, return_inverse=True)
        return distinct, which
    return rows[first], which


def runs(code: Tensor) -> Runs:
    """Runs of lines of tiles that are written out as in `codes`: int32 [lines, tiles]."""
    line, tile = code.nonzero(as_tuple=True)
    return merged(line, tile, torch.ones_like(tile), code[line, tile] - 2, len(code))


def merged(line: Tensor, first: Tensor, count: Tensor, pattern: Tensor, lines: int) -> Runs:
    """Runs in ascending order by line and first tile, with full neighbours as one."""
    fresh = torch.ones_like(line, dtype=torch.bool)
    fresh[1:] = (line[1:] != line[:-1]) | (first[1:] != first[:-1] + count[:-1])
    fresh[1:] |= (pattern[1:] != FULL) | (pattern[:-1] != FULL)
    begin = fresh.nonzero()[:, 0]
    reach = torch.cat([count.new_zeros(1), count.cumsum(0)])
    total = reach[torch.cat([begin[1:], begin.new_tensor([len(line)])])] - reach[begin] if len(begin) else begin
    start = torch.searchsorted(line[begin], torch.arange(lines + 1, device=line.device))
    return Runs(start, first[begin].int(), total.int(), pattern[begin].int())
