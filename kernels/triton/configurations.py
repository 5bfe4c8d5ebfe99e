"""Block shapes of the kernels: short lists to choose from, by width and dtype, the most likely one first.

Widths are those of the wider of a key's and a value's head, padded to a power of two. What a configuration takes of a
device is in benchmarks/triton_resources.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Configuration:
    """How a kernel is cut and compiled.

    Attributes:
        block_m, block_n: queries and keys of a block; they divide the side of a tile.
        warps: of a program.
        stages: how many tiles are on their way at a time.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int


KINDS = ("forward", "rows", "tables", "columns")
"""The forward pass, the gradient of q, the same with gradients of offsets, and the gradients of k and v."""

_HALF = {
    ("forward", 64): (Configuration(128, 64, 4, 3), Configuration(128, 128, 8, 2), Configuration(64, 64, 4, 3)),
    ("forward", 128): (Configuration(128, 64, 8, 3), Configuration(128, 128, 8, 2), Configuration(64, 64, 4, 3)),
    ("forward", 256): (Configuration(64, 64, 8, 2), Configuration(128, 32, 8, 2)),
    ("rows", 64): (Configuration(128, 64, 8, 3), Configuration(128, 128, 8, 2), Configuration(128, 64, 4, 3)),
    ("rows", 128): (Configuration(128, 64, 8, 2), Configuration(64, 64, 4, 2)),
    ("rows", 256): (Configuration(64, 32, 8, 1),),
    ("tables", 64): (Configuration(128, 32, 8, 2), Configuration(64, 32, 4, 2)),
    ("tables", 128): (Configuration(128, 32, 8, 2), Configuration(64, 32, 8, 2)),
    ("tables", 256): (Configuration(64, 32, 8, 1),),
    ("columns", 64): (Configuration(64, 128, 8, 2), Configuration(64, 64, 4, 3)),
    ("columns", 128): (Configuration(32, 128, 8, 2), Configuration(64, 128, 8, 2)),
    ("columns", 256): (Configuration(32, 64, 8, 1),),
}
"""For 16-bit inputs."""

_SINGLE = {
    64: (Configuration(32, 32, 4, 2), Configuration(64, 32, 4, 2)),
    128: (Configuration(32, 32, 4, 2), Configuration(64, 32, 8, 1)),
    256: (Configuration(32, 32, 8, 1),),
}
"""For float32, all kernels."""

_SMALL = {
    64: Configuration(64, 32, 4, 1),
    128: Configuration(32, 32, 4, 1),
    256: Configuration(32, 32, 8, 1),
}
"""For devices with 64 KiB of shared memory a program."""


def configurations(kind: str, width: int, dtype: torch.dtype, shared_memory: int) -> tuple[Configuration, ...]:
    """Configurations to choose from, the first one where nothing is measured.

    Args:
        kind: one of KINDS.
        width: of the wider head, a power of two up to 256.
        dtype: of the inputs.
        shared_memory: bytes that a program may have on the device.
    """
    step = max(64, width)
    if shared_memory < 2**17:
        return (_SMALL[step],)
    return _SINGLE[step] if dtype == torch.float32 else _HALF[kind, step]
