"""Attention dropout that any part of the scores can be asked for again, so that no mask is kept for the backward."""

from __future__ import annotations

import torch
from torch import Tensor


class Dropout:
    """Which weights are kept: a hash of a random number of the row and one of the key.

    Args:
        probability: of dropping a weight.
        seed: of the two sets of numbers.
        rows: shape of the rows of all queries.
        keys: shape of all keys.

    Attributes:
        kept: the share of weights that stay.
    """

    def __init__(
        self, probability: float, seed: int, rows: tuple[int, ...], keys: tuple[int, ...], device: torch.device
    ) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        self.rows, self.keys = (
            torch.randint(-(2**31), 2**31, shape, generator=generator, device=device, dtype=torch.int32)
            for shape in (rows, keys)
        )
        self.kept = 1 - probability
        self._below = round(self.kept * 2**31)

    def zero(self, weights: Tensor, rows: Tensor, keys: Tensor) -> None:
        """Set dropped weights to zero, in place.

        Args:
            weights: [n, rows, keys] or [n, keys, rows].
            rows, keys: their numbers, such that the two broadcast to the shape of the weights.
        """
        x = rows + keys
        # Two rounds of a multiplicative mixer with shifts that fill up with zeros (constants by C. Wellons, 2018).
        x ^= (x >> 16) & 0xFFFF
        x *= 0x7FEB352D
        x ^= (x >> 15) & 0x1FFFF
        x *= -0x7B935975  # 0x846CA68B
        x = (x >> 1) & 0x7FFFFFFF
        keep = x.sub_(self._below) >> 31
        bits = torch.int64 if weights.dtype == torch.float64 else torch.int32
        weights.view(bits).bitwise_and_(keep.to(bits))
