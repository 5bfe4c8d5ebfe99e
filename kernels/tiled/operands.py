"""Taking the rows and keys of a block out of stacks [S, T, D], and adding gradients back."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.kernels.tiled.schedule import Block, Chunk


def rows_of(x: Tensor, block: Block) -> Tensor:
    """[S, rows of all queries, …] → [n, rows of the block, …]; a view where there is one lane."""
    parts = [x[lane.members.queries, lane.rows] for lane in block.lanes]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def keys_of(x: Tensor, block: Block, chunk: Chunk) -> Tensor:
    """[S, all keys, …] → [n, keys of the chunk, …]; a view where they are one span of one lane."""
    parts = [
        x[lane.members.keys, spans[0]] if len(spans) == 1 else torch.cat([x[lane.members.keys, s] for s in spans], 1)
        for lane, spans in zip(block.lanes, chunk.spans, strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def put_rows(x: Tensor, block: Block, values: Tensor) -> None:
    """Write values [n, rows of the block, …] into x [S, rows of all queries, …]."""
    for lane, part in zip(block.lanes, values.chunk(len(block.lanes)), strict=True):
        x[lane.members.queries, lane.rows] = part


def add_keys(x: Tensor, block: Block, chunk: Chunk, values: Tensor) -> None:
    """Add values [n, keys of the chunk, …] to x [S, all keys, …], lane after lane: keys may be shared."""
    for lane, spans, part in zip(block.lanes, chunk.spans, values.chunk(len(block.lanes)), strict=True):
        begin = 0
        for span in spans:
            length = span.stop - span.start
            x[lane.members.keys, span] += part[:, begin : begin + length]
            begin += length
