"""The parts of the GPU benchmark that can be checked without one."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import maskzoo as mz

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def gpu():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield importlib.import_module("benchmarks.gpu")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(ROOT / "scripts" / "bench_gpu.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2, done.stderr
    assert "there is no GPU here" in done.stdout


@pytest.mark.parametrize("pattern", ["causal", "window", "documents", "prefix", "sinks", "graph", "molecules"])
def test_pairs_are_those_of_the_others_rule(gpu, pattern):
    case = gpu.CASES[pattern](1100, 2)
    assert gpu.visible_pairs(case, 2) == 2 * int(case.visible(2).sum())
    assert torch.equal(case.visible(2)[:, 0], mz.plan(case.rule, case.at).visible[:, 0])


def test_the_grid_is_that_of_the_issue(gpu):
    assert len(set(gpu.CELLS)) == len(gpu.CELLS)
    assert {cell.pattern for cell in gpu.CELLS} == {
        "causal", "window", "documents", "prefix", "sinks", "graph", "molecules",
    }  # fmt: skip
    assert {cell.width for cell in gpu.CELLS} == {64, 128}
    assert {2_048, 65_536} <= {cell.length for cell in gpu.CELLS}
    assert gpu.Cell("causal", 16_384, 128) == gpu.CELLS[0]


@pytest.mark.parametrize("bias", ["relative", "clipped_relative(7)"])
def test_the_others_read_the_same_entry_of_a_table(gpu, bias):
    own = mz.biases.parse(bias, heads=2)
    table = next(iter(own.parameters()))
    torch.nn.init.normal_(table)
    at = mz.Positions.tokens(300)
    scores = mz.plan("causal", at, bias=own, heads=2).scores().expand(1, 2, 300, 300)[0]
    distance = torch.arange(300)[:, None] - torch.arange(300)
    seen = distance >= 0
    assert torch.equal(scores[:, seen], table[:, gpu.index_of_distance(bias)(distance)][:, seen])


@pytest.mark.parametrize("bias", ["", "relative", "clipped_relative(20) + alibi"])
def test_its_own_check_passes_in_the_interpreter_and_can_fail(gpu, bias, monkeypatch):
    case = gpu.CASES["documents"](60, 4)
    assert gpu.difference(case, 60, 16, torch.float32, bias, "cpu") < 1e-4
    attend = mz.attend
    wrong = lambda *inputs, backend: attend(*inputs, backend=backend) * (1.01 if backend == "triton" else 1.0)  # noqa: E731
    monkeypatch.setattr(gpu.mz, "attend", wrong)
    assert gpu.difference(case, 60, 16, torch.float32, bias, "cpu") > 1e-3


def test_rates_ratios_and_tables(gpu):
    cell = gpu.Cell("causal", 16_384, 128)
    result = gpu.Result(cell, 10**9, 0.001, "triton")
    result.seconds = {"maskzoo": {"forward": 0.001, "backward": 0.003}, "flex": {"forward": 0.002, "backward": 0.0015}}
    result.failures = {"sdpa, cudnn": "no such thing"}
    assert result.rate("maskzoo", "forward") == pytest.approx(10**9 * 128 * 4 / 0.001)
    assert result.ratio("flex", "forward") == 2.0 and result.ratio("nobody", "forward") is None
    about = {"device": "a device", "driver": "1", "torch": "2", "triton": "3", "ceilings": {"matrix": 1e15}}
    text = gpu.table(about, [result])
    assert "| causal, T 16,384, D 128 | 1 | 512 | 3 | 427 | flex 2.00 / 0.50; sdpa, cudnn: no such thing |" in text
    goals = [goal(about, [result]) for goal in gpu.GOALS]
    assert "1 of 2 below: causal, T 16,384, D 128, backward 0.50" in goals[0]
    assert "reached 51%" in goals[1] and "not measured" in goals[2]
