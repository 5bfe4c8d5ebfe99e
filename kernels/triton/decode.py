"""A few queries against many keys, as in decoding: the keys are split over programs, whose sums are put together."""

from __future__ import annotations

import triton
import triton.language as tl

from maskzoo.kernels.triton.tile import (
    FLOAT32_LOWEST,
    LOG2_E,
    bad_lines,
    capped,
    kept_weights,
    note,
    product,
    read,
    visible_pairs,
    with_offsets,
)


@triton.jit
def split_kernel(
    q, k, v, sums, peaks, totals, bad, lines, code, stored, dense, dropout,
    heads, shared, fold, Tq, Tk, scale, softcap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The part of some rows' sums that comes from one part of their visible tiles.

    All queries are in the first query tile. Rows are the queries of `fold` heads, which share keys and tiles, one head
    after the other.

    Args:
        sums: float32 [B · H / fold, splits, ROWS, Dv], not divided by totals.
        peaks, totals: float32 [B · H / fold, splits, ROWS].
        Others as in `forward_kernel`.
    """
    split, splits = tl.program_id(0), tl.num_programs(0)
    unit = tl.program_id(1).to(tl.int64)
    sequence, first_head = unit // (heads // fold), unit % (heads // fold) * fold
    row = tl.arange(0, ROWS)
    query, head = row % Tq, first_head + row // Tq
    d = tl.arange(0, BLOCK_D)
    real = row < fold * Tq
    q_at = q.at + sequence * q.b + (head * q.h + query * q.t)[:, None] + d[None, :] * q.d
    x = tl.load(q_at, mask=real[:, None] & (d < D)[None, :], other=0.0)
    note(bad.query + sequence * Tq, bad.any, query, bad_lines(x) & real)
    kv_head = first_head // shared
    k_at, v_at = k.at + sequence * k.b + kv_head * k.h, v.at + sequence * v.b + kv_head * v.h
    acc = tl.zeros([ROWS, BLOCK_DV], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    peak = tl.zeros([ROWS], tl.float32) + FLOAT32_LOWEST

    group = tl.load(lines.group + sequence * lines.group_b + first_head * lines.group_h)
    first, last = tl.load(lines.partial_start + group), tl.load(lines.partial_start + group + 1)
    first_run, last_run = tl.load(lines.full_start + group), tl.load(lines.full_start + group + 1)
    tiles = last - first
    for run in range(first_run, last_run):
        tiles += tl.load(lines.full_count + run)
    share = tl.cdiv(tiles, splits)
    begin, end = split * share, tl.minimum(split * share + share, tiles)
    PARTS: tl.constexpr = SIZE // BLOCK_N
    for part in range((first + begin) * PARTS, tl.minimum(first + end, last) * PARTS):
        entry = part // PARTS
        inside = part % PARTS * BLOCK_N
        visible = visible_pairs(lines.words, tl.load(lines.partial_pattern + entry), query, inside, SIZE, BLOCK_N)
        acc, total, peak = _step(
            acc, total, peak, x, k_at, v_at, k, v, bad, code, stored, dense, dropout, visible & real[:, None],
            query, tl.load(lines.partial_tile + entry) * SIZE + inside, tl.load(lines.partial_rank + entry),
            sequence, head, heads, Tq, Tk, scale, softcap, D, DV, BLOCK_D, BLOCK_DV, SIZE, BLOCK_N, PRECISION,
        )  # fmt: skip
    before = last - first
    for run in range(first_run, last_run):
        count = tl.load(lines.full_count + run)
        low, high = tl.maximum(begin - before, 0), tl.minimum(end - before, count)
        for step in range(low * SIZE, high * SIZE, BLOCK_N):
            acc, total, peak = _step(
                acc, total, peak, x, k_at, v_at, k, v, bad, code, stored, dense, dropout, None,
                query, tl.load(lines.full_first + run) * SIZE + step, tl.load(lines.full_rank + run) + step // SIZE,
                sequence, head, heads, Tq, Tk, scale, softcap, D, DV, BLOCK_D, BLOCK_DV, SIZE, BLOCK_N, PRECISION,
            )  # fmt: skip
        before += count

    at = (unit * splits + split) * ROWS + row
    e = tl.arange(0, BLOCK_DV)
    tl.store(peaks + at, peak)
    tl.store(totals + at, total)
    tl.store(sums + at[:, None] * DV + e[None, :], acc, mask=(e < DV)[None, :])


@triton.jit
def _step(
    acc, total, peak, x, k_at, v_at, k, v, bad, code, stored, dense, dropout, visible,
    query, first_key, rank, sequence, head, heads, Tq, Tk, scale, softcap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running sums after BLOCK_N more keys. visible: None where every pair is."""
    place = tl.arange(0, BLOCK_N)
    INSIDE: tl.constexpr = visible is None
    y = read(k_at, k, first_key, BLOCK_N, Tk, D, BLOCK_D, INSIDE)
    values = read(v_at, v, first_key, BLOCK_N, Tk, DV, BLOCK_DV, INSIDE)
    note(bad.key + sequence * Tk, bad.any, first_key + place, bad_lines(y) | bad_lines(values))
    scores = product(x, tl.trans(y), None, PRECISION) * scale
    if softcap is not None:
        scores = capped(scores, softcap)
    scores = with_offsets(
        scores, code, stored, dense, sequence, head[:, None], rank, 0, first_key, query[:, None], place[None, :],
        Tq, Tk, SIZE,
    )  # fmt: skip
    scores *= LOG2_E
    if visible is not None:
        scores = tl.where(visible, scores, float("-inf"))
    highest = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - highest[:, None])
    shrink = tl.exp2(peak - highest)
    total = total * shrink + tl.sum(weights, 1)
    if dropout.seed is not None:
        unit = (sequence * heads + head)[:, None]
        weights = tl.where(
            kept_weights(dropout, unit, query[:, None], first_key + place[None, :], Tq, Tk), weights, 0.0
        )  # fmt: skip
    acc = product(weights.to(values.dtype), values, acc * shrink[:, None], PRECISION)
    return acc, total, highest


@triton.jit
def join_kernel(
    sums, peaks, totals, out, logsum, heads, fold, Tq, splits, kept,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Put the parts of one row together.

    Args:
        out: Heads of [B, H, Tq, Dv]. logsum: float32 [B, H, Tq].
        SPLITS: a power of two of at least `splits`.
    """
    unit = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1)
    sequence, head = unit // (heads // fold), unit % (heads // fold) * fold + row // Tq
    query = row % Tq
    split, e = tl.arange(0, SPLITS), tl.arange(0, BLOCK_DV)
    at = (unit * splits + split) * ROWS + row
    peak = tl.load(peaks + at, mask=split < splits, other=FLOAT32_LOWEST)
    highest = tl.max(peak, 0)
    shrink = tl.exp2(peak - highest)
    total = tl.sum(tl.load(totals + at, mask=split < splits, other=0.0) * shrink, 0)
    mask = (split < splits)[:, None] & (e < DV)[None, :]
    mixed = tl.sum(tl.load(sums + at[:, None] * DV + e[None, :], mask=mask, other=0.0) * shrink[:, None], 0)
    mixed /= tl.where(total > 0, total * kept, 1.0)
    out_at = out.at + sequence * out.b + head * out.h + query * out.t + e * out.d
    tl.store(out_at, mixed.to(out.at.dtype.element_ty), mask=e < DV)
    tl.store(logsum + (sequence * heads + head) * Tq + query, highest + tl.log2(total))
