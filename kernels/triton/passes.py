"""The passes from the host: what is allocated, and which kernels are launched with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from maskzoo.kernels.offsets import Offsets, StoredTerm
from maskzoo.kernels.triton import arguments
from maskzoo.kernels.triton.arguments import Bad, Code, Dense, Dropout, Lines, Stored
from maskzoo.kernels.triton.backward import columns_kernel, delta_kernel, rows_kernel
from maskzoo.kernels.triton.collecting import Collecting
from maskzoo.kernels.triton.configurations import Configuration
from maskzoo.kernels.triton.decode import join_kernel, split_kernel
from maskzoo.kernels.triton.device import multiprocessors, precision
from maskzoo.kernels.triton.forward import forward_kernel
from maskzoo.kernels.triton.schedule import Schedule
from maskzoo.kernels.triton.tuning import chosen

MOST_SPLIT_ROWS, LEAST_SPLIT_TILES, MOST_SPLITS = 64, 4, 64
"""Rows that read the same keys up to which keys are split; tiles of keys from which they are; parts."""


@dataclass(frozen=True)
class Call:
    """What both passes of one call share.

    Attributes:
        schedule: of Tq queries and Tk keys.
        offsets: what is added to the scores.
        seed: int64 [1] on the device of the inputs; None without dropout.
        softcap: None for none.
    """

    schedule: Schedule
    offsets: Offsets
    scale: float
    softcap: float | None
    dropout_p: float
    seed: Tensor | None

    @property
    def dropout(self) -> Dropout:
        """As the kernels take it."""
        kept = 1 - self.dropout_p
        return Dropout(self.seed, min(round(kept * 2**32), 2**32 - 1), kept)

    @property
    def features(self) -> str:
        """What its kernels are compiled for, besides widths and dtype."""
        given = self.offsets.code, self.offsets.stored, self.offsets.dense, self.softcap, self.seed
        names = ("code", "stored", "dense", "softcap", "dropout")
        return " ".join(name for name, value in zip(names, given, strict=True) if value is not None) or "plain"

    def terms(self, shape: tuple[int, ...], by_columns: bool = False) -> tuple[Code, Stored, Dense]:
        """The offsets as the kernels take them; shape: [B, H, Tq, Tk]."""
        stored, place = self.offsets.stored, None
        if stored is not None:
            assert isinstance(stored, StoredTerm), "an index by pairs is read by the kernel 'edges'"
            place = stored.place.index_select(0, self.schedule.crossing) if by_columns else stored.place.contiguous()
        return (
            arguments.code(self.offsets.code),
            arguments.stored(stored, place),
            arguments.dense(self.offsets.dense, shape),
        )

    def lines(self, by_columns: bool = False) -> Lines:
        """One side of the schedule as the kernels take it."""
        side = self.schedule.columns if by_columns else self.schedule.rows
        return arguments.lines(self.schedule.group, side)


def blocks(width: int) -> int:
    """A head's width as the kernels pad it."""
    return max(16, triton.next_power_of_2(width))


def new_bad(q: Tensor, k: Tensor) -> list[Tensor]:
    """Nothing found yet: the arrays of `Bad`."""
    return [
        torch.zeros(q.shape[0], q.shape[2], dtype=torch.uint8, device=q.device),
        torch.zeros(k.shape[0], k.shape[2], dtype=torch.uint8, device=q.device),
        torch.zeros(1, dtype=torch.int32, device=q.device),
    ]


def like_queries(q: Tensor, width: int) -> Tensor:
    """Room for [B, H, Tq, width], in the order in which q's heads and positions lie."""
    B, H, T, _ = q.shape
    if q.stride(1) < q.stride(2):
        return q.new_empty(B, T, H, width).transpose(1, 2)
    return q.new_empty(B, H, T, width)


def forward_pass(q: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, list[Tensor]]:
    """out, the binary logarithm of each row's sum, and what is not finite."""
    B, H, Tq, D = q.shape
    Tk, DV = k.shape[2], v.shape[3]
    out, logsum, bad = like_queries(q, DV), q.new_empty(B, H, Tq, dtype=torch.float32), new_bad(q, k)

    terms = call.terms((B, H, Tq, Tk))

    # One axis of programs: any other holds 65,535 at most.
    def run(own: Configuration, repair: bool = False) -> None:
        forward_kernel[(triton.cdiv(Tq, own.block_m) * B * H,)](
            *map(arguments.heads, (q, k, v, out)), logsum, Bad(*bad), call.lines(), *terms,
            call.dropout, H, H // k.shape[1], Tq, Tk, call.scale, call.softcap,
            **_shapes(D, DV, call, own), REPAIR=repair, PRECISION=precision(q),
            num_warps=own.warps, num_stages=own.stages,
        )  # fmt: skip

    splits = split_over(q, k, call.schedule)
    own = chosen("forward", max(blocks(D), blocks(DV)), q, call.features, run)
    if splits > 1:
        _split_pass(q, k, v, out, logsum, bad, call, terms, splits)
    else:
        run(own)
    run(own, repair=True)
    return out, logsum, bad


