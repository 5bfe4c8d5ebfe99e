"""Numbering of integers that occur, and finding out which of many tiles of them are equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Numbers:
    """Numbers 0, 1, 2 … for integers in the order in which parts bring them; 0 is the integer 0."""

    def __init__(self, device: torch.device) -> None:
        self.known = torch.zeros(1, dtype=torch.int64, device=device)
        """All integers met so far, ascending."""
        self._number = torch.zeros(1, dtype=torch.int64, device=device)

    def of(self, values: Tensor) -> Tensor:
        """The number of each value, int64 of the same shape."""
        place = self._place(values)
        fresh = self.known[place] != values
        if bool(fresh.any()):
            added = torch.unique(values[fresh])
            numbers = torch.arange(len(added), device=added.device) + len(self.known)
            self.known, order = torch.sort(torch.cat([self.known, added]))
            self._number = torch.cat([self._number, numbers])[order]
            place = self._place(values)
        return self._number[place]

    def _place(self, values: Tensor) -> Tensor:
        return torch.searchsorted(self.known, values).clamp_(max=len(self.known) - 1)

    @property
    def values(self) -> Tensor:
        """The integer of each number."""
        return torch.empty_like(self.known).scatter_(0, self._number, self.known)


class JointNumbers:
    """Numbers for combinations of `count` integers; 0 is the combination of zeros."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._single = [Numbers(device) for _ in range(count)]
        self._joint = [Numbers(device) for _ in range(count - 1)]

    def of(self, values: Sequence[Tensor]) -> Tensor:
        """The number of each combination, int64 of the values' shape."""
        number = self._single[0].of(values[0])
        for single, joint, more in zip(self._single[1:], self._joint, values[1:], strict=True):
            number = joint.of((number << 31) + single.of(more))
        return number

    @property
    def count(self) -> int:
        """How many there are."""
        return len((self._joint or self._single)[-1].known)

    @property
    def values(self) -> Tensor:
        """The combination of each number: int64 [M, count]."""
        number = torch.arange(self.count, device=self._single[0].known.device)
        columns = []
        for single, joint in zip(self._single[:0:-1], self._joint[::-1], strict=True):
            pair = joint.values[number]
            columns.append(single.values[pair & (2**31 - 1)])
            number = pair >> 31
        return torch.stack([self._single[0].values[number], *columns[::-1]], dim=1)


def smallest(largest: int) -> torch.dtype:
    """The smallest of uint8, int16 and int32 that holds 0 … largest."""
    return torch.uint8 if largest < 2**8 else torch.int16 if largest < 2**15 else torch.int32


def joined(parts: Sequence[Tensor], largest: int) -> Tensor:
    """Parts whose numbers reach up to `largest`, end to end."""
    return torch.cat([part.to(smallest(largest)) for part in parts])


def distinct(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the distinct tiles each of the integer tiles [N, S] is, int64 [N], and a tile of each, int64 [P].

    Tiles are told apart by a sum of random multiples, and each is then compared with what it is said to equal.
    """
    seed = 0
    while True:
        random = torch.Generator().manual_seed(seed)
        factor = torch.randint(-(2**62), 2**62, (tiles.shape[1],), generator=random).to(tiles.device)
        total = torch.cat([(part * factor).sum(1) for part in tiles.split(2**10)])
        names, which = torch.unique(total, return_inverse=True)
        place = torch.arange(len(tiles), device=tiles.device)
        sample = torch.full_like(names, len(tiles)).scatter_reduce_(0, which, place, "amin")
        twin = sample[which]
        parts = place.split(2**10)
        if all(torch.equal(tiles[part], tiles[twin[part]]) for part in parts):
            return which, sample
        seed += 1
