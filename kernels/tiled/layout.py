"""How a call's tensors lie for the passes, and its schedule, kept for the layers that share the tiles."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from maskzoo.kernels.tiled.products import has_fast_product
from maskzoo.kernels.tiled.schedule import Block, Extent, readers, schedule
from maskzoo.kernels.tiles import Runs


class Layout(NamedTuple):
    """Attributes:
    fold: query heads whose rows lie in one row of the stack, beside one another.
    blocks: what is worked on together.
    """

    fold: int
    blocks: list[Block]


def folded(x: Tensor, fold: int) -> Tensor:
    """[B, H, T, …] → [B·H / fold, T·fold, …]: the query heads of a key/value head beside one another."""
    return x.unflatten(1, (x.shape[1] // fold, fold)).transpose(2, 3).flatten(2, 3).flatten(0, 1)


def unfolded(x: Tensor, fold: int, shape: torch.Size) -> Tensor:
    """The way back from `folded` for queries of a shape [B, H, T, D], contiguous."""
    batch, heads, length, _ = shape
    return x.reshape(batch, heads // fold, length, fold, *x.shape[2:]).transpose(2, 3).flatten(1, 2).contiguous()


def layout(q: Tensor, k: Tensor, v: Tensor, group: Tensor, rows: Runs, size: int) -> Layout:
    """The layout of a call; it depends on the shapes and the tiles only. Tiles are never changed in place."""
    dtype = inner(q.dtype)
    key = (q.shape, k.shape, v.shape, size, has_fast_product(q.device, dtype))
    kept = _kept.setdefault(rows.first, [])
    others = (group, rows.start, rows.count, rows.pattern)
    for known, arrays, made in kept:
        if known == key and all(a is b for a, b in zip(arrays, others, strict=True)):
            return made
    (batch, heads, queries, _), (_, kv_heads, keys, _) = q.shape, k.shape
    groups = (len(rows.start) - 1) // -(-queries // size)
    fold, reading = readers(group.tolist(), groups, batch, heads, kv_heads)
    extent = Extent(size, queries, keys, fold, (k.shape[3] + v.shape[3]) / 2, key[-1])
    lists = rows.start.tolist(), rows.first.tolist(), rows.count.tolist(), rows.pattern.tolist()
    made = Layout(fold, schedule(lists, reading, extent))
    kept.append((key, others, made))
    del kept[:-MOST_KEPT]
    return made


def inner(dtype: torch.dtype) -> torch.dtype:
    """What is computed in: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


MOST_KEPT = 4
"""Layouts kept for the same tiles: shapes differ between models, not between layers."""

_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
