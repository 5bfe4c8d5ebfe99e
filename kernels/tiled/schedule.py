"""From runs of tiles to blocks of rows and chunks of keys: what is multiplied with what, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from maskzoo.kernels.tiles import FULL

SCORES = 2**18
"""Scores that are worked on at once: 1 MiB in float32, which stays in a core's cache."""

MOST_ROWS = 512
"""Query rows of a block."""

# Costs of a forward and a backward pass in nanoseconds, measured with two cores on products of width 64.
UNIT = 200_000.0  # Python and dispatch for one set of scores
LANE = 20_000.0  # the part of it that a block costs even if it is stacked with others
SOFTMAX = 0.8  # per score, whatever the width
PRODUCT = 4.5  # per score of width 64, heads together in one batched product
LARGE_PRODUCT = 1.85  # the same, one head at a time, for very many rows
HALF_SPEED = 75  # rows at which a large product has half of that speed
LARGE_ROWS, LARGE_KEYS = 128, 256  # from here on

Codes = tuple[tuple[int, ...], ...]
"""Query tiles × key tiles: 0 hidden, 1 full, 2 + pattern."""

HIDDEN, VISIBLE, FIRST_PATTERN = 0, 1, 2


@dataclass(frozen=True)
class Members:
    """Sequences and heads that read the same tiles, as places in stacks of query heads and of key/value heads."""

    queries: slice
    keys: slice
    count: int


class Lane(NamedTuple):
    """Rows of queries of some members, given as places in the folded rows."""

    members: Members
    rows: slice


@dataclass(frozen=True)
class Chunk:
    """Keys of the lanes of a block.

    Attributes:
        spans: for each lane the keys, in ascending order.
        codes: for each lane what is visible; None if all is.
    """

    spans: tuple[tuple[slice, ...], ...]
    codes: tuple[Codes, ...] | None


