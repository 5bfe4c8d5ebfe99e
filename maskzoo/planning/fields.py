"""One integer field of the positions, cut into blocks."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

BRANCH = 8
"""A block has this many blocks of the next smaller size on each side."""


class Field:
    """A field [B, T] and what is known of its blocks of tile · BRANCHˡ positions, at every level l.

    The last block may reach beyond T: there its last value stands again, which changes no bound.
    """

    def __init__(self, values: Tensor, tile: int) -> None:
        self.values, self._tile = values, tile
        self._levels: list[tuple[Tensor, Tensor]] = []

    def bounds(self, level: int) -> tuple[Tensor, Tensor]:
        """Lowest and highest value of each block of a level: [B, blocks] each."""
        while len(self._levels) <= level:
            low, high = self._levels[-1] if self._levels else (self.values, self.values)
            step = BRANCH if self._levels else self._tile
            self._levels.append((_cut(low, step).amin(-1), _cut(high, step).amax(-1)))
        return self._levels[level]

    @cached_property
    def origin(self) -> Tensor:
        """The first value of each tile: [B, tiles]."""
        return self.values[:, :: self._tile]

    @cached_property
    def shape(self) -> Tensor:
        """A number for each tile, equal where the values are equal but for a constant: [B, tiles]."""
        rising = (_cut(self.values, self._tile) - self.origin[..., None]).flatten(0, 1)
        step = rising[:, 1]
        regular = (rising == step[:, None] * torch.arange(self._tile, device=step.device)).all(-1)
        kinds = torch.unique(step, return_inverse=True)[1]
        if not bool(regular.all()):
            irregular = torch.unique(rising[~regular], dim=0, return_inverse=True)[1]
            kinds = kinds.masked_scatter(~regular, irregular + len(step))
        return kinds.view_as(self.origin)


def _cut(values: Tensor, step: int) -> Tensor:
    """[B, T] in blocks: [B, ⌈T / step⌉, step]; the last value fills the last block."""
    beyond = -values.shape[1] % step
    if beyond:
        values = torch.cat([values, values[:, -1:].expand(-1, beyond)], dim=1)
    return values.unflatten(1, (-1, step))
