"""Keys and values of the positions that a model has already read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from maskzoo.positions import Positions

if TYPE_CHECKING:
    from maskzoo.transformer.transformer import TransformerConfig


class Cache:
    """Room for the keys and values of `capacity` positions in each of `batch` rows, allocated once and filled in place.

    It also remembers the positions themselves, so that a later query is judged by the same rule as in training. Padding
    takes a place (its segment is -1, which no query sees).

    Raises:
        ValueError: batch or capacity below 1.
    """

    def __init__(
        self,
        config: TransformerConfig,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch < 1 or capacity < 1:
            raise ValueError(
                f"a cache needs at least one row and one position, got batch={batch} and capacity={capacity}"
            )
        shape = (config.layers, batch, config.key_value_heads, capacity, config.head_width)
        self.batch, self.capacity = batch, capacity
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.at: Positions | None = None

    @property
    def length(self) -> int:
        """How many positions have been read."""
        return 0 if self.at is None else self.at.length

    def bytes(self) -> int:
        """Memory of the keys and values: 2 * batch * layers * capacity * kv_heads * head_width * bytes per number."""
        return self.keys.nbytes + self.values.nbytes

    def following(self, count: int) -> Positions:
        """The next `count` positions of every row: same segment, one index further each. An empty cache starts at 0."""
        if self.at is None:
            return Positions.tokens(count).to(self.keys.device)
        steps = torch.arange(1, count + 1, device=self.keys.device)
        return Positions(index=self.at.index[:, -1:] + steps, segment=self.at.segment[:, -1:].expand(-1, count))

    def extend(self, at: Positions) -> Positions:
        """Take in new positions, whose keys and values each layer then brings by `append`; returns all so far.

        Raises:
            ValueError: another number of rows, more positions than there is room for, or an index that is not stated.
        """
        if at.batch not in (1, self.batch):
            raise ValueError(f"the cache has {self.batch} rows and the new positions have {at.batch}")
        if self.at is not None and at.counted:
            raise ValueError(
                "positions that continue a cache must state their index; `cache.following(count)` gives them"
            )
        if self.length + at.length > self.capacity:
            raise ValueError(
                f"the cache has room for {self.capacity} positions and holds {self.length}: {at.length} more do not fit"
            )
        self.at = at if self.at is None else Positions.joined(self._every_row(self.at), self._every_row(at))
        return self.at

    def _every_row(self, at: Positions) -> Positions:
        return at if at.batch == self.batch else at.select(torch.zeros(self.batch, dtype=torch.int64, device=at.device))

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values [B, Hkv, T, D] and return all of them so far, [B, Hkv, length, D] each.

        Raises:
            ValueError: gradients would be recorded, or the numbers are of another type than the cache.
        """
        if k.requires_grad or v.requires_grad:
            raise ValueError("a cache is filled in place, which gradients do not survive: decode under torch.no_grad()")
        if k.dtype != self.keys.dtype:
            raise ValueError(
                f"the cache holds {self.keys.dtype} and the model computes keys in {k.dtype}; "
                f"make it with dtype={k.dtype}, or by model.new_cache"
            )
        start = self.length - k.shape[2]
        self.keys[layer, :, :, start : self.length] = k
        self.values[layer, :, :, start : self.length] = v
        return self.keys[layer, :, :, : self.length], self.values[layer, :, :, : self.length]
