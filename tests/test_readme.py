"""What the README and the docstrings show is run as it stands there."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import maskzoo.kernels
import maskzoo.tasks
from maskzoo.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PACKAGES = (maskzoo, maskzoo.kernels, maskzoo.tasks)
MODULES = sorted(
    module.name for package in PACKAGES for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
)

TINY = [
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "data.context=32",
    "data.batch_size=2",
    "data.max_bytes=20000",
    "sample.tokens=8",
    "trainer.validate_every=2",
    "trainer.validation_batches=2",
    "trainer.threads=1",
    "logger=csv",
]

# Runs commands in one process, for imports take longer than tiny runs. Prints [status, output] for each as JSON.
RUNNER = """
import contextlib, io, json, sys
from maskzoo.cli import main
for arguments in json.load(sys.stdin):
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = main(arguments)
    print(json.dumps([status, output.getvalue()]), flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of the README: its language, the file that its title names, its first line and its text."""

    language: str
    title: str
    line: int
    text: str


def blocks(language: str) -> list[Block]:
    text = README.read_text(encoding="utf-8")
    found = [
        Block(match[1], match[2] or "", text[: match.start(3)].count("\n") + 1, match[3])
        for match in re.finditer(r'^```(\w*)(?: title="(.*?)")?\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    ]
    return [block for block in found if block.language == language]


def shell_lines() -> list[str]:
    return [line.removeprefix("$ ") for block in blocks("sh") for line in block.text.splitlines() if line.strip()]


def commands() -> list[list[str]]:
    """The arguments of every `maskzoo ...` in the README, without comments."""
    words = [shlex.split(line, comments=True) for line in shell_lines()]
    return [arguments for name, *arguments in words if name == "maskzoo"]


def made_small(arguments: list[str]) -> list[str]:
    """The command as it stands, but training takes seconds, and what must be fetched is only composed."""
    if arguments[0] != "train":
        return arguments
    if any("enwik8" in argument for argument in arguments):
        return [*arguments, "--cfg"]
    steps = 4 if "resume=true" in arguments else 2
    return [*arguments, *TINY, f"trainer.max_steps={steps}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README assumes: the files that its blocks are titled with, and some notes."""
    folder = tmp_path_factory.mktemp("readme")
    for block in blocks("python"):
        if block.title:
            (folder / block.title).write_text(block.text)
    (folder / "notes").mkdir()
    for number in range(8):
        (folder / "notes" / f"{number}.txt").write_text("A rule says who may see whom. " * 40)
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> list[tuple[str, int, str]]:
    """Every command of the README, with its exit status and what it printed."""
    shown = [made_small(arguments) for arguments in commands()]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER], input=json.dumps(shown), cwd=folder, capture_output=True, text=True, timeout=600
    )
    statuses = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(statuses) == len(shown), done.stderr
    return [(shlex.join(arguments), *status) for arguments, status in zip(shown, statuses, strict=True)]


def test_every_command_works(results: list[tuple[str, int, str]]) -> None:
    assert {arguments.split()[0] for arguments, _, _ in results} == set(COMMANDS)
    failed = [f"maskzoo {arguments}\n{output}" for arguments, status, output in results if status != 0]
    assert not failed, "\n".join(failed)


def test_every_python_example_runs(results: list[tuple[str, int, str]], folder: Path) -> None:
    lines = [""] * README.read_text(encoding="utf-8").count("\n")  # an error then shows the README's own line number
    for block in blocks("python"):
        body = block.text.splitlines()
        lines[block.line - 1 : block.line - 1 + len(body)] = body
    script = folder / "readme.py"
    script.write_text("\n".join(lines))
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_make_targets_and_the_paths_that_it_names_exist() -> None:
    targets = {
        line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if re.match(r"[\w-]+:", line)
    }
    named = {words[1] for words in map(str.split, shell_lines()) if words[0] == "make"}
    assert {"first-light", "test"} <= named <= targets
    tree = next(block for block in blocks("text") if block.text.startswith("conf/"))
    assert all((ROOT / line.split()[0]).exists() for line in tree.text.splitlines())


def test_the_table_of_rules_is_complete() -> None:
    from maskzoo.registry import biases, datasets, masks

    text = README.read_text(encoding="utf-8")
    builtin = [
        name
        for registry in (masks, biases, datasets)
        for name in registry.names()
        if registry.entry(name).place.startswith((f"{ROOT}/maskzoo/", f"{ROOT}/tasks/"))
    ]
    assert {"window", "alibi", "stdlib"} <= set(builtin)
    assert [name for name in builtin if f"`{name}`" not in text and f"`{name}(" not in text] == []


def test_docstring_examples() -> None:
    modules = [importlib.import_module(name) for name in MODULES if not name.endswith(".__main__")]
    shown = [module for module in modules if ">>> " in Path(str(module.__file__)).read_text(encoding="utf-8")]
    assert shown
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert [module.__name__ for module in shown if doctest.testmod(module, optionflags=flags).failed] == []
