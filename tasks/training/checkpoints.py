"""Checkpoint files: written whole or not at all, readable with `torch.load(weights_only=True)`."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO

from maskzoo.checkpoint import read_checkpoint
from maskzoo.tasks.training.budget import Budget
from maskzoo.tasks.training.errors import OutputFailed


def write_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write beside the target and rename, so that `path` never holds half a checkpoint.

    Raises:
        OutputFailed: the folder is read-only, the disk is full, ...; what stood at `path` before is still there.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except (OSError, RuntimeError) as error:  # torch wraps a full disk in a RuntimeError
        cause = error if isinstance(error, OSError) else (error.__context__ or error)
        reason = getattr(cause, "strerror", None) or str(cause).splitlines()[0]
        raise OutputFailed(
            f"cannot write the checkpoint {path}: {reason}. Free the disk or choose another run_dir"
        ) from error
    finally:
        with suppress(OSError):
            aside.unlink()


class CheckpointFiles(TorchCheckpointIO):
    """Lightning's way to these two functions."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_checkpoint(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path))


class Checkpoints(Callback):
    """Keeps last.ckpt (every `every` steps and after each validation) and best.ckpt (the lowest val/loss).

    `description` goes into every checkpoint under "maskzoo", beside the step, the scores, the time used so far, the
    best score and the state of torch's random numbers, so that a resumed run goes on as if it had not stopped.
    """

    def __init__(self, folder: Path, every: int, budget: Budget, description: dict[str, Any]) -> None:
        self.folder = folder
        self.every = every
        self.budget = budget
        self.description = description
        self.best = math.inf
        self.best_step: int | None = None
        self._saved_step: int | None = None
        self._random: dict[str, torch.Tensor] | None = None

    @property
    def last_path(self) -> Path:
        return self.folder / "last.ckpt"

    @property
    def best_path(self) -> Path:
        return self.folder / "best.ckpt"

    def save_last(self, trainer: Trainer) -> Path:
        trainer.save_checkpoint(self.last_path)
        return self.last_path

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        step = trainer.global_step
        if module.between_steps and step % self.every == 0 and step != self._saved_step:
            self._saved_step = step
            self.save_last(trainer)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        loss = module.scores["val/loss"]
        if not math.isfinite(loss):
            return
        if loss < self.best:
            self.best, self.best_step = loss, trainer.global_step
            trainer.save_checkpoint(self.best_path)
        self.save_last(trainer)

    def on_save_checkpoint(self, trainer: Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["maskzoo"] = {
            **self.description,
            "step": trainer.global_step,
            "scores": dict(module.scores),
            "seconds": self.budget.seconds,
            "best": {"loss": self.best, "step": self.best_step},
            "random": _random_state(),
        }

    def on_load_checkpoint(self, trainer: Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        written = checkpoint["maskzoo"]
        self.best, self.best_step = written["best"]["loss"], written["best"]["step"]
        module.scores = dict(written["scores"])
        self.budget.seconds_before = written["seconds"]
        self._random = written["random"]

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        if self._random is not None:
            _set_random_state(self._random)


def _random_state() -> dict[str, torch.Tensor]:
    """Of the generators that dropout draws from."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
