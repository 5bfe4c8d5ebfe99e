"""What is checked and timed on a GPU: cells of pattern, width and length, and who is timed on each."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import maskzoo as mz
from benchmarks.patterns import PATTERNS, Case, MaskMod
from maskzoo.biases import parse as parse_bias
from maskzoo.masks import parse

FLOP_A_PAIR = {"forward": 4, "backward": 10}
"""Times D: two products forward, and five backward, with a multiplication and an addition each."""

HEADS, TOKENS = 16, 2**16
"""Heads, and tokens of all sequences together, for lengths up to that."""

INPUTS = 3
"""Sets of inputs that take turns."""


@dataclass(frozen=True)
class Cell:
    """One pattern at one length and width, with or without a learned bias."""

    pattern: str
    length: int
    width: int
    bias: str = ""

    def __str__(self) -> str:
        return f"{self.pattern}, T {self.length:,}, D {self.width}{f', {self.bias}' if self.bias else ''}"


def wide_window(length: int, heads: int) -> Case:
    rule = parse("causal & window(1024)")
    return Case(rule, mz.Positions.tokens(length), lambda b, h, q, k: (q >= k) & (q - k < 1024))


CASES: dict[str, Callable[[int, int], Case]] = {**PATTERNS, "window": wide_window}

_TELLING = [
    Cell("causal", 16_384, 128),
    Cell("window", 16_384, 128),
    Cell("documents", 16_384, 128),
    Cell("causal", 8_192, 128, "clipped_relative(1024)"),
    Cell("window", 8_192, 128, "relative"),
    Cell("molecules", 16_384, 64),
]
_GRID = [
    Cell(pattern, length, width)
    for length in (4_096, 2_048, 8_192, 16_384, 32_768, 65_536)
    for pattern in ("causal", "window", "documents", "prefix", "sinks", "graph", "molecules")
    for width in (128, 64)
    if not (pattern == "graph" and length > 16_384)  # the others need an array of all pairs
]
CELLS = [*_TELLING, *(cell for cell in _GRID if cell not in _TELLING)]


@dataclass
class Result:
    """Seconds of each contestant on one cell, by pass; None with the reason where one could not run."""

    cell: Cell
    pairs: int
    plan_seconds: float
    kernel: str
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def rate(self, who: str, way: str) -> float:
        """FLOP a second over visible pairs."""
        return self.pairs * self.cell.width * FLOP_A_PAIR[way] / self.seconds[who][way]

    def ratio(self, who: str, way: str) -> float | None:
        """The other's time over ours."""
        own = self.seconds.get("maskzoo", {}).get(way)
        other = self.seconds.get(who, {}).get(way)
        return None if own is None or other is None else other / own

    def line(self) -> str:
        """All of it in short."""
        parts = [
            f"{who} {own['forward'] * 1e3:.3g} + {own['backward'] * 1e3:.3g} ms" for who, own in self.seconds.items()
        ]
        failed = [f"{who}: {why}" for who, why in self.failures.items()]
        return f"{self.cell} ({self.kernel}, plan {self.plan_seconds * 1e3:.3g} ms): {'; '.join(parts + failed)}"

    def as_json(self) -> dict[str, Any]:
        """In plain types."""
        return asdict(self)


def visible_pairs(case: Case, heads: int) -> int:
    """Visible pairs of one sequence, over all heads, by the plan's own count."""
    made = mz.plan(case.rule, case.at)
    return made.visibility.count * (heads if made.rules == 1 else 1)


