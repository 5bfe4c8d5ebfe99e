"""The forward pass: an online softmax (Milakov & Gimelshein 2018; Dao 2023) over the visible tiles of a query block."""

from __future__ import annotations

import triton
import triton.language as tl

from maskzoo.kernels.triton.tile import (
    FLOAT32_LOWEST,
    LOG2_E,
    bad_lines,
    capped,
    finite,
    kept_weights,
    note,
    product,
    read,
    visible_pairs,
    with_offsets,
    write,
)


@triton.jit
def forward_kernel(
    q, k, v, out, logsum, bad, lines, code, stored, dense, dropout,
    heads, shared, Tq, Tk, scale, softcap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    REPAIR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head.

    Without REPAIR it also says whether an input is not finite: each program looks at its own queries and at its share
    of the keys. With REPAIR it does nothing unless one is, and then gives each row what it has a right to: NaN where it
    sees a position that is not finite in any head, else its sum with zeros in place of what is not finite.

    Args:
        q, k, v, out: Heads of [B, H, Tq, D], [B, Hkv, Tk, D], [B, Hkv, Tk, Dv], [B, H, Tq, Dv].
        logsum: float32 [B, H, Tq], the binary logarithm of each row's sum; −inf for an empty row, NaN for a spoiled
            one.
        bad: Bad, zeros at first.
        lines: Lines of key tiles by query tile.
        code, stored, dense, dropout: as named; None in them where there is none.
        heads, shared: H, and how many query heads share a key/value head.
        softcap: None for none.
        BLOCK_M, BLOCK_N: queries and keys of a block, divisors of SIZE.
    """
    if REPAIR and tl.load(bad.any) == 0:
        return
    # The last queries first: under a causal rule they have the most to do.
    blocks = tl.cdiv(Tq, BLOCK_M)
    block = blocks - 1 - tl.program_id(0) % blocks
    unit = (tl.program_id(0) // blocks).to(tl.int64)
    sequence, head = unit // heads, unit % heads
    first_row = block * BLOCK_M
    rows = first_row + tl.arange(0, BLOCK_M)
    k_at = k.at + sequence * k.b + head // shared * k.h
    v_at = v.at + sequence * v.b + head // shared * v.h
    x = read(q.at + sequence * q.b + head * q.h, q, first_row, BLOCK_M, Tq, D, BLOCK_D, INSIDE=False)
    if REPAIR:
        x = finite(x)
    else:
        _report(
            bad, x, rows, Tq, k_at, v_at, k, v, sequence, head % shared == 0, block, blocks, Tk,
            D, DV, BLOCK_D, BLOCK_DV, BLOCK_N,
        )  # fmt: skip

    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.zeros([BLOCK_M], tl.float32) + FLOAT32_LOWEST
    spoiled = tl.zeros([BLOCK_M], tl.int32)
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
        acc, total, peak, spoiled = _step(
            acc, total, peak, spoiled, x, k_at, v_at, k, v, bad, code, stored, dense, dropout, visible,
            first_row, tl.load(lines.partial_tile + entry) * SIZE + begin, tl.load(lines.partial_rank + entry), unit,
            sequence, head, Tq, Tk, scale, softcap,
            D, DV, BLOCK_D, BLOCK_DV, SIZE, BLOCK_M, BLOCK_N, REPAIR, PRECISION,
        )  # fmt: skip
    first, last = tl.load(lines.full_start + line), tl.load(lines.full_start + line + 1)
    for run in range(first, last):
        begin = tl.load(lines.full_first + run) * SIZE
        rank = tl.load(lines.full_rank + run)
        for step in range(0, tl.load(lines.full_count + run) * SIZE, BLOCK_N):
            acc, total, peak, spoiled = _step(
                acc, total, peak, spoiled, x, k_at, v_at, k, v, bad, code, stored, dense, dropout, None,
                first_row, begin + step, rank + step // SIZE, unit,
                sequence, head, Tq, Tk, scale, softcap,
                D, DV, BLOCK_D, BLOCK_DV, SIZE, BLOCK_M, BLOCK_N, REPAIR, PRECISION,
            )  # fmt: skip

    acc /= tl.where(total > 0, total * dropout.kept, 1.0)[:, None]
    logs = peak + tl.log2(total)
    if REPAIR:
        own = tl.load(bad.query + sequence * Tq + rows, mask=rows < Tq, other=0) != 0
        is_spoiled = (spoiled != 0) | (own & (total > 0))
        acc = tl.where(is_spoiled[:, None], float("nan"), acc)
        logs = tl.where(is_spoiled, float("nan"), logs)
    write(out.at + sequence * out.b + head * out.h, out, acc, first_row, BLOCK_M, Tq, DV, BLOCK_DV)
    tl.store(logsum + unit * Tq + rows, logs, mask=rows < Tq)


@triton.jit
def _step(
    acc, total, peak, spoiled, x, k_at, v_at, k, v, bad, code, stored, dense, dropout, visible,
    first_row, first_key, rank, unit, sequence, head, Tq, Tk, scale, softcap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, REPAIR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running sums after BLOCK_N more keys. visible: None where every pair is."""
    line, place = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    INSIDE: tl.constexpr = visible is None
    y = read(k_at, k, first_key, BLOCK_N, Tk, D, BLOCK_D, INSIDE)
    if REPAIR:
        y = finite(y)
    scores = product(x, tl.trans(y), None, PRECISION) * scale
    if softcap is not None:
        scores = capped(scores, softcap)
    scores = with_offsets(
        scores, code, stored, dense, sequence, head, rank, first_row, first_key, line, place, Tq, Tk, SIZE
    )  # fmt: skip
    scores *= LOG2_E
    if visible is not None:
        scores = tl.where(visible, scores, float("-inf"))
    highest = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - highest[:, None])
    shrink = tl.exp2(peak - highest)
    total = total * shrink + tl.sum(weights, 1)
    if dropout.seed is not None:
        is_kept = kept_weights(dropout, unit, first_row + line, first_key + place, Tq, Tk)
        weights = tl.where(is_kept, weights, 0.0)
    values = read(v_at, v, first_key, BLOCK_N, Tk, DV, BLOCK_DV, INSIDE)
    if REPAIR:
        values = finite(values)
        keys = first_key + place
        is_bad = tl.load(bad.key + sequence * Tk + keys, mask=keys < Tk, other=0) != 0
        pairs = is_bad & (first_row + line < Tq)
        if visible is not None:
            pairs = pairs & visible
        spoiled |= tl.max(pairs.to(tl.int32), 1)
    acc = acc * shrink[:, None]
    acc = product(weights.to(values.dtype), values, acc, PRECISION)
    return acc, total, highest, spoiled


@triton.jit
def _report(
    bad, x, rows, Tq, k_at, v_at, k, v, sequence, is_first_of_group, block, blocks, Tk,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Note down which of the program's queries, and of its share of the keys, are not finite."""
    note(bad.query + sequence * Tq, bad.any, rows, bad_lines(x))
    if is_first_of_group:
        for first in range(block * BLOCK_N, Tk, blocks * BLOCK_N):
            is_bad = bad_lines(read(k_at, k, first, BLOCK_N, Tk, D, BLOCK_D, INSIDE=False))
            is_bad |= bad_lines(read(v_at, v, first, BLOCK_N, Tk, DV, BLOCK_DV, INSIDE=False))
            note(bad.key + sequence * Tk, bad.any, first + tl.arange(0, BLOCK_N), is_bad)
