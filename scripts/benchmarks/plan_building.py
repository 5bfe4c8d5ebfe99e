"""Building plans: `maskzoo.plan` against FlexAttention's `create_block_mask`, each time in a fresh process."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask

import maskzoo
from benchmarks.measuring import Peak, Unfinished, in_child, resident
from benchmarks.patterns import Case, causal, documents, random_documents, sinks, window

BUILDERS = ("maskzoo", "eager", "compiled")
"""Ours; create_block_mask as it is; create_block_mask compiled."""

PATTERNS: dict[str, Callable[[int, int], Case]] = {
    "causal": causal,
    "window": window,
    "documents": documents,
    "sinks": sinks,
    "random_documents": random_documents,
}

GRID = [(name, length) for name in list(PATTERNS)[:4] for length in (4096, 32_768, 131_072, 1_048_576)]
LONG = [("window", 96_000), ("random_documents", 800_000)]


@dataclass(frozen=True)
class Built:
    """One plan: seconds, the most bytes above imports and positions, visible tiles and the side of a tile.

    first_seconds is the time of a compiled builder's first call, compilation included.
    """

    seconds: float
    peak: int
    tiles: int
    size: int
    first_seconds: float | None = None


@dataclass
class PlanRow:
    """One builder on one pattern and length; `unfinished` says why there are fewer measurements than rounds."""

    pattern: str
    length: int
    rule: str
    builder: str
    built: list[Built] = field(default_factory=list)
    unfinished: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_rows(
    pattern: str, length: int, rounds: int, seconds: float, gibibytes: float, skip: dict[tuple[str, str], str]
) -> list[PlanRow]:
    """A row for each builder. They take turns, and one that did not finish has no second turn.

    `skip` has the reasons why a (pattern, builder) is not tried at all.
    """
    rule = repr(PATTERNS[pattern](1000, 1).rule)
    rows = [PlanRow(pattern, length, rule, name, unfinished=skip.get((pattern, name), "")) for name in BUILDERS]
    for number in range(rounds):
        for row in rows[:: -1 if number % 2 else 1]:
            if row.unfinished:
                continue
            arguments = (row.builder, pattern, length, torch.get_num_threads())
            try:
                row.built.append(in_child(build, *arguments, seconds=seconds, gibibytes=gibibytes))
            except Unfinished as reason:
                row.unfinished = str(reason)
    return rows


def build(builder: str, pattern: str, length: int, threads: int) -> Built:
    """Build one plan in a fresh process, where no plan is kept yet. Another length comes first, to load the code.

    A compiled builder is made for one length: a first call of its own compiles it.
    """
    torch.set_num_threads(threads)
    make = _builder(builder)
    make(PATTERNS[pattern](1000, 1))
    case, base, first_seconds = PATTERNS[pattern](length, 1), resident(), None
    if builder == "compiled":
        _, first_seconds = _timed(make, case)
    peak = Peak(base)
    (tiles, size), seconds = _timed(make, case)
    return Built(seconds, peak.bytes(), tiles(), size, first_seconds)


Made = tuple[Callable[[], int], int]
"""A function that counts the visible tiles, and the side of a tile."""


def _timed(make: Callable[[Case], Made], case: Case) -> tuple[Made, float]:
    started = time.perf_counter()
    made = make(case)
    return made, time.perf_counter() - started


def _builder(builder: str) -> Callable[[Case], Made]:
    if builder == "maskzoo":

        def ours(case: Case) -> Made:
            tiles = maskzoo.plan(case.rule, case.at).tiles
            return lambda: int(tiles.rows.count.sum()), tiles.size

        return ours
    create = torch.compile(create_block_mask, dynamic=False) if builder == "compiled" else create_block_mask

    def theirs(case: Case) -> Made:
        length = case.at.length
        mask = create(case.mask_mod, None, None, length, length, device="cpu")
        assert mask.full_kv_num_blocks is not None
        counts = (mask.kv_num_blocks, mask.full_kv_num_blocks)
        return lambda: sum(int(count.sum()) for count in counts), mask.BLOCK_SIZE[0]

    return theirs
