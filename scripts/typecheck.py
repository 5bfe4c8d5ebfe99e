"""Run mypy over the package as it is installed: conf, kernels and tasks inside maskzoo.

The folders stand side by side in the tree, where their names would be `kernels` and `tasks`. A scratch folder
of links gives mypy the installed layout instead.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAPPED = ("conf", "kernels", "tasks")


def main() -> int:
    """Return mypy's exit status; arguments go on to mypy."""
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch, "maskzoo")
        package.mkdir()
        for source in [*ROOT.joinpath("maskzoo").iterdir(), *map(ROOT.joinpath, MAPPED)]:
            package.joinpath(source.name).symlink_to(source)
        options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
        command = [sys.executable, "-m", "mypy", *options, *sys.argv[1:], "--package", "maskzoo"]
        return subprocess.run(command, cwd=scratch).returncode


if __name__ == "__main__":
    sys.exit(main())
