"""The backward pass: weights are computed again, tile by tile, from the sums that the forward pass left."""

from __future__ import annotations

import triton
import triton.language as tl

from maskzoo.kernels.triton.table_gradients import collect
from maskzoo.kernels.triton.tile import (
    LOG2_E,
    bad_lines,
    capped,
    finite,
    kept_weights,
    product,
    read,
    visible_pairs,
    with_offsets,
    write,
)


@triton.jit
def delta_kernel(
    out, grad, logsum, grad_logsum, delta, bad, heads, Tq,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """What every weight of a row shares in its gradient: Σ grad · out less the gradient of the row's logarithm.

    Rows that see nothing, or whose result is NaN, get 0; where their grad is not finite, `bad.any` says so.

    Args:
        out, grad: Heads of [B, H, Tq, Dv].
        logsum, grad_logsum, delta: float32 [B, H, Tq], to base 2 the first two; grad_logsum may be None.
    """
    blocks = tl.cdiv(Tq, BLOCK_M)
    unit = (tl.program_id(0) // blocks).to(tl.int64)
    sequence, head = unit // heads, unit % heads
    first_row = tl.program_id(0) % blocks * BLOCK_M
    rows = first_row + tl.arange(0, BLOCK_M)
    mixed = read(out.at + sequence * out.b + head * out.h, out, first_row, BLOCK_M, Tq, DV, BLOCK_DV, INSIDE=False)
    g = read(grad.at + sequence * grad.b + head * grad.h, grad, first_row, BLOCK_M, Tq, DV, BLOCK_DV, INSIDE=False)
    own = tl.sum(mixed.to(tl.float32) * g.to(tl.float32), 1)
    if grad_logsum is not None:
        own -= tl.load(grad_logsum + unit * Tq + rows, mask=rows < Tq, other=0.0) * LOG2_E
    logs = tl.load(logsum + unit * Tq + rows, mask=rows < Tq, other=0.0)
    silent = logs - logs != 0
    is_bad = silent & bad_lines(g)
    tl.store(bad.any + rows * 0, 1, mask=is_bad)
    tl.store(delta + unit * Tq + rows, tl.where(silent, 0.0, own), mask=rows < Tq)


@triton.jit
def columns_kernel(
    q, k, v, grad, dk, dv, logsum, delta, bad, lines, code, stored, dense, dropout,
    heads, shared, Tq, Tk, scale, softcap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    REPAIR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values, over all query heads that share them. Scores lie keys × rows.

    Args:
        lines: Lines of query tiles by key tile, with words that lie keys × queries and ranks in `stored.place`.
        dk, dv: Heads like k and v.
        delta: from `delta_kernel`. The others as in `forward_kernel`.
    """
    if (tl.load(bad.any) != 0) != REPAIR:
        return
    blocks = tl.cdiv(Tk, BLOCK_N)
    unit = (tl.program_id(0) // blocks).to(tl.int64)
    groups = heads // shared
    sequence, own_head = unit // groups, unit % groups
    first_key = tl.program_id(0) % blocks * BLOCK_N
    keys = first_key + tl.arange(0, BLOCK_N)
    y = read(k.at + sequence * k.b + own_head * k.h, k, first_key, BLOCK_N, Tk, D, BLOCK_D, INSIDE=False)
    values = read(v.at + sequence * v.b + own_head * v.h, v, first_key, BLOCK_N, Tk, DV, BLOCK_DV, INSIDE=False)
    if REPAIR:
        y, values = finite(y), finite(values)
    own_dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    own_dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    PARTS: tl.constexpr = SIZE // BLOCK_M
    for member in range(0, shared):
        head = own_head * shared + member
        group = tl.load(lines.group + sequence * lines.group_b + head * lines.group_h)
        line = group * tl.cdiv(Tk, SIZE) + first_key // SIZE
        first, last = tl.load(lines.partial_start + line), tl.load(lines.partial_start + line + 1)
        for part in range(first * PARTS, last * PARTS):
            entry = part // PARTS
            begin = part % PARTS * BLOCK_M
            visible = visible_pairs(
                lines.words, tl.load(lines.partial_pattern + entry), keys % SIZE, begin, SIZE, BLOCK_M
            )  # fmt: skip
            own_dk, own_dv = _column_step(
                own_dk, own_dv, y, values, q, grad, logsum, delta, code, stored, dense, dropout, visible,
                first_key, tl.load(lines.partial_tile + entry) * SIZE + begin, tl.load(lines.partial_rank + entry),
                sequence, head, heads, Tq, Tk, scale, softcap,
                D, DV, BLOCK_D, BLOCK_DV, SIZE, BLOCK_M, BLOCK_N, REPAIR, PRECISION,
            )  # fmt: skip
        first, last = tl.load(lines.full_start + line), tl.load(lines.full_start + line + 1)
        for run in range(first, last):
            begin = tl.load(lines.full_first + run) * SIZE
            rank = tl.load(lines.full_rank + run)
            for step in range(0, tl.load(lines.full_count + run) * SIZE, BLOCK_M):
                own_dk, own_dv = _column_step(
                    own_dk, own_dv, y, values, q, grad, logsum, delta, code, stored, dense, dropout, None,
                    first_key, begin + step, rank + step // SIZE,
                    sequence, head, heads, Tq, Tk, scale, softcap,
                    D, DV, BLOCK_D, BLOCK_DV, SIZE, BLOCK_M, BLOCK_N, REPAIR, PRECISION,
                )  # fmt: skip
    write(dk.at + sequence * dk.b + own_head * dk.h, dk, own_dk * scale, first_key, BLOCK_N, Tk, D, BLOCK_D)
    write(dv.at + sequence * dv.b + own_head * dv.h, dv, own_dv, first_key, BLOCK_N, Tk, DV, BLOCK_DV)


@triton.jit
def _column_step(
    own_dk, own_dv, y, values, q, grad, logsum, delta, code, stored, dense, dropout, visible,
    first_key, first_row, rank, sequence, head, heads, Tq, Tk, scale, softcap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, REPAIR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    line, place = tl.arange(0, BLOCK_M)[None, :], tl.arange(0, BLOCK_N)[:, None]
    unit = sequence * heads + head
    logs, row_delta = _of_rows(logsum + unit * Tq, delta + unit * Tq, first_row + tl.arange(0, BLOCK_M), Tq)
    x = read(q.at + sequence * q.b + head * q.h, q, first_row, BLOCK_M, Tq, D, BLOCK_D, INSIDE=False)
    g = read(grad.at + sequence * grad.b + head * grad.h, grad, first_row, BLOCK_M, Tq, DV, BLOCK_DV, INSIDE=False)
    if REPAIR:
        x = finite(x)
        g = tl.where((logs < float("inf"))[:, None], g, 0.0).to(g.dtype)
    inner = product(y, tl.trans(x), None, PRECISION) * scale
    if softcap is not None:
        inner = capped(inner, softcap)
    scores = with_offsets(
        inner, code, stored, dense, sequence, head, rank, first_row, first_key, line, place, Tq, Tk, SIZE
    )  # fmt: skip
    weights = tl.exp2(scores * LOG2_E - logs[None, :])
    if visible is not None:
        weights = tl.where(visible, weights, 0.0)
    slope = product(values, tl.trans(g), None, PRECISION)
    mixed = weights
    if dropout.seed is not None:
        is_kept = kept_weights(dropout, unit, first_row + line, first_key + place, Tq, Tk)
        mixed = tl.where(is_kept, weights / dropout.kept, 0.0)
        slope = tl.where(is_kept, slope / dropout.kept, 0.0)
    own_dv = product(mixed.to(g.dtype), g, own_dv, PRECISION)
    slope = weights * (slope - row_delta[None, :])
    if softcap is not None:
        slope *= 1 - (inner / softcap) * (inner / softcap)
    if visible is not None:
        slope = tl.where(visible, slope, 0.0)
    own_dk = product(slope.to(x.dtype), x, own_dk, PRECISION)
    return own_dk, own_dv


@triton.jit
def _of_rows(logsum, delta, rows, Tq):
    """Sums and deltas of rows; a sum of +inf, so that all weights are zero, where the row is silent or beyond Tq."""
    logs = tl.load(logsum + rows, mask=rows < Tq, other=float("inf"))
    logs = tl.where(logs - logs == 0, logs, float("inf"))
    return logs, tl.load(delta + rows, mask=rows < Tq, other=0.0)


@triton.jit
def rows_kernel(
    q, k, v, grad, dq, logsum, delta, bad, lines, code, stored, dense, dropout, collected,
    heads, shared, Tq, Tk, scale, softcap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    REPAIR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of queries of one head, and its part in those of the offsets.

    Args:
        dq: Heads like q; `at` is None where it is not wanted.
        collected: Collected, where the gradients of the offsets go; None in it for those that are not wanted.
        Others as in `columns_kernel`, with Lines of key tiles by query tile.
    """
    if (tl.load(bad.any) != 0) != REPAIR:
        return
    blocks = tl.cdiv(Tq, BLOCK_M)
    block = blocks - 1 - tl.program_id(0) % blocks
    unit = (tl.program_id(0) // blocks).to(tl.int64)
    sequence, head = unit // heads, unit % heads
    first_row = block * BLOCK_M
    rows = first_row + tl.arange(0, BLOCK_M)
    x = read(q.at + sequence * q.b + head * q.h, q, first_row, BLOCK_M, Tq, D, BLOCK_D, INSIDE=False)
    g = read(grad.at + sequence * grad.b + head * grad.h, grad, first_row, BLOCK_M, Tq, DV, BLOCK_DV, INSIDE=False)
    logs, row_delta = _of_rows(logsum + unit * Tq, delta + unit * Tq, rows, Tq)
    if REPAIR:
        x = finite(x)
        g = tl.where((logs < float("inf"))[:, None], g, 0.0).to(g.dtype)
    k_at = k.at + sequence * k.b + head // shared * k.h
    v_at = v.at + sequence * v.b + head // shared * v.h
    copy = tl.program_id(0).to(tl.int64) % collected.copies
    own = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    group = tl.load(lines.group + sequence * lines.group_b + head * lines.group_h)
    line = group * tl.cdiv(Tq, SIZE) + block * BLOCK_M // SIZE
    PARTS: tl.constexpr = SIZE // BLOCK_N
    first, last = tl.load(lines.partial_start + line), tl.load(lines.partial_start + line + 1)
    for part in range(first * PARTS, last * PARTS):
        entry = part // PARTS
        begin = part % PARTS * BLOCK_N
        visible = visible_pairs(
            lines.words, tl.load(lines.partial_pattern + entry), rows % SIZE, begin, SIZE, BLOCK_N
        )  # fmt: skip
        own = _row_step(
            own, x, g, logs, row_delta, k_at, v_at, k, v, code, stored, dense, dropout, collected, copy, visible,
            first_row, tl.load(lines.partial_tile + entry) * SIZE + begin, tl.load(lines.partial_rank + entry), unit,
            sequence, head, heads, Tq, Tk, scale, softcap, dq.at is not None,
            D, DV, BLOCK_D, BLOCK_DV, SIZE, BLOCK_M, BLOCK_N, REPAIR, PRECISION,
        )  # fmt: skip
    first, last = tl.load(lines.full_start + line), tl.load(lines.full_start + line + 1)
    for run in range(first, last):
        begin = tl.load(lines.full_first + run) * SIZE
        rank = tl.load(lines.full_rank + run)
        for step in range(0, tl.load(lines.full_count + run) * SIZE, BLOCK_N):
            own = _row_step(
                own, x, g, logs, row_delta, k_at, v_at, k, v, code, stored, dense, dropout, collected, copy, None,
                first_row, begin + step, rank + step // SIZE, unit,
                sequence, head, heads, Tq, Tk, scale, softcap, dq.at is not None,
                D, DV, BLOCK_D, BLOCK_DV, SIZE, BLOCK_M, BLOCK_N, REPAIR, PRECISION,
            )  # fmt: skip
    if dq.at is not None:
        write(dq.at + sequence * dq.b + head * dq.h, dq, own * scale, first_row, BLOCK_M, Tq, D, BLOCK_D)


@triton.jit
def _row_step(
    own, x, g, logs, row_delta, k_at, v_at, k, v, code, stored, dense, dropout, collected, copy, visible,
    first_row, first_key, rank, unit, sequence, head, heads, Tq, Tk, scale, softcap, WANTED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, REPAIR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    line, place = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    INSIDE: tl.constexpr = visible is None
    y = read(k_at, k, first_key, BLOCK_N, Tk, D, BLOCK_D, INSIDE)
    values = read(v_at, v, first_key, BLOCK_N, Tk, DV, BLOCK_DV, INSIDE)
    if REPAIR:
        y, values = finite(y), finite(values)
    inner = product(x, tl.trans(y), None, PRECISION) * scale
    if softcap is not None:
        inner = capped(inner, softcap)
    scores = with_offsets(
        inner, code, stored, dense, sequence, head, rank, first_row, first_key, line, place, Tq, Tk, SIZE
    )  # fmt: skip
    weights = tl.exp2(scores * LOG2_E - logs[:, None])
    slope = product(g, tl.trans(values), None, PRECISION)
    if dropout.seed is not None:
        is_kept = kept_weights(dropout, unit, first_row + line, first_key + place, Tq, Tk)
        slope = tl.where(is_kept, slope / dropout.kept, 0.0)
    slope = weights * (slope - row_delta[:, None])
    if visible is not None:
        slope = tl.where(visible, slope, 0.0)
    collect(
        collected, copy, slope, visible, code, stored, heads, sequence, head, rank, first_row, first_key, Tq, Tk,
        SIZE, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    if softcap is not None:
        slope *= 1 - (inner / softcap) * (inner / softcap)
    if WANTED:
        own = product(slope.to(y.dtype), y, own, PRECISION)
    return own