def measured(cell: Cell) -> Result:
    """Time everyone on a cell."""
    device = torch.device("cuda")
    case = CASES[cell.pattern](cell.length, HEADS)
    batch = max(1, TOKENS // cell.length)
    begin = time.perf_counter()
    plan = mz.plan(case.rule, case.at.to(device), bias=cell.bias or None, heads=HEADS)
    seconds = time.perf_counter() - begin
    result = Result(cell, batch * visible_pairs(case, HEADS), seconds, plan.kernel)
    bias = parse_bias(cell.bias or None, heads=HEADS)
    if bias is not None:
        bias = bias.to(device)
        for parameter in bias.parameters():
            nn.init.normal_(parameter)
        plan = mz.plan(case.rule, case.at.to(device), bias=bias, heads=HEADS)
    shape = batch, HEADS, cell.length, cell.width
    inputs = [
        [torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
        for _ in range(INPUTS)
    ]
    gradient = torch.randn(shape, device=device, dtype=torch.bfloat16)
    tables = [] if bias is None else [*bias.parameters()]
    for who, attend in contestants(cell, case, plan, tables).items():
        try:
            result.seconds[who] = _timed(attend, inputs, gradient, tables)
        except Exception as error:  # one that cannot run is left out, with its reason
            result.failures[who] = str(error).strip().splitlines()[0][:100] if str(error).strip() else repr(error)
        torch.cuda.empty_cache()
    return result


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def contestants(cell: Cell, case: Case, plan: mz.Plan, tables: list[Tensor]) -> dict[str, Attend]:
    """Who is timed on a cell; each is made ready when it first runs."""
    found: dict[str, Attend] = {"maskzoo": lambda q, k, v: mz.attend(q, k, v, plan, backend="triton")}
    if cell.bias:
        found["maskzoo without bias"] = _ours_without_bias(case)
        found["flex"] = flex_with_table(case, cell, tables)
        found["sdpa, efficient, dense bias"] = _sdpa_dense(plan)
        return found
    found["flex"] = _flex(case, cell.length)
    if cell.pattern == "causal":
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            found[f"sdpa, {name}"] = _sdpa_causal(backend)
    if cell.length <= 16_384:
        found["sdpa, efficient, mask"] = _sdpa_masked(plan)
    return found


def _ours_without_bias(case: Case) -> Attend:
    plan = mz.plan(case.rule, case.at.to("cuda"))
    return lambda q, k, v: mz.attend(q, k, v, plan, backend="triton")


def _flex(case: Case, length: int) -> Attend:
    compiled, ready = torch.compile(flex_attention), {}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not ready:
            ready["mask"] = create_block_mask(on_device(case.mask_mod), None, None, length, length, device="cuda")
        return compiled(q, k, v, block_mask=ready["mask"])  # type: ignore[return-value]

    return attend


def on_device(mask_mod: MaskMod) -> MaskMod:
    """The same with the tensors that it holds on the GPU."""
    cells = mask_mod.__closure__ or ()
    for cell in cells:
        if isinstance(cell.cell_contents, Tensor):
            cell.cell_contents = cell.cell_contents.cuda()
    return mask_mod


def flex_with_table(case: Case, cell: Cell, tables: list[Tensor]) -> Attend:
    """FlexAttention with a score_mod that reads the learned table, captured; made ready when it first runs."""
    index = index_of_distance(cell.bias)
    compiled, ready = torch.compile(flex_attention), {}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        table = tables[0]

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + table[h, index(i - j)]

        if not ready:
            length = q.shape[2]
            ready["mask"] = create_block_mask(on_device(case.mask_mod), None, None, length, length, device=q.device)
        return compiled(q, k, v, score_mod=score_mod, block_mask=ready["mask"])  # type: ignore[return-value]

    return attend


def index_of_distance(bias: str) -> Callable[[Tensor], Tensor]:
    """The place in a bias's table of a distance, query − key, under a causal rule."""
    if bias == "relative":  # T5's buckets: 32 of them, up to a distance of 128

        def bucket(distance: Tensor) -> Tensor:
            near = distance.clamp(min=0)
            far = 16 + (torch.log(near.clamp(min=1).float() / 16) / math.log(128 / 16) * 16).long()
            return torch.where(near < 16, near, far.clamp(max=31))

        return bucket
    size = int(bias.removeprefix("clipped_relative(").removesuffix(")"))
    return lambda distance: (-distance).clamp(-size, size) + size


def _sdpa_causal(backend: SDPBackend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


def _sdpa_masked(plan: mz.Plan) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=plan.visible)

    return attend


def _sdpa_dense(plan: mz.Plan) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = plan.scores()
        assert scores is not None
        mask = scores.to(q.dtype).masked_fill(~plan.visible, -torch.inf)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return attend


def _timed(attend: Attend, inputs: list[list[Tensor]], gradient: Tensor, tables: list[Tensor]) -> dict[str, float]:
    """Median seconds of the forward pass, and of the backward pass."""

    def forward(turn: int) -> Tensor:
        return attend(*inputs[turn % len(inputs)])

    def backward(out: Tensor, turn: int) -> None:
        torch.autograd.grad(out, [*inputs[turn % len(inputs)], *tables], gradient, allow_unused=True)

    for turn in range(3):
        backward(forward(turn), turn)
    ways: dict[str, list[float]] = {"forward": [], "backward": []}
    for turn in range(20):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        out = forward(turn)
        marks[1].record()
        backward(out, turn)
        marks[2].record()
        torch.cuda.synchronize()
        ways["forward"].append(marks[0].elapsed_time(marks[1]) / 1e3)
        ways["backward"].append(marks[1].elapsed_time(marks[2]) / 1e3)
    return {way: statistics.median(seconds) for way, seconds in ways.items()}


def ceilings() -> dict[str, float]:
    """FLOP a second of a large matrix product in bfloat16, and bytes a second of a large copy, read and written."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return {
        "matrix": 2 * 8192**3 / _median(lambda: a @ b),
        "copy": 2 * source.nbytes / _median(lambda: target.copy_(source)),
    }


def _median(call: Callable[[], object]) -> float:
    seconds = []
    for turn in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if turn >= 3:
            seconds.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


CHECKED = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-3}
"""Allowed difference from float64, as a share of the largest number."""


def checked(device: str = "cuda") -> list[str]:
    """Results and gradients against the reference on fresh random inputs; what is wrong, in words."""
    wrong = []
    for pattern in ("causal", "window", "documents", "prefix", "sinks", "graph", "molecules"):
        for dtype, allowed in CHECKED.items():
            for length, width in ((129, 64), (1000, 128), (257, 80)):
                for bias in ("", "relative", "clipped_relative(20) + alibi"):
                    error = difference(CASES[pattern](length, 4), length, width, dtype, bias, device)
                    if not error <= allowed:
                        wrong.append(f"{pattern}, T {length}, D {width}, {dtype}, bias {bias or 'none'}: {error:.2g}")
    return wrong


def difference(case: Case, length: int, width: int, dtype: torch.dtype, bias: str, device: str) -> float:
    """The largest difference from the reference of the output or a gradient, as a share of the largest number there."""
    heads = 4
    added = parse_bias(bias or None, heads=heads)
    tables: list[Tensor] = []
    if added is not None:
        added = added.to(device)
        tables = [*added.parameters()]
        for table_ in tables:
            nn.init.normal_(table_)
    plan = mz.plan(case.rule, case.at.to(device), bias=added, heads=heads)
    shapes = [(2, heads, length, width), (2, heads // 2, length, width), (2, heads // 2, length, width)]
    q, k, v = (torch.randn(shape, device=device).to(dtype).requires_grad_() for shape in shapes)
    gradient = torch.randn(2, heads, length, width, device=device)
    found = []
    for backend in ("triton", "reference"):
        out = mz.attend(q, k, v, plan, backend=backend)
        found.append([out, *torch.autograd.grad(out, [q, k, v, *tables], gradient.to(dtype))])
    errors = []
    for own, true in zip(*found, strict=True):
        largest = float(true.double().abs().max()) or 1.0
        errors.append(float((own.double() - true.double()).abs().max()) / largest)
    return max(errors) if all(math.isfinite(error) for error in errors) else math.inf


def small_case() -> None:
    """For a checker of memory accesses: one pass of everything at odd lengths."""
    case = CASES["documents"](200, 4)
    assert difference(case, 200, 48, torch.float16, "relative + alibi", "cuda") < 1e-2


def table(about: dict[str, Any], results: list[Result]) -> str:
    """Markdown: milliseconds and TFLOP/s of ours, and how many times longer the others took."""
    lines = [
        "# Attention on a GPU",
        "",
        f"{about['device']}, driver {about['driver']}, torch {about['torch']}, triton {about['triton']}; bfloat16, "
        f"{HEADS} heads, {TOKENS:,} tokens in all. Rates count visible pairs only. A ratio is the other's time "
        "over ours.",
        "",
        "| cell | forward ms | TFLOP/s | backward ms | TFLOP/s | others, forward / backward |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        own = result.seconds.get("maskzoo")
        if own is None:
            lines.append(f"| {result.cell} | failed: {result.failures.get('maskzoo')} | | | | |")
            continue
        others = [
            f"{who} {result.ratio(who, 'forward'):.2f} / {result.ratio(who, 'backward'):.2f}"
            for who in result.seconds
            if who != "maskzoo"
        ]
        others += [f"{who}: {why}" for who, why in result.failures.items()]
        numbers = [f"{own[way] * 1e3:.3g} | {result.rate('maskzoo', way) / 1e12:.0f}" for way in FLOP_A_PAIR]
        lines.append(f"| {result.cell} | {' | '.join(numbers)} | {'; '.join(others)} |")
    return "\n".join(lines) + "\n"


def _against_flex(about: dict[str, Any], results: list[Result]) -> str:
    ratios = {
        f"{result.cell}, {way}": ratio
        for result in results
        for way in FLOP_A_PAIR
        if not result.cell.bias and (ratio := result.ratio("flex", way)) is not None
    }
    below = [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio < 1]
    return f"goal: at least FlexAttention's speed; {len(below)} of {len(ratios)} below: {'; '.join(below) or 'none'}"


def _share_of_products(about: dict[str, Any], results: list[Result]) -> str:
    for result in results:
        if result.cell == Cell("causal", 16_384, 128) and "maskzoo" in result.seconds:
            share = result.rate("maskzoo", "forward") / about["ceilings"]["matrix"]
            return f"goal: 55 % of the rate of products on causal, D 128, T 16k, forward; reached {share:.0%}"
    return "goal: 55 % of the rate of products; its cell was not measured"


def _cost_of_a_bias(about: dict[str, Any], results: list[Result]) -> str:
    texts = []
    for result in results:
        plain, own = result.seconds.get("maskzoo without bias"), result.seconds.get("maskzoo")
        if plain is not None and own is not None:
            texts.append(f"{result.cell} {sum(own.values()) / sum(plain.values()):.2f}")
    return f"goal: a learned table costs at most 1.3 times (stored: 1.6); {'; '.join(texts) or 'not measured'}"


GOALS = (_against_flex, _share_of_products, _cost_of_a_bias)
"""What was set out to be reached, against what was."""