@dataclass(frozen=True)
class Block:
    """Rows that are worked on together: lanes of equal numbers of members, rows and keys, and the keys in chunks."""

    lanes: tuple[Lane, ...]
    chunks: tuple[Chunk, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Members, rows and keys of each lane."""
        lane = self.lanes[0]
        keys = sum(span.stop - span.start for chunk in self.chunks for span in chunk.spans[0])
        return lane.members.count, lane.rows.stop - lane.rows.start, keys


@dataclass(frozen=True)
class Line:
    """The tiles of one query tile: bit t of `seen` and `full` is key tile t; patterns of the partial ones."""

    seen: int
    full: int
    patterns: dict[int, int]


@dataclass(frozen=True)
class Extent:
    """Sizes of a call.

    Attributes:
        size: side of a tile.
        queries, keys: Tq, Tk.
        fold: query heads whose rows are folded into one.
        width: mean of the widths of keys and values.
        large: whether large single products are faster.
    """

    size: int
    queries: int
    keys: int
    fold: int
    width: float
    large: bool


def schedule(
    runs: tuple[list[int], list[int], list[int], list[int]], readers: Sequence[Sequence[Members]], extent: Extent
) -> list[Block]:
    """Blocks that cover every visible pair once.

    Args:
        runs: start, first, count and pattern of `Tiles.rows`.
        readers: for each group of lines, who reads it.
    """
    lines = _lines(*runs)
    tiles = -(-extent.queries // extent.size)
    large: list[Block] = []
    small: list[Block] = []
    for group, sets in enumerate(readers):
        own = lines[group * tiles : (group + 1) * tiles]
        parts = _partition(own, max(1, sum(members.count for members in sets)), extent)
        alone = [_cut(own[first:stop], first, 1, extent) for first, stop, apart in parts if apart]
        for members in sets:
            together = [
                _cut(own[first:stop], first, members.count, extent) for first, stop, apart in parts if not apart
            ]
            large += [Block((Lane(one, rows),), chunks) for one in _one_by_one(members) for rows, chunks in alone]
            small += [Block((Lane(members, rows),), chunks) for rows, chunks in together]
    return large + list(_stacked(small))


def readers(
    group: list[list[int]], groups: int, batch: int, heads: int, kv_heads: int
) -> tuple[int, list[list[Members]]]:
    """Who reads which group of lines.

    Returns:
        How many query heads are folded into the rows of their key/value head: all that share it, if they also share
        their tiles, else 1. And for each group the members; no two of one `Members` share a key/value head.
    """
    shared = heads // kv_heads
    of = [[row[head % len(row)] for head in range(heads)] for row in group]
    fold = shared if all(row[head] == row[head // shared * shared] for row in of for head in range(heads)) else 1
    found: list[list[list[tuple[int, int]]]] = [[[] for _ in range(shared)] for _ in range(groups)]
    for b in range(batch):
        row = of[b % len(of)]
        for head in range(0, heads, fold):
            place = (b * heads + head) // fold, b * kv_heads + head // shared
            found[row[head]][head % shared].append(place)
    return fold, [[members for places in own for members in _evenly_spaced(places)] for own in found]


def _evenly_spaced(places: list[tuple[int, int]]) -> Iterator[Members]:
    """Places (query head, key/value head) as few slices."""
    while places:
        step = (places[1][0] - places[0][0], places[1][1] - places[0][1]) if len(places) > 1 else (1, 1)
        count = 1
        while count < len(places) and all(places[count][i] - places[count - 1][i] == step[i] for i in (0, 1)):
            count += 1
        queries, keys = (slice(places[0][i], places[count - 1][i] + 1, step[i]) for i in (0, 1))
        yield Members(queries, keys, count)
        places = places[count:]


def _one_by_one(members: Members) -> list[Members]:
    """Each member by itself."""
    return [
        Members(
            slice(q := members.queries.start + i * members.queries.step, q + 1, 1),
            slice(k := members.keys.start + i * members.keys.step, k + 1, 1),
            1,
        )
        for i in range(members.count)
    ]


def _lines(start: list[int], first: list[int], count: list[int], pattern: list[int]) -> list[Line]:
    lines = []
    for begin, end in pairwise(start):
        seen = full = 0
        patterns = {}
        for run in range(begin, end):
            bits = ((1 << count[run]) - 1) << first[run]
            seen |= bits
            if pattern[run] == FULL:
                full |= bits
            else:
                patterns[first[run]] = pattern[run]
        lines.append(Line(seen, full, patterns))
    return lines


def _partition(lines: list[Line], members: int, extent: Extent) -> list[tuple[int, int, bool]]:
    """Query tiles first … stop − 1 that share a block, and whether each member is better taken by itself.

    The cheapest cut of the lines into neighbours, by dynamic programming.
    """
    most = max(1, min(16, MOST_ROWS // (extent.size * extent.fold)))
    best: list[tuple[float, int, bool]] = [(0.0, 0, False)]
    for stop in range(1, len(lines) + 1):
        seen, options = 0, []
        for first in range(stop - 1, max(-1, stop - 1 - most), -1):
            seen |= lines[first].seen
            cost, apart = _cost(stop - first, seen.bit_count(), members, extent)
            options.append((best[first][0] + cost, first, apart))
        best.append(min(options))
    parts, stop = [], len(lines)
    while stop:
        _, first, apart = best[stop]
        if any(line.seen for line in lines[first:stop]):
            parts.append((first, stop, apart))
        stop = first
    return parts[::-1]


def _cost(query_tiles: int, key_tiles: int, members: int, extent: Extent) -> tuple[float, bool]:
    """Nanoseconds for a block, and whether they hold for each member by itself."""
    if not key_tiles:
        return 0.0, False
    rows, keys = query_tiles * extent.size * extent.fold, key_tiles * extent.size
    scores, width = rows * keys, extent.width / 64
    units = scores * members / SCORES
    together = (math.ceil(units) if units > 0.5 else units) * UNIT + LANE
    together += scores * members * (SOFTMAX + PRODUCT * width)
    if not (extent.large and rows >= LARGE_ROWS and keys >= LARGE_KEYS):
        return together, False
    large = LARGE_PRODUCT * (1 + HALF_SPEED / rows)
    apart = members * (math.ceil(scores / SCORES) * UNIT + scores * (SOFTMAX + large * width))
    return min((together, False), (apart, True))


def _cut(lines: list[Line], first: int, members: int, extent: Extent) -> tuple[slice, tuple[Chunk, ...]]:
    """The rows of a block whose first query tile is `first`, and its keys in chunks."""
    size, seen, common = extent.size, 0, -1
    for line in lines:
        seen |= line.seen
        common &= line.full
    tiles = _places(seen)
    rows = slice(first * size * extent.fold, min((first + len(lines)) * size, extent.queries) * extent.fold)
    scores = members * (rows.stop - rows.start) * len(tiles) * size
    parts = min(len(tiles), -(-scores // SCORES))
    chunks = []
    for part in range(parts):
        some = tiles[len(tiles) * part // parts : len(tiles) * (part + 1) // parts]
        hidden = any(not common >> tile & 1 for tile in some)
        codes = (tuple(tuple(_code(line, tile) for tile in some) for line in lines),) if hidden else None
        chunks.append(Chunk((_spans(some, extent),), codes))
    return rows, tuple(chunks)


def _places(bits: int) -> list[int]:
    """Which bits are set."""
    places = []
    while bits:
        lowest = bits & -bits
        places.append(lowest.bit_length() - 1)
        bits ^= lowest
    return places


def _code(line: Line, tile: int) -> int:
    if line.full >> tile & 1:
        return VISIBLE
    return FIRST_PATTERN + line.patterns[tile] if tile in line.patterns else HIDDEN


def _spans(tiles: list[int], extent: Extent) -> tuple[slice, ...]:
    """Tiles as ranges of keys, neighbours joined."""
    starts = [i for i, tile in enumerate(tiles) if i == 0 or tiles[i - 1] != tile - 1]
    stops = [*starts[1:], len(tiles)]
    return tuple(
        slice(tiles[a] * extent.size, min((tiles[b - 1] + 1) * extent.size, extent.keys))
        for a, b in zip(starts, stops, strict=True)
    )


def _stacked(blocks: list[Block]) -> Iterator[Block]:
    """Small blocks of equal shape put together until their scores fill a unit."""
    waiting: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks:
        members, rows, keys = block.shape
        room = SCORES // (members * rows * keys)
        if len(block.chunks) > 1 or room < 2:
            yield block
            continue
        alike = waiting.setdefault((block.shape, block.chunks[0].codes is None), [])
        alike.append(block)
        if len(alike) == room:
            yield _joined(alike)
            alike.clear()
    for alike in waiting.values():
        if alike:
            yield _joined(alike)


def _joined(blocks: list[Block]) -> Block:
    chunks = [block.chunks[0] for block in blocks]
    codes = tuple(own for chunk in chunks for own in chunk.codes or ())
    spans = tuple(chunk.spans[0] for chunk in chunks)
    return Block(tuple(block.lanes[0] for block in blocks), (Chunk(spans, codes or None),))
