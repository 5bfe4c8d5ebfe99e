"""What the kernels do with one tile of scores, whichever way it lies: rows × keys, or keys × rows.

`line` and `place` count rows and keys from the first ones of a block, int32, in two shapes that broadcast against each
other to that of the scores.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
FLOAT32_LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def wide(number):
    """A number as 64 bits: what it is multiplied by may lead beyond 32."""
    return tl.zeros([], tl.int64) + number


@triton.jit
def read(at, x, first, LINES: tl.constexpr, T, D: tl.constexpr, BLOCK_D: tl.constexpr, INSIDE: tl.constexpr):
    """Lines first … of one head of x, [LINES, BLOCK_D], zeros beyond T and D.

    Args:
        at: the head's first element.
        x: Heads, for its strides.
        INSIDE: no line is beyond T.
    """
    line, d = tl.arange(0, LINES), tl.arange(0, BLOCK_D)
    own = at + (wide(first) + line)[:, None] * x.t + d[None, :] * x.d
    if INSIDE and D == BLOCK_D:
        return tl.load(own)
    if INSIDE:
        return tl.load(own, mask=(d < D)[None, :], other=0.0)
    return tl.load(own, mask=(first + line < T)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def write(at, x, values, first, LINES: tl.constexpr, T, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """The way back: values [LINES, BLOCK_D] to lines first … of one head of x, those within T and D."""
    line, d = tl.arange(0, LINES), tl.arange(0, BLOCK_D)
    own = at + (wide(first) + line)[:, None] * x.t + d[None, :] * x.d
    tl.store(own, values.to(x.at.dtype.element_ty), mask=(first + line < T)[:, None] & (d < D)[None, :])


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """a · b + acc, or a · b where acc is None."""
    if PRECISION == "interpreted":
        # Triton's interpreter multiplies the bits of bfloat16 as if they were whole numbers.
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def visible_pairs(words, pattern, line, first, SIZE: tl.constexpr, PLACES: tl.constexpr):
    """Which pairs of a partial tile are visible: bool [lines, PLACES].

    Args:
        words: a side's patterns.
        line: int32 [lines], lines within the tile.
        first: the first place within the tile, a multiple of 32.
    """
    at = words + (pattern.to(tl.int64) * SIZE + line) * (SIZE // 32) + first // 32
    place = tl.arange(0, PLACES)
    bits = tl.load(at)[:, None]
    for word in tl.static_range(1, PLACES // 32):
        bits = tl.where((place // 32 == word)[None, :], tl.load(at + word)[:, None], bits)
    return (bits >> (place % 32)[None, :]) & 1 != 0


@triton.jit
def capped(scores, softcap):
    """softcap · tanh(scores / softcap)."""
    return softcap * (1 - 2 / (1 + tl.exp2(scores * (2 * LOG2_E / softcap))))


@triton.jit
def code_index(code, sequence, rows, keys, Tq, Tk):
    """The code term's index of each pair; positions beyond the last read the last one's code."""
    own = tl.load(code.q + sequence * code.q_b + tl.minimum(rows, Tq - 1))
    other = tl.load(code.k + sequence * code.k_b + tl.minimum(keys, Tk - 1))
    return own.to(tl.int32) - other.to(tl.int32)


@triton.jit
def stored_index(stored, rank, rows, keys, SIZE: tl.constexpr):
    """The stored term's index of each pair of the visible tile of this rank."""
    tile = stored.index + tl.load(stored.place + rank).to(tl.int64) * (SIZE * SIZE)
    return tl.load(tile + ((rows % SIZE) * SIZE + keys % SIZE)).to(tl.int32)


@triton.jit
def with_offsets(
    scores, code, stored, dense, sequence, head, rank, first_row, first_key, line, place, Tq, Tk, SIZE: tl.constexpr
):  # fmt: skip
    """Scores with the offsets of every term."""
    rows, keys = first_row + line, first_key + place
    if code.table is not None:
        scores += tl.load(code.table + head * code.entries + code_index(code, sequence, rows, keys, Tq, Tk))
    if stored.table is not None:
        scores += tl.load(stored.table + head * stored.entries + stored_index(stored, rank, rows, keys, SIZE))
    if dense.at is not None:
        at = dense.at + sequence * dense.b + head * dense.h
        at += wide(first_row) * dense.q + wide(first_key) * dense.k
        inside = (rows < Tq) & (keys < Tk)
        scores += tl.load(at + (line * dense.q + place * dense.k), mask=inside, other=0.0).to(tl.float32)
    return scores


@triton.jit
def kept_weights(dropout, unit, rows, keys, Tq, Tk):
    """Which weights dropout keeps: a hash of a number of the row and one of the key, so the same for any tiling.

    Args:
        unit: int64, sequence · H + head.
    """
    seed = tl.load(dropout.seed)
    row = tl.randint(seed, (unit * Tq + rows).to(tl.uint32)).to(tl.uint32)
    key = tl.randint(seed + 1, (unit * Tk + keys).to(tl.uint32)).to(tl.uint32)
    x = row + key
    # Two rounds of a multiplicative mixer (constants by C. Wellons, 2018).
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    return x < dropout.below


@triton.jit
def finite(x):
    """x with zeros for what is not finite."""
    return tl.where(x - x == 0, x, 0.0).to(x.dtype)


@triton.jit
def bad_lines(x):
    """Lines of x [lines, D] that hold NaN or inf: bool [lines]."""
    x = x.to(tl.float32)
    return tl.max((x - x != 0).to(tl.int32), 1) != 0


@triton.jit
def note(positions, any, own, is_bad):
    """Note down positions that are bad, and that there is one."""
    tl.store(positions + own, 1, mask=is_bad)
    tl.store(any + own * 0, 1, mask=is_bad)
