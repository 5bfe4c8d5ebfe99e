"""Attention itself: time, memory and correctness of the contestants on one pattern at one length."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.contestants import Prepared, Settings, Skipped, contenders, prepare
from benchmarks.measuring import Peak, Ratio, Unfinished, in_child, in_turns, one_line, ratio, resident
from benchmarks.patterns import PATTERNS, Case

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Of errors, by the largest value that is expected."""

DIRECTIONS = ("forward", "forward + backward")


@dataclass
class Row:
    """One contestant in one direction.

    Attributes:
        times: seconds of each round.
        ratio: its time over the first contestant's.
        error, wrong: largest absolute difference from SDPA in float32, with the boolean mask or the gathered bias, over
            the output and, where there is a backward, the gradients; and whether it is beyond the tolerance.
        plan_peak, peak: bytes above imports and inputs, while the mask is prepared and during one call.
        skipped: why there is no time.
        bias: as text, or nothing.
    """

    pattern: str
    length: int
    rule: str
    direction: str
    contestant: str
    label: str
    times: list[float] = field(default_factory=list)
    ratio: Ratio | None = None
    error: float | None = None
    wrong: bool = False
    plan_peak: int | None = None
    peak: int | None = None
    skipped: str = ""
    bias: str = ""

    def as_json(self) -> dict[str, Any]:
        """All of it, with the median."""
        return {**asdict(self), "median": statistics.median(self.times) if self.times else None}


def measured(
    pattern: str, length: int, names: list[str], settings: Settings, rounds: int, seconds: float
) -> tuple[str, list[Row]]:
    """What the case is, as a line of text, and a row for each direction and contestant.

    The contestants take turns; ratios are those of the first name's. With a bias there is one direction, backward too.
    """
    case = PATTERNS[pattern](length, settings.heads)
    names = contenders(names, pattern)
    ready: dict[str, Prepared] = {}
    reasons: dict[str, str] = {}
    for name in {settings.oracle: None, **dict.fromkeys(names)}:
        try:
            ready[name] = prepare(name, case, settings)
        except Skipped as reason:
            reasons[name] = str(reason)
        except Exception as error:  # of a library's, which must not end the whole run
            reasons[name] = f"failed: {one_line(error)}"
    q, k, v, gradient = settings.inputs(length)
    rows = []
    for direction in DIRECTIONS[1:] if settings.bias else DIRECTIONS:
        backward = gradient if direction != "forward" else None
        calls = {
            name: _call(each, q, k, v, backward) for name, each in ready.items() if backward is None or each.trains
        }
        oracle = ready.get(settings.oracle)
        expected = None if oracle is None else _call(oracle, q.float(), k.float(), v.float(), backward)()
        turn, found = {}, []
        for name in names:
            label = ready[name].label if name in ready else name
            skipped = reasons.get(name, "")
            row = Row(pattern, length, repr(case.rule), direction, name, label, skipped=skipped, bias=settings.bias)
            found.append(row)
            if name in ready and name not in calls:
                row.skipped = "has no backward on a CPU"
            elif name in ready:
                try:
                    _compare(row, calls[name](), expected, settings.dtype)
                    turn[name] = calls[name]
                except Exception as error:  # compilation happens in the first call
                    row.skipped = f"failed: {one_line(error)}"
        times = in_turns(turn, rounds, seconds)
        for row in found:
            row.times = times.get(row.contestant, [])
            if row.times and row.contestant != names[0] and names[0] in times:
                row.ratio = ratio(row.times, times[names[0]])
        rows += found
    densities = [each.density for each in ready.values() if each.density is not None]
    return _described(pattern, case, densities, settings.bias), rows


def _described(pattern: str, case: Case, densities: list[float], bias: str) -> str:
    packed = case.at.segment.unique().numel()
    segments = f" in {packed} packed segments" if packed > 1 else ""
    density = f", {densities[0]:.2%} of the pairs" if densities else ""
    added = f", bias {bias}" if bias else ""
    return f"{pattern}, T = {case.at.length}: {case.rule!r}{segments}{added}{density}"


def _call(
    prepared: Prepared, q: Tensor, k: Tensor, v: Tensor, gradient: Tensor | None
) -> Callable[[], tuple[Tensor, ...]]:
    """A function that attends once and returns out, and with a gradient of out also those of q, k, v and tables."""
    if gradient is None:

        def forward() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (prepared.attend(q, k, v),)

        return forward
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]

    def both() -> tuple[Tensor, ...]:
        out = prepared.attend(*leaves)
        return (out.detach(), *torch.autograd.grad(out, [*leaves, *prepared.tables], gradient.to(out.dtype)))

    return both


def _compare(row: Row, results: tuple[Tensor, ...], expected: tuple[Tensor, ...] | None, dtype: torch.dtype) -> None:
    if expected is None:
        return
    pairs = list(zip(results, expected, strict=True))
    row.error = max((result.float() - right).abs().max().item() for result, right in pairs)
    allowed = TOLERANCE[dtype]
    row.wrong = not all(
        (result.float() - right).abs().max().item() <= allowed * right.abs().max().item() for result, right in pairs
    )


def add_memory(rows: list[Row], settings: Settings, seconds: float, gibibytes: float) -> None:
    """Measure each row that has a time in a process of its own."""
    for row in rows:
        if not row.times:
            continue
        backward = row.direction != "forward"
        arguments = (row.contestant, row.pattern, row.length, settings, backward, torch.get_num_threads())
        try:
            row.plan_peak, row.peak = in_child(memory, *arguments, seconds=seconds, gibibytes=gibibytes)
        except Unfinished as reason:
            row.skipped = f"memory not measured: {reason}"


def memory(name: str, pattern: str, length: int, settings: Settings, backward: bool, threads: int) -> tuple[int, int]:
    """Bytes above imports and inputs: while the mask is prepared, and during one call with the mask that is kept.

    For a fresh process. A small problem comes first, so that libraries and the compiler have been loaded. What a
    compiler needs for the kernel of this length belongs to the preparation.
    """
    torch.set_num_threads(threads)
    small = PATTERNS[pattern](1024, settings.heads)
    q, k, v, gradient = settings.inputs(1024)
    _call(prepare(name, small, settings), q, k, v, gradient if backward else None)()
    case = PATTERNS[pattern](length, settings.heads)
    q, k, v, gradient = settings.inputs(length)
    base = resident()
    peak = Peak(base)
    ready = prepare(name, case, settings)
    if name == "flex":
        _call(ready, q, k, v, None)()
    preparing = peak.bytes()
    peak = Peak(base)
    _call(ready, q, k, v, gradient if backward else None)()
    return preparing, peak.bytes()
