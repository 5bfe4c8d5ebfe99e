"""The GPU kernels compile ahead of time for every device, as the passes launch them; no GPU is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def compile_gpu(*options):
    """Run in a process of its own, where Triton compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(ROOT / "scripts" / "compile_gpu.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_first_configurations_compile_for_every_device(tmp_path):
    pytest.importorskip("triton")
    done = compile_gpu("--quick", "--write", str(tmp_path / "resources"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = done.stdout.splitlines()
    for device in ("sm_80", "sm_90", "sm_100", "gfx942"):
        for kernel in ("forward", "columns", "rows", "delta"):
            assert any(row.split()[:2] == [device, kernel] for row in rows), (device, kernel)
    assert any(row.split()[1] == "split" for row in rows if row.startswith("sm_90"))
    assert (tmp_path / "resources.md").read_text().count("\n") > 40
    assert (tmp_path / "resources.json").exists()


@pytest.mark.slow
def test_every_configuration_compiles_for_every_device():
    pytest.importorskip("triton")
    done = compile_gpu()
    assert done.returncode == 0, done.stdout + done.stderr
