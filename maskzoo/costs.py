"""What each kernel costs, and which one `auto` takes: a written model with few constants.

Short sequences are dense without a look (`DENSE_BELOW`). From there on the built-in constants decide, and from
`MEASURED_FROM` pairs on the constants of this machine, which are measured once, in one or two seconds, when a plan
for CPU first asks for them, and are then read from the cache folder. So one machine always decides alike.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from maskzoo.cache import cache_folder
from maskzoo.kernels import tiles as tiles_of
from maskzoo.kernels.dense import dense
from maskzoo.kernels.edges import edges
from maskzoo.kernels.pairs import from_tiles
from maskzoo.kernels.tiled import tiled
from maskzoo.kernels.triton import is_at_hand

DENSE_BELOW = 2**16
"""Tq · Tk up to which the kernel is dense, whatever the rule."""

MEASURED_FROM = 2**22
"""Tq · Tk from which this machine's own constants decide: a wrong choice then costs more in some steps than they do."""

MARGIN = 0.9
"""A sparse kernel is taken where its estimate is below this part of the dense one: estimates are rough."""


@dataclass(frozen=True)
class Counts:
    """What the cost of a plan follows from. A unit is one head of one sequence.

    Attributes:
        queries, keys: Tq, Tk.
        units: B · H.
        groups: G, how many different rules the units have between them.
        area: pairs of all tiles with a visible pair, over all groups.
        lines: lines of query tiles that hold a partial tile, over all groups.
        pairs: visible pairs, over all groups.
        form: "full", "causal" or "any", as in a plan.
    """

    queries: int
    keys: int
    units: int
    groups: int
    area: int
    lines: int
    pairs: int
    form: str


@dataclass(frozen=True)
class Constants:
    """Seconds of one forward and backward pass in float32 at head width 64."""

    dense_masked: float
    """Per pair and unit, with a boolean mask."""
    dense_full: float
    """Per pair and unit, without a mask."""
    dense_causal: float
    """Per pair and unit of the whole square, under torch's own causal mask."""
    tiled_pair: float
    """Per pair of a tile and unit."""
    tiled_line: float
    """Per line with a partial tile, however many units share it."""
    tiled_unit_line: float
    """Per line with a partial tile and unit."""
    edges_pair: float
    """Per visible pair and unit."""
    edges_row: float
    """Per query and unit."""
    edges_group: float
    """Per group."""

    def estimates(self, counts: Counts) -> dict[str, float]:
        """Seconds by kernel."""
        share = counts.units / counts.groups
        per_pair = {"full": self.dense_full, "causal": self.dense_causal}.get(counts.form, self.dense_masked)
        return {
            "dense": counts.units * counts.queries * counts.keys * per_pair,
            "tiled": share * (counts.area * self.tiled_pair + counts.lines * self.tiled_unit_line)
            + counts.lines * self.tiled_line,
            "edges": share * counts.pairs * self.edges_pair
            + counts.units * counts.queries * self.edges_row
            + counts.groups * self.edges_group,
        }


PROCESSOR = Constants(
    dense_masked=5.2e-9,
    dense_full=4.8e-9,
    dense_causal=3.3e-9,
    tiled_pair=3.3e-9,
    tiled_line=1.2e-4,
    tiled_unit_line=6e-5,
    edges_pair=1.5e-8,
    edges_row=3.5e-7,
    edges_group=8e-4,
)
"""Two cores with AVX-512, torch 2.14."""

ACCELERATOR = Constants(
    dense_masked=5e-11,
    dense_full=2e-11,
    dense_causal=1.2e-11,
    tiled_pair=6e-11,
    tiled_line=1e-3,
    tiled_unit_line=0.0,
    edges_pair=5e-10,
    edges_row=2e-9,
    edges_group=2e-3,
)
"""Devices other than CPU, with `tiled` in plain torch. Estimates, not measured: a launch costs more than its work."""

FUSED = Constants(
    dense_masked=1.5e-11,
    dense_full=2.5e-12,
    dense_causal=1.5e-12,
    tiled_pair=3.5e-12,
    tiled_line=0.0,
    tiled_unit_line=2e-8,
    edges_pair=2e-10,
    edges_row=1e-9,
    edges_group=1e-3,
)
"""GPUs, with the fused kernel in place of `tiled`. Estimates from a data sheet, not measured."""


def choose(counts: Counts, device: torch.device) -> tuple[str, str]:
    """The kernel for a plan, and the reason in words with the estimates."""
    size = counts.queries * counts.keys
    if size <= DENSE_BELOW:
        return "dense", f"so few pairs ({size:,}) that computing all of them costs least"
    if is_at_hand(device):
        estimates = FUSED.estimates(counts)
        estimates["triton"] = estimates.pop("tiled")
        return decided(estimates)
    own = measured if size >= MEASURED_FROM else lambda: PROCESSOR
    constants = own() if device.type == "cpu" else ACCELERATOR
    return decided(constants.estimates(counts))


def decided(estimates: dict[str, float]) -> tuple[str, str]:
    """The kernel by estimates in seconds, and the reason: a sparse one must be clearly better than dense."""
    sparse = min((name for name in estimates if name != "dense"), key=lambda name: estimates[name])
    kernel = sparse if estimates[sparse] < MARGIN * estimates["dense"] else "dense"
    others = " and ".join(f"{seconds * 1e3:.3g} ms {name}" for name, seconds in estimates.items() if name != kernel)
    return kernel, f"about {estimates[kernel] * 1e3:.3g} ms forward and backward, against {others}"


_known: dict[tuple[Path, str], Constants] = {}


