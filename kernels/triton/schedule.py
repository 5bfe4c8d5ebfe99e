"""`Schedule`: a plan's tiles as the GPU kernels walk through them, partly and fully visible ones apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from maskzoo.kernels.tiles import FULL, Runs, Tiles, packed, unfolded, unpacked


@dataclass(frozen=True)
class Side:
    """The tiles of each line: of each query tile, or of each key tile.

    Full tiles are wholly inside the keys: one that reaches beyond the last key has a pattern here. Ranks count a side's
    visible tiles in the order of their line and place.

    Attributes:
        partial_start: int32 [G·n + 1]: the partial tiles of line t of group g are partial_start[g·n + t] and on.
        partial_tile, partial_pattern, partial_rank: int32 [Np]: their place in the line, pattern, and rank.
        full_start: int32 [G·n + 1]: the same for runs of full tiles.
        full_first, full_count, full_rank: int32 [Nf]: first tile, how many, and rank of the first.
        words: int32 [P, size, size / 32]: patterns, lines by places; place 32c + b is bit b of word c.
    """

    partial_start: Tensor
    partial_tile: Tensor
    partial_pattern: Tensor
    partial_rank: Tensor
    full_start: Tensor
    full_first: Tensor
    full_count: Tensor
    full_rank: Tensor
    words: Tensor

    @property
    def arrays(self) -> list[Tensor]:
        """In the order of the attributes, as an operator takes them."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class Schedule:
    """Tiles for the GPU kernels.

    Attributes:
        size: side of a tile, a multiple of 32.
        group: int32 [B or 1, H or 1]: which group of lines a sequence and head reads.
        rows: key tiles by query tile; what the forward pass and the gradient of q go by.
        columns: query tiles by key tile; what the gradients of k and v go by.
        crossing: int32 [N]: for each visible tile in the order of `columns`, its rank in `rows`.
        seen: bool [G, Tk]: whether any query sees a key.
    """

    size: int
    group: Tensor
    rows: Side
    columns: Side
    crossing: Tensor
    seen: Tensor

    @property
    def bytes(self) -> int:
        """Memory of all arrays."""
        return sum(array.numel() * array.element_size() for array in self.as_list())

    def as_list(self) -> list[Tensor]:
        """All arrays, for an operator; `from_list` is the way back."""
        return [self.group, self.crossing, self.seen, *self.rows.arrays, *self.columns.arrays]

    def to(self, device: torch.device | str) -> Schedule:
        """The same on another device."""
        rows, columns = (
            Side(*(array.to(device, non_blocking=True) for array in side.arrays)) for side in (self.rows, self.columns)
        )
        group, crossing, seen = (
            array.to(device, non_blocking=True) for array in (self.group, self.crossing, self.seen)
        )
        return replace(self, group=group, rows=rows, columns=columns, crossing=crossing, seen=seen)


def from_list(arrays: Sequence[Tensor]) -> Schedule:
    """A schedule from all of its arrays."""
    group, crossing, seen, *sides = arrays
    half = len(sides) // 2
    rows, columns = Side(*sides[:half]), Side(*sides[half:])
    return Schedule(rows.words.shape[1], group, rows, columns, crossing, seen)


def scheduled(tiles: Tiles) -> Schedule:
    """The schedule of tiles, on their device.

    Raises:
        ValueError: more visible tiles than 32-bit numbers count.
    """
    count = int(tiles.rows.count.sum())
    if max(count, len(tiles.rows.start)) >= 2**31:
        raise ValueError(f"{count:,} visible tiles are more than the GPU kernel can count; use shorter rows")
    patterns, edge = tiles.patterns, None
    rest = tiles.keys % tiles.size
    if rest and bool((_ends(tiles.rows) == tiles.key_tiles).any()):
        edge = len(patterns)
        patterns = torch.cat([patterns, _edge(tiles, rest)])
    bits = unpacked(patterns)
    return Schedule(
        size=tiles.size,
        group=tiles.group.int(),
        rows=_side(tiles.rows, tiles.key_tiles if edge is not None else None, edge, bits),
        columns=_side(tiles.columns, None, None, bits.mT),
        crossing=_crossing(tiles),
        seen=_seen(tiles),
    )


def _ends(runs: Runs) -> Tensor:
    """The first tile after each run of full tiles; 0 for others."""
    return (runs.first + runs.count).where(runs.pattern == FULL, 0)


def _edge(tiles: Tiles, rest: int) -> Tensor:
    """The pattern of a full tile with `rest` keys: uint8 [1, size, size / 8]."""
    inside = torch.arange(tiles.size, device=tiles.patterns.device) < rest
    return packed(inside.expand(1, tiles.size, tiles.size))


def _side(runs: Runs, lines_end: int | None, edge: int | None, bits: Tensor) -> Side:
    start, first, count, pattern = runs
    line = torch.repeat_interleave(torch.arange(len(start) - 1, device=start.device), start.diff())
    rank = (count.cumsum(0) - count).int()
    whole = pattern == FULL
    partial = [line[~whole], first[~whole], pattern[~whole], rank[~whole]]
    if edge is not None:
        cut = whole & (first + count == lines_end)
        count = count - cut.int()
        own = [line[cut], first[cut] + count[cut], torch.full_like(first[cut], edge), rank[cut] + count[cut]]
        # An edge is the last of its line.
        order = torch.sort(torch.cat([partial[0], own[0]]), stable=True).indices
        partial = [torch.cat(pair)[order] for pair in zip(partial, own, strict=True)]
        whole = whole & (count > 0)
    numbers = torch.arange(len(start), device=start.device)
    return Side(
        partial_start=torch.searchsorted(partial[0], numbers).int(),
        partial_tile=partial[1],
        partial_pattern=partial[2],
        partial_rank=partial[3],
        full_start=torch.searchsorted(line[whole], numbers).int(),
        full_first=first[whole],
        full_count=count[whole],
        full_rank=rank[whole],
        words=_words(bits),
    )


def _words(bits: Tensor) -> Tensor:
    """bool [P, size, size] as int32 [P, size, size / 32]; one pattern of zeros where there is none."""
    words = packed(bits).contiguous().view(torch.int32)
    return words if len(words) else F.pad(words, (0, 0, 0, 0, 0, 1))


def _crossing(tiles: Tiles) -> Tensor:
    _, line, tile = unfolded(tiles.columns)
    group, column = line // tiles.key_tiles, line % tiles.key_tiles
    place = (group * tiles.query_tiles + tile) * tiles.key_tiles + column
    # Places of tiles in the order of `rows` ascend.
    return place.argsort().argsort().int()


def _seen(tiles: Tiles) -> Tensor:
    run, line, _ = unfolded(tiles.columns)
    pattern = tiles.columns.pattern[run]
    in_pattern = unpacked(torch.cat([tiles.patterns, tiles.patterns.new_full((1, *tiles.patterns.shape[1:]), 255)]))
    by_line = torch.zeros(tiles.groups * tiles.key_tiles, tiles.size, dtype=torch.int32, device=line.device)
    by_line.index_add_(0, line, in_pattern.any(1).int()[pattern.long()])  # FULL reads the last
    return by_line.view(tiles.groups, -1)[:, : tiles.keys] > 0
