import subprocess
import sys
from importlib.metadata import version

import pytest

from maskzoo.cli import COMMANDS, main


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert f"{name:<10}{summary}" in shown


def test_help_and_version_import_nothing_heavy() -> None:
    heavy = ["torch", "lightning", "hydra", "omegaconf", "numpy", "matplotlib", "rich", "wandb"]
    code = (
        "import sys; from maskzoo.cli import main; main(['--help']); main(['--version'])\n"
        f"sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode == 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"maskzoo {version('maskzoo')}\n"


def test_help_of_train_shows_groups_keys_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "data        enwik8, stdlib, text" in shown
    assert "mask                        causal" in shown
    for key in ("model.layers", "optimizer.lr", "trainer.max_steps", "data.context", "logger.wandb"):
        assert f"  {key} " in shown


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("eval", ["checkpoint", "split", "stride"]),
        ("generate", ["checkpoint", "prompt", "temperature", "top_k", "top_p", "seed"]),
        ("show", ["mask", "length", "lengths", "output", "plugins"]),
        ("list", ["what", "plugins"]),
    ],
)
def test_help_of_a_command_shows_its_keys(command: str, keys: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    for key in keys:
        assert f"\n  {key} " in shown


def test_python_m_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "maskzoo", "--version"], capture_output=True, text=True)
    assert done.stdout == f"maskzoo {version('maskzoo')}\n"
