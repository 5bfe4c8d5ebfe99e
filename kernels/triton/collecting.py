"""The gradients of the offsets on the host: room for whole numbers, and their unit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskzoo.kernels.offsets import LOG2_E, Offsets
from maskzoo.kernels.triton.arguments import Collected
from maskzoo.kernels.triton.schedule import Schedule

MOST_COPIED, MOST_COPIES = 2**23, 32
"""Entries of all copies of a table's gradient, and copies: programs that add to one entry wait for one another."""

LARGEST_SUM = 61
"""Binary logarithm of what no sum of whole numbers exceeds."""


class Collecting:
    """Room for the gradients of the offsets that are wanted.

    No |gradient of a score| sums up along a row to more than 2 · |grad|₁ · max |v| / kept, with what a gradient of the
    row's logarithm adds, because weights sum up to one. That gives the unit in which no sum overflows.

    Args:
        grad, grad_logsum, logsum: of the rows; those that see nothing do not count.
        v: [B, Hkv, Tk, Dv]; keys that nobody sees do not count.
        wanted: whether the gradients of the code table, the stored table and the dense tensor are.
    """

    def __init__(
        self,
        grad: Tensor,
        grad_logsum: Tensor | None,
        logsum: Tensor,
        v: Tensor,
        schedule: Schedule,
        offsets: Offsets,
        kept: float,
        wanted: Sequence[bool],
    ) -> None:
        self._offsets = offsets
        self._bound = _bound(grad, grad_logsum, logsum, v, schedule, kept) if any(wanted) else None
        # 2^126 is the largest power of two whose inverse float32 holds.
        exponent = None if self._bound is None else (LARGEST_SUM - self._bound.log2()).floor().clamp(-126, 126)
        self._unit = None if exponent is None else exponent.exp2()
        code, stored, dense = offsets.code, offsets.stored, offsets.dense
        self._code = _copies(code.table) if wanted[0] and code is not None else None
        self._stored = _copies(stored.table) if wanted[1] and stored is not None else None
        self._dense: Tensor | None = None
        if wanted[2] and dense is not None:
            shape = (*grad.shape[:3], v.shape[2])
            single = tuple(dense.shape) == shape
            self._dense = torch.zeros(dense.shape, dtype=torch.float32 if single else torch.int64, device=dense.device)
        self.into = self._arguments(shape=(*grad.shape[:3], v.shape[2]))

    def gradients(self) -> list[Tensor | None]:
        """Of the code table, the stored table and the dense tensor, float32."""
        code, stored = (None if sums is None else self._float(sums.sum(0)) for sums in (self._code, self._stored))
        dense = self._dense
        return [code, stored, self._float(dense) if dense is not None and dense.dtype == torch.int64 else dense]

    def _float(self, sums: Tensor) -> Tensor:
        assert self._bound is not None and self._unit is not None
        # A bound that is not finite comes of a gradient that is not, and of that nothing is known.
        return torch.where(self._bound.isfinite(), sums.double() / self._unit, torch.nan).float()

    def _arguments(self, shape: tuple[int, ...]) -> Collected:
        copies = next((len(sums) for sums in (self._code, self._stored) if sums is not None), 1)
        unit = None if self._unit is None else self._unit.float()
        if self._dense is None:
            return Collected(unit, copies, self._code, self._stored, None, 0, 0, None, None)
        sizes, strides = self._dense.shape, self._dense.stride()
        b, h, q, k = (
            stride if size > 1 or whole == 1 else None
            for size, stride, whole in zip(sizes, strides, shape, strict=True)
        )
        return Collected(unit, copies, self._code, self._stored, self._dense, b or 0, h or 0, q, k)


def _bound(
    grad: Tensor, grad_logsum: Tensor | None, logsum: Tensor, v: Tensor, schedule: Schedule, kept: float
) -> Tensor:
    """float64 []: what the sum of all |gradients of a score| does not exceed."""
    largest = torch.linalg.vector_norm(v, torch.inf, dim=-1, dtype=torch.float32)  # [B, Hkv, Tk]
    seen = schedule.seen[schedule.group.long()]  # [B or 1, H or 1, Tk]
    if seen.shape[1] > 1:
        seen = seen.unflatten(1, (v.shape[1], -1)).any(2)
    largest = largest.where(seen & largest.isfinite(), 0).amax()
    by_row = torch.linalg.vector_norm(grad, 1, dim=-1, dtype=torch.float32).double() * (2 / kept) * largest
    if grad_logsum is not None:
        by_row = by_row + grad_logsum.abs().double() * LOG2_E
    return by_row.where(logsum.isfinite(), 0).sum()


def _copies(table: Tensor) -> Tensor:
    heads, entries = table.shape
    copies = max(1, min(MOST_COPIES, MOST_COPIED // max(1, heads * entries)))
    return torch.zeros(copies, heads, entries, dtype=torch.int64, device=table.device)
