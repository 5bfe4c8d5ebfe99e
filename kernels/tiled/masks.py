"""Hiding scores by integer bits: faster than `masked_fill`, and neither NaN nor overflow gets through."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.kernels.tiled.schedule import FIRST_PATTERN, VISIBLE, Codes

MOST_KEPT = 32
"""Masks kept for other blocks of the same call: regular rules repeat a few."""


class Masks:
    """Masks of blocks, for scores of one floating type.

    Args:
        patterns: of the tiles, uint8 [P, size, size / 8].
        fold: query heads folded into the rows: each row of a pattern stands for so many rows of scores.
        dtype: of the scores.
        transposed: whether the scores are keys × rows.
    """

    def __init__(self, patterns: Tensor, fold: int, dtype: torch.dtype, transposed: bool) -> None:
        self.size, self._fold, self.transposed = patterns.shape[1], fold, transposed
        plain = torch.zeros(FIRST_PATTERN, *patterns.shape[1:], dtype=torch.uint8, device=patterns.device)
        plain[VISIBLE] = 255
        self._table = torch.cat([plain, patterns])
        self._bits = torch.int64 if dtype == torch.float64 else torch.int32
        self._lowest = torch.full((), -torch.inf, dtype=dtype).view(self._bits).item()
        self._kept: dict[tuple[Codes, ...], tuple[Tensor, Tensor]] = {}

    def zero(self, scores: Tensor, codes: tuple[Codes, ...] | None) -> None:
        """Set hidden scores [n, rows, keys] to zero, in place."""
        if codes is not None:
            self._view(scores, codes).bitwise_and_(self._bits_of(codes, scores)[0])

    def hide(self, scores: Tensor, codes: tuple[Codes, ...] | None) -> None:
        """Set hidden scores [n, rows, keys] to -inf, in place."""
        if codes is not None:
            keep, lowest = self._bits_of(codes, scores)
            self._view(scores, codes).bitwise_and_(keep).bitwise_or_(lowest)

    def visible(self, codes: tuple[Codes, ...], rows: int, keys: int) -> Tensor:
        """bool [lanes, 1, rows, keys]; dimensions as in the scores."""
        return self._expanded(codes)[:, :, :rows, :keys].bool()

    def _view(self, scores: Tensor, codes: tuple[Codes, ...]) -> Tensor:
        return scores.view(self._bits).unflatten(0, (len(codes), -1))

    def _bits_of(self, codes: tuple[Codes, ...], scores: Tensor) -> tuple[Tensor, Tensor]:
        """-1 where visible and 0 where hidden; and 0 where visible, the bits of -inf where hidden."""
        if codes not in self._kept:
            if len(self._kept) == MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            keep = self._expanded(codes)[:, :, : scores.shape[1], : scores.shape[2]]
            self._kept[codes] = keep, ~keep & self._lowest
        return self._kept[codes]

    def _expanded(self, codes: tuple[Codes, ...]) -> Tensor:
        """-1 or 0: [lanes, 1, rows, keys], or keys × rows; whole tiles."""
        index = torch.tensor(codes, device=self._table.device)  # [lanes, query tiles, key tiles]
        packed = self._table[index].transpose(2, 3).flatten(3, 4).flatten(1, 2)  # [lanes, queries, keys / 8]
        # A bit moved to the sign spreads over the whole number when it is moved back.
        places = torch.arange(31, 23, -1, dtype=torch.int32, device=packed.device)
        keep = (packed.int()[..., None] << places >> 31).flatten(2)
        keep = keep.repeat_interleave(self._fold, dim=1) if self._fold > 1 else keep
        keep = keep.mT.contiguous() if self.transposed else keep
        return keep.to(self._bits)[:, None]
