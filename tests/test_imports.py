"""Imports run one way, tasks → maskzoo → kernels, and `import maskzoo` stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("maskzoo", "kernels", "tasks", "conf")
INSTALLED = {"maskzoo": "maskzoo", "kernels": "maskzoo.kernels", "tasks": "maskzoo.tasks", "conf": "maskzoo.conf"}
HEAVY = ("lightning", "hydra", "omegaconf", "timm", "wandb", "matplotlib", "rich", "tokenizers", "torch_geometric")


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in ROOT.joinpath(folder).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the full name of everything that the file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package(path, node.level) + (f".{node.module}" if node.module else "") if node.level else node.module
            yield node.lineno, f"{base}"
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def package(path: Path, level: int) -> str:
    """The package that `level` dots stand for in the file."""
    folder, *inner = path.relative_to(ROOT).parts
    parts = [*INSTALLED[folder].split("."), *inner[:-1]]
    return ".".join(parts[: len(parts) - level + 1])


def within(name: str, package_name: str) -> bool:
    return name == package_name or name.startswith(f"{package_name}.")


def breaches(paths: list[Path], *forbidden: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in paths
        for line, name in imported(path)
        if any(within(name, package_name) for package_name in forbidden)
    ]


def loaded_after(code: str) -> set[str]:
    """The top-level modules in a fresh interpreter that has run `code`."""
    listing = "import sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_is_imported_by_the_bare_name_of_its_folder(folder: str) -> None:
    paths = modules(folder)
    assert paths
    assert breaches(paths, "kernels", "tasks", "conf") == []


def test_kernels_know_torch_and_one_another_only() -> None:
    allowed = {"torch", "triton", *sys.stdlib_module_names}
    outside = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules("kernels")
        for line, name in imported(path)
        if name.split(".")[0] not in allowed and not within(name, "maskzoo.kernels")
    ]
    assert outside == []


def test_every_package_that_is_imported_is_a_declared_dependency() -> None:
    declared = [re.match(r"[\w-]+", line) for line in requires("maskzoo") or [] if "extra ==" not in line]
    names = {match[0].replace("hydra-core", "hydra") for match in declared if match}
    known = {"maskzoo", *names, *sys.stdlib_module_names}
    outside = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules(*FOLDERS)
        for line, name in imported(path)
        if name.split(".")[0] not in known
    ]
    # The GPU kernel is only there where torch brings Triton along, and says so elsewhere.
    assert [line for line in outside if not re.match(r"kernels/triton/\w+\.py:\d+ imports triton", line)] == []


def test_only_the_command_line_imports_tasks() -> None:
    library = [path for path in modules("maskzoo") if path.parent != ROOT / "maskzoo" / "cli"]
    assert breaches(library, "maskzoo.tasks", "maskzoo.cli") == [
        "maskzoo/__main__.py:5 imports maskzoo.cli",
        "maskzoo/__main__.py:5 imports maskzoo.cli.main",
    ]


def test_tasks_do_not_import_the_command_line() -> None:
    assert breaches(modules("tasks"), "maskzoo.cli", "maskzoo.conf") == []


def test_importing_maskzoo_loads_torch_and_nothing_heavier() -> None:
    loaded = loaded_after("import maskzoo; maskzoo.attend, maskzoo.plan, maskzoo.masks.parse('causal & window(3)')")
    assert "torch" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_help_loads_nothing_heavier_than_the_library() -> None:
    assert loaded_after("import maskzoo.cli; maskzoo.cli.main(['--help'])").isdisjoint(HEAVY)
