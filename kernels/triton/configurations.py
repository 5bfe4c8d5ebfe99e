"""Block shapes of the kernels: short lists to choose from by width and dtype, the most likely one first."""

from __future__ import annotations

from dataclasses import dataclass


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
