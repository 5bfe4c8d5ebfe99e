"""Compile the GPU kernels for several devices, without one, and say what they take of it.

    python scripts/compile_gpu.py --quick        # the first configurations, in a minute
    python scripts/compile_gpu.py                # every configuration and feature, in about half an hour
    python scripts/compile_gpu.py --write benchmarks/triton_resources

Each kernel is compiled as the forward and backward passes launch it. The exit status is 1 if one does not compile,
takes more shared memory than a device has, has no products by warp groups on sm_90 where it should, or spills registers
there in the first configurations for heads up to 128 wide without further features.
"""

import argparse
import json
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

if os.environ.pop("TRITON_INTERPRET", None):
    print("TRITON_INTERPRET is left out: it would have kernels interpreted")
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton")  # everything is compiled anew

import torch
from benchmarks.compiling import FEATURES, TARGETS, compiled, launches

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BY_WARP_GROUPS = ("forward", "rows", "columns")

Case = tuple[int, str, str, str, int, int]
"""Width, dtype, feature, target, number of the configuration, and queries."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the first configurations, widths 64 and 128, bf16")
    parser.add_argument("--targets", default=",".join(TARGETS), help="devices, with commas between them")
    parser.add_argument("--write", type=Path, help="where the table goes, as .md and .json")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for own in pool.map(measured, cases(options.quick, options.targets.split(","))):
            for row in own:
                rows.append(row)
                print(line(row), flush=True)
    wrong = [f"{line(row)}: {row['fault']}" for row in rows if row["fault"]]
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        options.write.with_suffix(".md").write_text(table(rows), encoding="utf-8")
    print(f"\n{len(rows)} kernels compiled, {len(wrong)} at fault")
    print("\n".join(wrong))
    return 1 if wrong else 0


def cases(quick: bool, targets: list[str]) -> list[Case]:
    """What is compiled."""
    if unknown := set(targets) - set(TARGETS):
        raise SystemExit(f"unknown target {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    if quick:
        found: list[Case] = [(64, "bf16", "plain", target, 0, 256) for target in targets]
        found += [(128, "bf16", "plain", "sm_90", 0, 256), (64, "bf16", "plain", "sm_90", 0, 1)]
        return [*found, (64, "bf16", "code", "sm_90", 0, 256)]
    found = []
    for target in targets:
        for width in (64, 96, 128, 256):
            for number in range(3):
                found.append((width, "bf16", "plain", target, number, 256))
            found += [(width, "bf16", feature, target, 0, 256) for feature in FEATURES[1:]]
            found.append((width, "bf16", "plain", target, 0, 1))
        found += [(64, dtype, "plain", target, 0, 256) for dtype in ("fp16", "fp32")]
    return found


def measured(case: Case) -> list[dict[str, Any]]:
    """A row for each kernel of a pass."""
    width, dtype, feature, target, number, queries = case
    rows = []
    for launch in launches(width, DTYPES[dtype], feature, target, number, queries):
        about = {"kernel": launch.name, "width": width, "dtype": dtype, "feature": feature, "target": target}
        block = [launch.arguments.get(name) or launch.arguments.get("ROWS") for name in ("BLOCK_M", "BLOCK_N")]
        about |= {"block": block, "warps": launch.options.get("num_warps"), "stages": launch.options.get("num_stages")}
        try:
            resources = asdict(compiled(launch, target))
        except Exception as error:
            resources = {"registers": None, "stack": None, "shared": 0, "wgmma": 0}
            rows.append({**about, **resources, "fault": f"does not compile: {str(error).strip().splitlines()[-1]}"})
            continue
        rows.append({**about, **resources, "fault": fault(about, resources, number)})
    return rows


def fault(about: dict[str, Any], resources: dict[str, Any], number: int) -> str:
    """What is wrong with a compiled kernel; empty if nothing is."""
    limit = TARGETS[about["target"]][1]
    if resources["shared"] > limit:
        return f"{resources['shared']:,} bytes of shared memory, of at most {limit:,}"
    if about["target"] != "sm_90" or about["kernel"] not in BY_WARP_GROUPS:
        return ""
    if about["dtype"] != "fp32" and not resources["wgmma"]:
        return "no products by warp groups"
    if number == 0 and about["feature"] == "plain" and about["width"] <= 128 and resources["stack"]:
        return f"spills {resources['stack']} bytes of a thread's registers"
    return ""


def line(row: dict[str, Any]) -> str:
    """A row in short."""
    block = "×".join(str(side) for side in row["block"] if side)
    return (
        f"{row['target']:<7} {row['kernel']:<17} D {row['width']:<4} {row['dtype']} {row['feature']:<8} {block:<8} "
        f"{row['warps'] or '-'} warps, {row['stages'] or '-'} stages: {row['registers'] or '-'} registers, "
        f"{'-' if row['stack'] is None else row['stack']} spilled, {row['shared']:,} shared, {row['wgmma']} wgmma"
    )


def table(rows: list[dict[str, Any]]) -> str:
    """All rows as Markdown."""
    names = ("target", "kernel", "width", "dtype", "feature", "block", "warps", "stages")
    head = (*names, "registers", "stack bytes", "shared bytes", "wgmma")
    lines = [
        "# What the GPU kernels take of a device",
        "",
        f"Compiled ahead of time by `python scripts/compile_gpu.py`, torch {torch.__version__}. Registers and stack "
        "are of a thread: a stack is where registers are spilled to. Products by warp groups (wgmma) are Hopper's.",
        "",
        f"| {' | '.join(head)} |",
        f"|{' --- |' * len(head)}",
    ]
    for row in rows:
        values = {**row, "block": " × ".join(str(side) for side in row["block"] if side)}
        cells = [values[name] for name in (*names, "registers", "stack", "shared", "wgmma")]
        lines.append(f"| {' | '.join('' if cell is None else str(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
