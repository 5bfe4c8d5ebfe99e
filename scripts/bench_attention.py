"""Masked attention side by side: maskzoo, torch's SDPA and compiled FlexAttention, and the building of their plans.

    python scripts/bench_attention.py                         # attention: forward, and forward + backward
    python scripts/bench_attention.py --memory                # and the peak memory of each, in a process of its own
    python scripts/bench_attention.py --bias relative         # with a bias, and the gradient of its table
    python scripts/bench_attention.py --plans                 # building plans, up to a million positions
    python scripts/bench_attention.py --auto-grid             # what backend="auto" takes, against forced backends
    python scripts/bench_attention.py --quick --patterns window,documents --lengths 1024

Contestants take turns on the same inputs, and each begins every other round. Times are medians over the rounds; a ratio
is the other contestant's median over ours, with the lowest and highest ratio within a round. Results and gradients are
compared with SDPA under a boolean mask that maskzoo had no part in. With a bias the others are SDPA with an offset for
every head and pair, gathered from the table at each call, so that the table gets its gradient. Runs on CPU. The exit
status is 1 if a result of ours is wrong or missing by a failure. With --json everything measured is written to a file,
anew after each case.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks.contestants import THEIRS, THEIRS_BIASED, Settings
from benchmarks.kernels import Row, add_memory, measured
from benchmarks.measuring import machine, ratio
from benchmarks.patterns import PATTERNS
from benchmarks.plan_building import GRID, LONG, PlanRow, plan_rows
from benchmarks.plan_building import PATTERNS as PLAN_PATTERNS

from maskzoo.biases import parse

LENGTHS = (1024, 2048, 4096, 8192, 16_384)
BIASED = ("window", "documents", "causal")
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def main() -> int:
    options = read_options()
    torch.set_num_threads(options.threads)
    about = machine()
    print(
        f"{about['processor']}, {about['threads']} of {about['cores']} cores, torch {about['torch']}, "
        f"load average {about['load_average']:.2f}"
    )
    if about["load_average"] > 0.5:
        print("WARNING: something else is running on this machine; figures will be off")
    results: list[dict[str, Any]] = []

    def keep(rows: list[Row] | list[PlanRow]) -> None:
        results.extend(row.as_json() for row in rows)
        if options.json:
            record = {"machine": about, "options": vars(options), "results": results}
            options.json.write_text(json.dumps(record, indent=1, default=str), encoding="utf-8")

    if options.plans:
        return bench_plans(options, keep)
    return bench_kernels(options, keep)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    table = parser.add_mutually_exclusive_group()
    table.add_argument("--plans", action="store_true", help="the building of plans instead of attention")
    table.add_argument("--auto-grid", action="store_true", help="maskzoo alone: auto against each backend")
    parser.add_argument("--patterns", type=words, help=f"some of {', '.join(PATTERNS)}; random_documents with --plans")
    parser.add_argument("--bias", default="", help="such as relative: attention with it, forward + backward")
    parser.add_argument("--lengths", type=numbers, help="positions, such as 1024,4096")
    parser.add_argument(
        "--against", type=words, help=f"some of {', '.join(THEIRS)}; of {', '.join(THEIRS_BIASED)} with --bias"
    )
    parser.add_argument("--backend", choices=["auto", "tiled", "edges", "dense"], default="auto", help="of maskzoo")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--memory", action="store_true", help="also measure peak memory")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contestant (3 with --plans)")
    parser.add_argument("--seconds", type=float, default=60, help="a case has 3 rounds at least, and more within this")
    parser.add_argument("--child-seconds", type=float, default=180, help="time limit of a process of its own")
    parser.add_argument("--gibibytes", type=float, default=16, help="memory limit of a contestant")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="few rounds, short lengths: to try the script")
    parser.add_argument("--json", type=Path, help="file for all that is measured")
    options = parser.parse_args()
    if options.plans and options.bias:
        parser.error("--bias belongs to attention, not to --plans")
    try:
        parse(options.bias or None, heads=options.heads)
    except ValueError as error:
        parser.error(f"--bias: {error}")
    known, theirs = PLAN_PATTERNS if options.plans else PATTERNS, THEIRS_BIASED if options.bias else THEIRS
    options.against = list(theirs) if options.against is None else options.against
    for option, given, allowed in (("patterns", options.patterns, known), ("against", options.against, theirs)):
        if unknown := [name for name in given or [] if name not in allowed]:
            parser.error(f"--{option}: unknown {', '.join(unknown)}; known: {', '.join(allowed)}")
    if options.quick:
        options.rounds, options.seconds, options.child_seconds = 3, min(options.seconds, 5), 60
        options.lengths = options.lengths or [1024, 2048]
    elif options.plans and options.rounds == parser.get_default("rounds"):
        options.rounds = 3
    return options


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def bench_kernels(options: argparse.Namespace, keep: Any) -> int:
    """Attention on every pattern and length; 1 if a result of ours is wrong or one of our kernels failed."""
    names = ["auto", "dense", "tiled", "edges"] if options.auto_grid else [options.backend, *options.against]
    settings = Settings(
        options.batch, options.heads, options.width, DTYPES[options.dtype], options.gibibytes, options.bias
    )
    print(f"B {options.batch}, H {options.heads}, D {options.width}, {options.dtype}; milliseconds: median (range)")
    every: list[Row] = []
    for pattern in options.patterns or (BIASED if options.bias else PATTERNS):
        for length in options.lengths or LENGTHS:
            title, rows = measured(pattern, length, names, settings, options.rounds, options.seconds)
            if options.memory:
                add_memory(rows, settings, options.child_seconds, options.gibibytes)
            print(f"\n{title}")
            for row in rows:
                print(kernel_line(row, others="times ours" if not options.auto_grid else "times auto"), flush=True)
            every += rows
            keep(rows)
    if options.auto_grid:
        print_auto(every)
    ours = [row for row in every if row.contestant not in (*THEIRS, *THEIRS_BIASED)]
    for row in ours:
        if row.wrong:
            print(f"WRONG: {row.label} on {row.pattern}, T = {row.length}, {row.direction}: off by {row.error:.1e}")
    return 1 if any(row.wrong or row.skipped.startswith("failed") for row in ours) else 0


def kernel_line(row: Row, others: str) -> str:
    start = f"  {row.direction:18}  {row.label:24}"
    if not row.times:
        return f"{start}  {row.skipped}"
    columns = [
        spread([1000 * seconds for seconds in row.times]),
        f"{row.ratio} {others}" if row.ratio else "",
        f"error {row.error:.0e}" if row.error is not None else "unchecked",
    ]
    if row.peak is not None and row.plan_peak is not None:
        columns.append(f"{mebibytes(row.peak)}, mask made in {mebibytes(row.plan_peak)}")
    return f"{start}  {columns[0]:28}  {columns[1]:34}  {'  '.join(columns[2:])}  {row.skipped}".rstrip()


def print_auto(rows: list[Row]) -> None:
    """How auto compares with the best and with dense over the whole grid."""
    cases: dict[tuple[str, int, str], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row.pattern, row.length, row.direction), {})[row.contestant] = row
    print(f"\n{'auto: its time over the best and over dense':50} {'best':>6} {'dense':>6}")
    worst = {"best": 0.0, "dense": 0.0}
    for (pattern, length, direction), found in cases.items():
        medians = {name: statistics.median(row.times) for name, row in found.items() if row.times}
        if "auto" not in medians:
            print(f"{pattern:12} {length:7} {direction:18} {found['auto'].skipped}")
            continue
        taken = found["auto"].label.removeprefix("maskzoo ")
        # The same kernel once more would only add noise to the best.
        over = {"best": medians["auto"] / min(time for name, time in medians.items() if f"({name})" != taken)}
        if "dense" in medians:
            over["dense"] = medians["auto"] / medians["dense"]
        worst = {name: max(worst[name], over.get(name, 0.0)) for name in worst}
        shown = f"{over['best']:6.2f} " + (f"{over['dense']:6.2f}" if "dense" in over else f"{'–':>6}")
        label = f"{pattern:12} {length:7} {direction:18} {taken}"
        print(f"{label:50} {shown}{'  over 10 % slower' if max(over.values()) > 1.1 else ''}")
    print(f"{'at most':50} {worst['best']:6.2f} {worst['dense']:6.2f}")


def bench_plans(options: argparse.Namespace, keep: Any) -> int:
    """Plans of every pattern and length, each in a fresh process."""
    print(f"At most {options.child_seconds:.0f} s and {options.gibibytes:g} GiB for each; seconds: median (range)")
    chosen = options.patterns or list(PLAN_PATTERNS)
    cases = [*GRID, *LONG]
    if options.lengths:
        cases = [(pattern, length) for pattern in chosen for length in options.lengths]
    too_long: dict[tuple[str, str], str] = {}
    for pattern, length in sorted((case for case in cases if case[0] in chosen), key=lambda case: case[1]):
        rows = plan_rows(pattern, length, options.rounds, options.child_seconds, options.gibibytes, skip=too_long)
        print(f"\n{pattern}, T = {length}: {rows[0].rule}")
        for row in rows:
            print(plan_line(row, ours=rows[0]), flush=True)
            if row.unfinished and not row.built:
                too_long.setdefault((pattern, row.builder), f"not tried: {row.unfinished} at T = {length}")
        keep(rows)
    return 0


def plan_line(row: PlanRow, ours: PlanRow) -> str:
    names = {"maskzoo": "maskzoo", "eager": "create_block_mask", "compiled": "create_block_mask, compiled"}
    start = f"  {names[row.builder]:28}"
    if not row.built:
        return f"{start}  {row.unfinished}"
    seconds, last = [built.seconds for built in row.built], row.built[-1]
    columns = [
        f"{spread(seconds, digits=3):28}",
        f"{mebibytes(max(built.peak for built in row.built)):>12}",
        f"{last.tiles:>12,} tiles of {last.size}",
    ]
    if row is not ours and ours.built:
        columns.append(f"{ratio(seconds, [built.seconds for built in ours.built])} times ours")
    if last.first_seconds is not None:
        columns.append(f"first call {last.first_seconds:.1f} s")
    return "  ".join([start, *columns, row.unfinished]).rstrip()


def spread(values: list[float], digits: int = 1) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} … {max(values):.{digits}f})"


def mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
