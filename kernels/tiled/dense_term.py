"""Offsets that are brought as a tensor: a block is a part of it."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.kernels.offsets import LOG2_E
from maskzoo.kernels.tiled.lying import Lying, Part, ranges


class DenseBlocks:
    """A tensor that broadcasts to [B, H, Tq, Tk]; a `Term`."""

    def __init__(self, dense: Tensor, lying: Lying, dtype: torch.dtype, wanted: bool) -> None:
        self._lying = lying
        self._shape = dense.shape
        dense = dense[(None,) * (4 - dense.dim())]
        self._dense = dense
        self._total = dense.new_zeros(dense.shape, dtype=dtype) if wanted else None
        self.shared = len(dense) == 1

    def add(self, scores: Tensor, part: Part) -> None:
        own = self._lines(self._dense, part)
        own = ranges(own, part.keys) if own.shape[3] > 1 else own
        heads = self._lying.heads(part)
        own = own.expand(-1, heads.stop - heads.start, -1, -1)
        scores.add_(self._lying.turned(own), alpha=LOG2_E)

    def collect(self, slope: Tensor, part: Part) -> None:
        assert self._total is not None
        # [sequences, stacks, keys, queries, fold] → [sequences, heads, queries, keys].
        own = slope.permute(0, 1, 4, 3, 2).flatten(1, 2)
        total, begin = self._lines(self._total, part), 0
        if total.shape[3] == 1:
            total += own.sum_to_size(total.shape)
            return
        for span in part.keys:
            length = span.stop - span.start
            target = total[..., span]
            target += own[..., begin : begin + length].sum_to_size(target.shape)
            begin += length

    def gradient(self) -> Tensor | None:
        return None if self._total is None else self._total.view(self._shape)

    def _lines(self, x: Tensor, part: Part) -> Tensor:
        """The part's sequence, heads and queries of x, where it does not broadcast."""
        places = slice(part.sequence, part.sequence + 1), self._lying.heads(part), part.queries
        return x[tuple(place if side > 1 else slice(None) for place, side in zip(places, x.shape[:3], strict=True))]
