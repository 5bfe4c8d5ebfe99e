"""Attention on a GPU: checked first, then timed against FlexAttention and torch's own attention.

    python scripts/bench_gpu.py                    # checks, then the whole grid, the most telling cells first
    python scripts/bench_gpu.py --quick            # a few cells
    python scripts/bench_gpu.py --minutes 9        # as much of the grid as fits; the rest is left out and said so
    python scripts/bench_gpu.py --no-checks

Times are medians by CUDA events over inputs that take turns, so that no cache holds them. FLOP are counted over
visible pairs only: 4 · D a pair forward, 10 · D backward. A ratio is the other's time over ours. The rate of matrix
products and of copies is measured in the same run. Results go to benchmarks/gpu.json and gpu.md after each cell.
The exit status is 2 where there is no GPU, and 1 if a check fails.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu import CELLS, FLOP_A_PAIR, GOALS, Cell, Result, ceilings, checked, measured, table

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first cells only")
    parser.add_argument("--minutes", type=float, default=60.0, help="no cell is begun after that")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--write", type=Path, default=ROOT / "benchmarks" / "gpu")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here: nothing was checked and nothing was timed")
        return 2
    end = time.monotonic() + 60 * options.minutes
    about = {
        "device": torch.cuda.get_device_name(),
        "driver": _driver(),
        "torch": torch.__version__,
        "triton": __import__("triton").__version__,
        "flop_a_pair": FLOP_A_PAIR,
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    if not options.no_checks:
        wrong = checked()
        print("\n".join(wrong) or "checks: all well", flush=True)
        if wrong or not _sanitized():
            return 1
    about["ceilings"] = ceilings()
    print(about["ceilings"], flush=True)
    results: list[Result] = []
    left: list[Cell] = []
    for cell in CELLS[:6] if options.quick else CELLS:
        if time.monotonic() > end:
            left.append(cell)
            continue
        results.append(measured(cell))
        print(results[-1].line(), flush=True)
        _write(options.write, about, results, left)
    _write(options.write, about, results, left)
    print(table(about, results))
    for goal in GOALS:
        print(goal(about, results))
    if left:
        print(f"{len(left)} cells were left out for want of time")
    return 0


def _write(path: Path, about: dict[str, Any], results: list[Result], left: list[Cell]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"about": about, "results": [result.as_json() for result in results], "left out": [str(x) for x in left]}
    path.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(table(about, results), encoding="utf-8")


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def _sanitized() -> bool:
    """A small case under compute-sanitizer, where that is at hand."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("compute-sanitizer is not here: memory accesses were not checked")
        return True
    code = "import sys; sys.path.insert(0, 'scripts'); from benchmarks.gpu import small_case; small_case()"
    done = subprocess.run(
        [tool, "--error-exitcode", "1", sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, timeout=300,
    )  # fmt: skip
    print(f"compute-sanitizer: {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else 'no output'}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
