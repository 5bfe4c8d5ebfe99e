"""The folder of a run: runs/<date>_<time>_<task>_<hash>/."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskzoo.tasks.training.errors import OutputFailed

RUNS = Path("runs")


@dataclass(frozen=True)
class RunFolder:
    """What lies where in the folder of a run."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def last(self) -> Path:
        return self.checkpoints / "last.ckpt"

    @property
    def best(self) -> Path:
        return self.checkpoints / "best.ckpt"

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def audit(self) -> Path:
        return self.path / "audit.html"

    @property
    def mask(self) -> Path:
        return self.path / "mask.png"

    @property
    def sample(self) -> Path:
        return self.path / "sample.txt"


def new_folder(task: str, configuration: dict[str, Any], run_dir: str | None) -> RunFolder:
    """Make the folder of a new run: `run_dir`, or a fresh one under runs/.

    Raises:
        ValueError: `run_dir` holds a run already.
        OutputFailed: the folder cannot be made or written.
    """
    if run_dir is not None:
        folder = RunFolder(Path(run_dir))
        if folder.last.exists():
            raise ValueError(
                f"run_dir={run_dir} holds a run already: add resume=true to continue it, or give another folder"
            )
    else:
        folder = RunFolder(_fresh(task, configuration))
    try:
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        probe = folder.path / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputFailed(
            f"cannot write to the run folder {folder.path}: {error.strerror}. Choose another with run_dir=..."
        ) from error
    return folder


def _fresh(task: str, configuration: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(configuration, sort_keys=True, default=str).encode()).hexdigest()[:6]
    name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{task}_{digest}"
    path, number = RUNS / name, 2
    while path.exists():  # a sweep starts the next run within the same second
        path, number = RUNS / f"{name}_{number}", number + 1
    return path


def folder_to_resume(task: str, run_dir: str | None) -> RunFolder:
    """The run to continue: `run_dir`, or the newest run of this task under runs/ that has a checkpoint.

    Raises:
        ValueError: there is none.
    """
    if run_dir is not None:
        folder = RunFolder(Path(run_dir))
        if not folder.last.is_file():
            raise ValueError(f"run_dir={run_dir} holds no run to resume: there is no {folder.last}")
        return folder
    candidates = [RunFolder(path) for path in RUNS.glob(f"*_{task}_*")]
    found = [folder for folder in candidates if folder.last.is_file()]
    if not found:
        raise ValueError(
            f"resume=true found no run of the task {task!r} with a checkpoint under {RUNS.resolve()}; give run_dir=..."
        )
    return max(found, key=lambda folder: folder.last.stat().st_mtime)