def split_over(q: Tensor, k: Tensor, schedule: Schedule) -> int:
    """Over how many programs the keys of a row are split: 1 unless there are few rows and many keys."""
    B, H, Tq, _ = q.shape
    fold = _fold(q, k, schedule)
    key_tiles = triton.cdiv(k.shape[2], schedule.size)
    if fold * Tq > MOST_SPLIT_ROWS or key_tiles < LEAST_SPLIT_TILES:
        return 1
    free = 2 * multiprocessors(q.device) // (B * H // fold)
    return max(1, min(free, key_tiles // 2, MOST_SPLITS))


def _fold(q: Tensor, k: Tensor, schedule: Schedule) -> int:
    """How many heads read the same keys and the same tiles."""
    return q.shape[1] // k.shape[1] if schedule.group.shape[1] == 1 else 1


def _split_pass(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsum: Tensor,
    bad: list[Tensor],
    call: Call,
    terms: tuple[Code, Stored, Dense],
    splits: int,
) -> None:
    """The forward pass with the keys split over programs; fills out, logsum and bad."""
    (B, H, Tq, D), DV, fold = q.shape, v.shape[3], _fold(q, k, call.schedule)
    rows, units = max(16, triton.next_power_of_2(fold * Tq)), B * H // fold
    sums = q.new_empty(units, splits, rows, DV, dtype=torch.float32)
    peaks, totals = (q.new_empty(units, splits, rows, dtype=torch.float32) for _ in range(2))
    wide = max(blocks(D), blocks(DV)) * q.element_size() > 256
    split_kernel[(splits, units)](
        *map(arguments.heads, (q, k, v)), sums, peaks, totals, Bad(*bad), call.lines(),
        *terms, call.dropout, H, H // k.shape[1], fold, Tq, k.shape[2],
        call.scale, call.softcap, D=D, DV=DV, BLOCK_D=blocks(D), BLOCK_DV=blocks(DV), SIZE=call.schedule.size,
        ROWS=rows, BLOCK_N=32 if wide else 64, PRECISION=precision(q), num_warps=4, num_stages=2,
    )  # fmt: skip
    join_kernel[(units, fold * Tq)](
        sums, peaks, totals, arguments.heads(out), logsum, H, fold, Tq, splits, 1 - call.dropout_p,
        DV=DV, BLOCK_DV=blocks(DV), ROWS=rows, SPLITS=triton.next_power_of_2(splits),
    )  # fmt: skip


def backward_pass(
    grad: Tensor,
    grad_logsum: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsum: Tensor,
    bad: list[Tensor],
    call: Call,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of q, k, v, both tables and the dense tensor, those that are needed.

    Args:
        grad_logsum: gradient of `logsum`; None for zeros.
        bad: from the forward pass; not changed.
    """
    B, H, Tq, D = q.shape
    Tk, DV, shared = k.shape[2], v.shape[3], H // k.shape[1]
    bad = [*bad[:2], bad[2].clone()]
    grad_logsum = None if grad_logsum is None else grad_logsum.contiguous()
    delta = torch.empty_like(logsum)
    rows = 64
    delta_kernel[(triton.cdiv(Tq, rows) * B * H,)](
        arguments.heads(out), arguments.heads(grad), logsum, grad_logsum, delta, Bad(*bad), H, Tq,
        DV=DV, BLOCK_DV=blocks(DV), BLOCK_M=rows,
    )  # fmt: skip
    numbers = H, shared, Tq, Tk, call.scale, call.softcap
    shape, width = (B, H, Tq, Tk), max(blocks(D), blocks(DV))
    found: list[Tensor | None] = [None] * 6
    if needed[1] or needed[2]:
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        by_columns = call.terms(shape, by_columns=True)

        def run_columns(own: Configuration, repair: bool = False) -> None:
            columns_kernel[(triton.cdiv(Tk, own.block_n) * B * k.shape[1],)](
                *map(arguments.heads, (q, k, v, grad, dk, dv)), logsum, delta, Bad(*bad),
                call.lines(by_columns=True), *by_columns, call.dropout, *numbers,
                **_shapes(D, DV, call, own), REPAIR=repair, PRECISION=precision(q),
                num_warps=own.warps, num_stages=own.stages,
            )  # fmt: skip

        own = chosen("columns", width, q, call.features, run_columns)
        run_columns(own)
        run_columns(own, repair=True)
        found[1:3] = dk, dv
    if needed[0] or any(needed[3:]):
        dq = torch.empty_like(q) if needed[0] else None
        kept, by_rows = 1 - call.dropout_p, call.terms(shape)

        def collecting() -> Collecting:
            return Collecting(grad, grad_logsum, logsum, v, call.schedule, call.offsets, kept, needed[3:])

        def run_rows(own: Configuration, repair: bool = False, gathered: Collecting | None = None) -> None:
            rows_kernel[(triton.cdiv(Tq, own.block_m) * B * H,)](
                *map(arguments.heads, (q, k, v, grad)), arguments.heads(dq), logsum, delta, Bad(*bad),
                call.lines(), *by_rows, call.dropout, (gathered or collecting()).into, *numbers,
                **_shapes(D, DV, call, own), REPAIR=repair, PRECISION=precision(q),
                num_warps=own.warps, num_stages=own.stages,
            )  # fmt: skip

        own = chosen("tables" if any(needed[3:]) else "rows", width, q, call.features, run_rows)
        gathered = collecting()
        run_rows(own, gathered=gathered)
        run_rows(own, repair=True, gathered=gathered)
        found[0] = dq
        found[3:] = gathered.gradients()
    return found


def _shapes(D: int, DV: int, call: Call, configuration: Configuration) -> dict[str, int]:
    """What a kernel is compiled for."""
    size = call.schedule.size
    assert size % configuration.block_m == size % configuration.block_n == 0, "a block reaches over a tile"
    return {
        "D": D,
        "DV": DV,
        "BLOCK_D": blocks(D),
        "BLOCK_DV": blocks(DV),
        "SIZE": size,
        "BLOCK_M": configuration.block_m,
        "BLOCK_N": configuration.block_n,
    }