def measured() -> Constants:
    """This machine's constants: from memory, else from the cache folder, else measured now and kept in both.

    A folder that cannot be written only means that they are kept in memory. On a machine that is busy with something
    else nothing is measured: the built-in constants hold for this process, and another one may measure.
    """
    path, machine = cache_folder() / "costs.json", _machine()
    if (path, machine) not in _known:
        stored = _stored(path)
        found = _constants(stored.get(machine))
        if found is None and _busy():
            found = PROCESSOR
        elif found is None:
            found = plausible(measure())
            _store(path, {**stored, machine: asdict(found)})
        _known[path, machine] = found
    return _known[path, machine]


BUSY = 0.4
"""Load of each core, over the last minute, from which a machine is busy."""


def _busy() -> bool:
    with suppress(AttributeError, OSError):  # not every system tells
        return os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)
    return False


DOUBT = 8.0
"""A constant this many times off the built-in one says more of a busy machine than of a slow one."""


def plausible(found: Constants) -> Constants:
    """Measured constants, none of them beyond doubt: all kernels of a slow machine are slow."""
    return Constants(
        **{
            name: min(max(getattr(found, name), built_in / DOUBT), built_in * DOUBT)
            for name, built_in in asdict(PROCESSOR).items()
        }
    )


def _machine() -> str:
    """What the constants hold for: processor, version of torch, threads."""
    return f"{_processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads"


@cache
def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()  # some systems start a process to answer


def _stored(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _constants(values: object) -> Constants | None:
    """Constants as they were stored; None if they are not such."""
    names = {field.name for field in fields(Constants)}
    if not isinstance(values, dict) or set(values) != names:
        return None
    if not all(isinstance(value, float) and 0 <= value < float("inf") for value in values.values()):
        return None
    return Constants(**values)


def _store(path: Path, content: dict[str, object]) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(content, indent=1))
        aside.replace(path)


LENGTH, HEADS, WIDTH = 768, 4, 64
"""Of the inputs that are timed."""


def measure() -> Constants:
    """Time the kernels on small inputs, and solve for the constants one after the other."""
    queries, keys = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None]
    everything = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
    window = ((queries >= keys) & (queries - keys < LENGTH // 4))[None, None]
    dotted = (queries * 5 + keys * 3) % 16
    sparse, denser = (dotted == 0)[None, None], (dotted < 2)[None, None]
    whole, banded = (tiles_of.from_visible(visible, 64) for visible in (everything, window))
    few, many = (from_tiles(tiles_of.from_visible(visible, 64)) for visible in (sparse, denser))
    scale = WIDTH**-0.5
    with torch.random.fork_rng(devices=()):
        seconds = _fastest(
            {
                "masked": _pass(partial(dense, visible=window, scale=scale), HEADS),
                "full": _pass(partial(dense, visible=everything, form="full", scale=scale), HEADS),
                "causal": _pass(partial(dense, visible=everything.tril(), form="causal", scale=scale), HEADS),
                "whole": _pass(partial(tiled, tiles=whole, scale=scale), HEADS),
                "banded": _pass(partial(tiled, tiles=banded, scale=scale), HEADS),
                "banded alone": _pass(partial(tiled, tiles=banded, scale=scale), 1),
                "few": _pass(partial(edges, pairs=few, scale=scale), HEADS),
                "few alone": _pass(partial(edges, pairs=few, scale=scale), 1),
                "many": _pass(partial(edges, pairs=many, scale=scale), HEADS),
            }
        )
    size, lines = HEADS * LENGTH**2, banded.query_tiles
    area = int(banded.rows.count.sum()) * 64**2
    # Heads cost what one more of them adds; the rest of one head's time is what lines cost however many share them.
    head = (seconds["banded"] - seconds["banded alone"]) / (HEADS - 1)
    pair = min(seconds["whole"] / size, max(head, 0.0) / area)
    unit_line = max(head - area * pair, 0.0) / lines
    line = max(seconds["banded alone"] - area * pair - lines * unit_line, 0.0) / lines
    edge = max(seconds["many"] - seconds["few"], 0.0) / (HEADS * (len(many.key) - len(few.key)))
    row = max((seconds["few"] - seconds["few alone"]) / (HEADS - 1) - len(few.key) * edge, 0.0) / LENGTH
    return Constants(
        dense_masked=seconds["masked"] / size,
        dense_full=seconds["full"] / size,
        dense_causal=seconds["causal"] / size,
        tiled_pair=pair,
        tiled_line=line,
        tiled_unit_line=unit_line,
        edges_pair=edge,
        edges_row=row,
        edges_group=max(seconds["few alone"] - len(few.key) * edge - LENGTH * row, 0.0),
    )


def _pass(kernel: Callable[..., Tensor | tuple[Tensor, Tensor]], heads: int) -> Callable[[], object]:
    """One forward and backward pass."""
    inputs = [torch.randn(1, heads, LENGTH, WIDTH, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(1, heads, LENGTH, WIDTH)

    def run() -> object:
        with torch.enable_grad():
            out = kernel(*inputs)
            return torch.autograd.grad(out if isinstance(out, Tensor) else out[0], inputs, gradient)

    return run


def _fastest(calls: dict[str, Callable[[], object]], patience: float = 1.0) -> dict[str, float]:
    """Seconds of each call: the least of some rounds, in which all take turns, after one that does not count.

    A round is begun while less than `patience` seconds have passed; on a busy machine the first is the last.
    """
    best: dict[str, float] = {}
    for call in calls.values():
        call()
    begin = time.perf_counter()
    while not best or time.perf_counter() - begin < patience:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds = time.perf_counter() - start
            best[name] = min(seconds, best.get(name, seconds))
    return best
