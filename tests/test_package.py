"""The wheel holds the whole package and nothing else, and trains by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("maskzoo", "conf", "kernels", "tasks", "pyproject.toml", "README.md", "LICENSE")
MAPPED = ("conf", "kernels", "tasks")
TINY = [
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "data.context=32",
    "data.batch_size=2",
    "data.max_bytes=20000",
    "sample.tokens=8",
    "trainer.max_steps=3",
    "trainer.validate_every=3",
    "trainer.validation_batches=2",
    "trainer.threads=1",
    "logger=csv",
]


def run(*command: str | Path, folder: Path) -> str:
    """What the command prints, started in `folder` with nothing of this process's Python paths."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that no earlier build can leave anything in it."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    copy.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, folder=copy)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A virtual environment with the wheel installed; only its dependencies come from this environment.

    A path in a .pth file is searched, but the .pth files that lie there are not read, and so the editable
    installation of the checkout stays out.
    """
    environment = wheel.parent / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, folder=wheel.parent)
    python = environment / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        folder=wheel.parent,
    )
    (packages,) = environment.glob("lib/python*/site-packages")
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(here)))
    return environment


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_only_top_level_name_is_maskzoo(wheel: Path) -> None:
    names = {name.split("/")[0] for name in in_wheel(wheel)}
    assert names == {"maskzoo", "maskzoo-0.1.0.dist-info"}


def test_the_wheel_holds_every_module_and_every_yaml_of_the_tree(wheel: Path) -> None:
    in_tree = {
        path.relative_to(ROOT).as_posix()
        for folder in ("maskzoo", *MAPPED)
        for pattern in ("*.py", "*.yaml", "py.typed")
        for path in ROOT.joinpath(folder).rglob(pattern)
    }
    expected = {name if name.startswith("maskzoo/") else f"maskzoo/{name}" for name in in_tree}
    assert {name for name in in_wheel(wheel) if name.startswith("maskzoo/")} == expected


def test_the_wheel_declares_the_command_and_the_plugins(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        points = archive.read("maskzoo-0.1.0.dist-info/entry_points.txt").decode()
    assert "[console_scripts]\nmaskzoo = maskzoo.cli:main" in points
    assert "[maskzoo.plugins]\n" in points


def test_every_rule_and_data_set_is_found_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    listing = run(installed / "bin" / "maskzoo", "list", folder=tmp_path)
    assert all(name in listing for name in ("causal", "window", "alibi", "stdlib", "enwik8"))


def test_the_wheel_trains_outside_the_checkout(installed: Path, tmp_path: Path) -> None:  # case B40
    run(installed / "bin" / "maskzoo", "train", *TINY, "mask=causal & window(8)", "run_dir=first", folder=tmp_path)
    code = (
        "import maskzoo, maskzoo.kernels, maskzoo.tasks\n"
        "model = maskzoo.load('first')\n"
        "print(maskzoo.__file__, maskzoo.kernels.__file__, maskzoo.tasks.__file__, model.mask, sep='\\n')"
    )
    *files, mask = run(installed / "bin" / "python", "-c", code, folder=tmp_path).splitlines()
    assert all(Path(file).is_relative_to(installed) for file in files)
    assert mask == "causal & window(8)"
    checkpoint = torch.load(tmp_path / "first" / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 3
