"""Indices of biases that are stored pair by pair: by tiles, by a list of pairs, or for all pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maskzoo.kernels.pairs import Pairs
from maskzoo.kernels.tiles import Tiles, unpacked
from maskzoo.planning.numbering import JointNumbers, distinct, joined, smallest

MOST_STORED = 2**31
"""Bytes of the indices that a plan may store."""

PAIRS_AT_ONCE = 2**20
"""Pairs whose indices are worked out at once, each as a few int64."""

Source = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An integer for any pairs: sequence [P, 1, 1], query places [P, n, 1], key places [P, 1, m] -> int64, to [P, n, m]."""


@dataclass(frozen=True)
class Stored:
    """A joint index of several integers.

    Attributes:
        index: the smallest integers that hold it: [P, size, size] for each distinct tile, [E] for each pair of a list,
            or [B or 1, Tq, Tk].
        place: int32, for each visible tile which of the index tiles it has; None in the other forms.
        values: int64 [M, integers]: what each index stands for.
        largest: the highest value of each integer.
    """

    index: Tensor
    place: Tensor | None
    values: Tensor
    largest: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Memory of all arrays."""
        return sum(array.nbytes for array in (self.index, self.place, self.values) if array is not None)

    def to(self, device: torch.device | str) -> Stored:
        """The same on another device."""
        place = None if self.place is None else self.place.to(device)
        return Stored(self.index.to(device), place, self.values.to(device), self.largest)


class Reading:
    """Pairs read a part at a time.

    Args:
        bias: its text, for errors.
        sources: the integers that the joint index is made of.
    """

    def __init__(self, bias: str, sources: Sequence[Source], device: torch.device) -> None:
        self._bias, self._sources, self.device = bias, sources, device
        self._joint = JointNumbers(len(sources), device)

    def part(self, sequence: Tensor, q_slot: Tensor, k_slot: Tensor, seen: Tensor | None = None) -> Tensor:
        """The joint index of pairs: int64 [P, n, m]; 0 where not seen."""
        shape = torch.broadcast_tensors(sequence, q_slot, k_slot)[0].shape
        values = [source(sequence, q_slot, k_slot).expand(shape) for source in self._sources]
        return self._joint.of(values if seen is None else [value * seen for value in values])

    def small(self, index: Tensor) -> Tensor:
        """The index in the smallest integers that hold all met so far."""
        return index.to(smallest(self._joint.count - 1))

    def stored(self, parts: Sequence[Tensor]) -> Stored:
        """All parts end to end."""
        values = self._joint.values
        return Stored(joined(parts, self._joint.count - 1), None, values, tuple(values.amax(0).tolist()))

    def check_size(self, pairs: int) -> None:
        """Raises: ValueError: more indices than a plan may hold."""
        size = pairs * smallest(self._joint.count - 1).itemsize
        if size > MOST_STORED:
            raise ValueError(
                f"the bias {self._bias} would take {size:,} bytes for the indices of its pairs; at most "
                f"{MOST_STORED:,} are allowed. Use shorter rows or a smaller batch, or write the bias as an OffsetBias"
            )


def by_tiles(reading: Reading, tiles: Tiles) -> Stored:
    """Each distinct tile of indices, and which of them every visible tile has, in the order of `Tiles.rows`."""
    line, tile, pattern = _each_tile(tiles)
    sequence, q_tile = _sequence_of(tiles.group, tiles.groups)[line // tiles.query_tiles], line % tiles.query_tiles
    full = tiles.patterns.new_full((1, tiles.size, tiles.size // 8), 255)
    bits = torch.cat([tiles.patterns, full])  # FULL is −1: the last
    inside = torch.arange(tiles.size, device=line.device)
    parts, place, met = [], [], 0
    for part in torch.arange(len(line), device=line.device).split(PAIRS_AT_ONCE // tiles.size**2):
        q_slot = (q_tile[part, None] * tiles.size + inside)[:, :, None]
        k_slot = (tile[part, None] * tiles.size + inside)[:, None]
        seen = unpacked(bits[pattern[part]]) & (q_slot < tiles.queries) & (k_slot < tiles.keys)
        slots = q_slot.clamp(max=tiles.queries - 1), k_slot.clamp(max=tiles.keys - 1)
        index = reading.part(sequence[part, None, None], *slots, seen).flatten(1)
        which, sample = distinct(index)
        parts.append(reading.small(index[sample]))
        place.append(which + met)
        met += len(sample)
        reading.check_size(met * tiles.size**2)
    found = reading.stored(parts)
    which, sample = distinct(found.index)
    index = found.index[sample].unflatten(1, (tiles.size, tiles.size))
    return replace(found, index=index, place=which[torch.cat(place)].int())


def by_pairs(reading: Reading, pairs: Pairs) -> Stored:
    """The index of each pair, in the order of `Pairs.key`."""
    reading.check_size(len(pairs.key))
    row = pairs.row
    sequence = _sequence_of(pairs.group, pairs.groups)[row // pairs.queries]
    arrays = (array.split(PAIRS_AT_ONCE) for array in (sequence, row % pairs.queries, pairs.key.long()))
    parts = zip(*arrays, strict=True)
    return reading.stored(
        [reading.small(reading.part(*(array[:, None, None] for array in part)).flatten()) for part in parts]
    )


def by_all(reading: Reading, batch: int, queries: int, keys: int) -> Stored:
    """The index of every pair."""
    reading.check_size(batch * queries * keys)
    q_slot, k_slot = (torch.arange(length, device=reading.device) for length in (queries, keys))
    found = reading.stored(
        [
            reading.small(reading.part(sequence[:, None, None], part[None, :, None], k_slot[None, None]).flatten())
            for sequence in torch.arange(batch, device=reading.device).split(1)
            for part in q_slot.split(max(1, PAIRS_AT_ONCE // keys))
        ]
    )
    return replace(found, index=found.index.view(batch, queries, keys))


def _sequence_of(group: Tensor, groups: int) -> Tensor:
    """A sequence of each group: int64 [G]. All sequences of a group have the same positions."""
    batch = torch.arange(group.shape[0], device=group.device)[:, None].expand_as(group).flatten()
    first = torch.full((groups,), group.shape[0], device=group.device)
    return first.scatter_reduce_(0, group.flatten(), batch, "amin")


def _each_tile(tiles: Tiles) -> tuple[Tensor, Tensor, Tensor]:
    """Line, key tile and pattern of every visible tile, in the order of `Tiles.rows`: int64 [N] each."""
    start, first, count, pattern = tiles.rows
    line = torch.repeat_interleave(torch.arange(len(start) - 1, device=start.device), start.diff())
    run = torch.repeat_interleave(torch.arange(len(first), device=start.device), count)
    step = torch.arange(len(run), device=start.device) - (count.cumsum(0) - count)[run]
    return line[run], first[run] + step, pattern[run].long()
