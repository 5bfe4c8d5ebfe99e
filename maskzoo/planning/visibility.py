"""`Visibility`: which pairs are visible, in whichever form it was found and in any that a kernel asks for."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from maskzoo.kernels import pairs as pairs_of
from maskzoo.kernels import tiles as tiles_of
from maskzoo.kernels.pairs import Pairs
from maskzoo.kernels.tiles import FULL, Tiles
from maskzoo.kernels.triton.schedule import Schedule, scheduled

MOST_DENSE_PAIRS = 2**30
"""Query–key pairs, times heads where heads differ, that may be written out one byte each."""

TILE = 64
"""Side of a plan's tiles."""

BLOCK = 128
"""Side of the tiles that the GPU kernel walks through."""


class Visibility:
    """Visible pairs of Tq queries × Tk keys for a batch and heads; forms other than the first are made when asked for.

    Args:
        found: bool [B or 1, H or 1, Tq, Tk], tiles, or a list of pairs.
    """

    def __init__(self, found: Tensor | Tiles | Pairs) -> None:
        self.found = found
        # What was found is in its place from the start: nothing is computed where a compiled model reads it.
        if isinstance(found, Tensor):
            self.dense = found
        elif isinstance(found, Tiles):
            self.tiles = found
        else:
            self.pairs = found

    def __reduce__(self) -> tuple[type[Visibility], tuple[Tensor | Tiles | Pairs]]:
        return Visibility, (self.found,)

    @cached_property
    def dense(self) -> Tensor:
        """bool [B or 1, H or 1, Tq, Tk]."""
        return tiles_of.visible(self.found) if isinstance(self.found, Tiles) else pairs_of.visible(self.pairs)

    @cached_property
    def tiles(self) -> Tiles:
        """As runs of tiles."""
        if isinstance(self.found, Tensor):
            return tiles_of.from_visible(self.found, TILE)
        return pairs_of.tiles_from(self.pairs, TILE)

    @cached_property
    def pairs(self) -> Pairs:
        """As a list."""
        return pairs_of.from_tiles(self.tiles)

    @cached_property
    def blocks(self) -> Tiles:
        """As runs of larger tiles."""
        return tiles_of.coarser(self.tiles, BLOCK)

    @cached_property
    def schedule(self) -> Schedule:
        """The larger tiles as the GPU kernel walks through them."""
        return scheduled(self.blocks)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B or 1, H or 1, Tq, Tk."""
        found = self.found
        if isinstance(found, Tensor):
            batch, heads, queries, keys = found.shape
        else:
            (batch, heads), queries, keys = found.group.shape, found.queries, found.keys
        return batch, heads, queries, keys

    @property
    def dense_fits(self) -> bool:
        """Whether all pairs may be written out."""
        return math.prod(self.shape) <= MOST_DENSE_PAIRS

    @property
    def device(self) -> torch.device:
        """Where the arrays are."""
        return self.found.device if isinstance(self.found, Tensor) else self.found.group.device

    @property
    def bytes(self) -> int:
        """Memory of all forms that have been made."""
        made = [self.__dict__[name] for name in ("dense", "tiles", "pairs", "schedule") if name in self.__dict__]
        return sum(x.numel() * x.element_size() if isinstance(x, Tensor) else x.bytes for x in made)

    @cached_property
    def seen(self) -> Tensor:
        """How many keys each query sees: int64 [B or 1, H or 1, Tq]."""
        return self._seen if isinstance(self.found, Tensor) else self._seen[self.found.group]

    @cached_property
    def _seen(self) -> Tensor:
        """The same, of each group where there are groups: int64 [G, Tq]."""
        found = self.found
        if isinstance(found, Tensor):
            return found.sum(-1)
        return found.start.diff().view(-1, found.queries) if isinstance(found, Pairs) else _seen_in_tiles(found)

    @property
    def count(self) -> int:
        """Visible pairs of all groups."""
        return int(self._seen.sum())

    @cached_property
    def empty(self) -> Tensor | None:
        """bool [B or 1, H or 1, Tq]: queries that see no key; None when there are none."""
        empty = self.seen == 0
        return empty if bool(empty.any()) else None

    @cached_property
    def form(self) -> str:
        """ "full" (every pair), "causal" (the lower triangle of a square, for all sequences and heads), or "any"."""
        _, _, queries, keys = self.shape
        if bool((self.seen == keys).all()):
            return "full"
        rising = torch.arange(1, queries + 1, device=self.device)
        # A triangle sees as many keys as it does, and none after the query.
        if queries != keys or not bool((self.seen == rising).all()):
            return "any"
        return "any" if self._looks_ahead() else "causal"

    def _looks_ahead(self) -> bool:
        found = self.found
        if isinstance(found, Tensor):
            return bool(found.triu(1).any())
        if isinstance(found, Pairs):
            return bool((found.key > found.row % found.queries).any())
        start, first, count, pattern = found.rows
        line = _line(start) % found.query_tiles
        last = first + count - 1
        ends_on_diagonal, whole = last == line, pattern == FULL
        more_than_one = found.queries - line * found.size > 1
        on_diagonal = pattern[ends_on_diagonal & ~whole].long().unique()
        return (
            bool((last > line).any())
            or bool((ends_on_diagonal & whole & more_than_one).any())
            or bool(tiles_of.unpacked(found.patterns[on_diagonal]).triu(1).any())
        )

    def to(self, device: torch.device | str) -> Visibility:
        """The same on another device."""
        if torch.device(device) == self.device:
            return self
        moved = Visibility(self.found.to(device))
        # What is known already is not found out again: that would wait for the device.
        for name in ("dense", "tiles", "pairs", "schedule"):
            if name in self.__dict__:
                setattr(moved, name, self.__dict__[name].to(device))
        moved.form, moved.empty = self.form, None if self.empty is None else self.empty.to(device)
        return moved


def _seen_in_tiles(tiles: Tiles) -> Tensor:
    """How many keys each query of each group sees: int64 [G, Tq]."""
    start, first, count, pattern = tiles.rows
    line = _line(start)
    width = ((first + count).long() * tiles.size).clamp(max=tiles.keys) - first.long() * tiles.size
    whole = torch.zeros(len(start) - 1, dtype=torch.int64, device=start.device)
    whole.index_add_(0, line, width * (pattern == FULL))
    seen = whole[:, None].repeat(1, tiles.size)
    if len(tiles.patterns):
        partial = pattern != FULL
        in_pattern = tiles_of.unpacked(tiles.patterns).sum(-1)
        seen.index_add_(0, line[partial], in_pattern[pattern[partial].long()])
    return seen.view(tiles.groups, -1)[:, : tiles.queries]


def _line(start: Tensor) -> Tensor:
    """The line of each run."""
    return torch.repeat_interleave(torch.arange(len(start) - 1, device=start.device), start.diff())
