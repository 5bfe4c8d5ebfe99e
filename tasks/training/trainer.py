"""How long and on what training runs: the configuration and the Lightning trainer built from it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger

from maskzoo.tasks.training.checkpoints import CheckpointFiles
from maskzoo.tasks.training.precision import PRECISIONS, resolved_precision
from maskzoo.tasks.training.ranges import check_choice, check_number


@dataclass
class TrainerConfig:
    """Training ends at `max_steps` optimizer steps or after `max_minutes`, whichever comes first.

    A step adds up the gradients of `accumulate` batches. `validate_every`, `checkpoint_every` and `log_every` count
    optimizer steps; `validation_batches` limits each validation (None: the whole split). With `test` the test split is
    scored at the end. `precision` is "32", "bf16" (autocast), or "auto": bf16 where the processor multiplies it.
    """

    max_steps: int | None = 1000
    max_minutes: float | None = None
    accumulate: int = 1
    precision: str = "auto"
    compile: bool = False
    validate_every: int = 100
    validation_batches: int | None = 50
    checkpoint_every: int = 500
    log_every: int = 10
    accelerator: str = "auto"
    devices: int = 1
    threads: int | None = None
    test: bool = False

    def __post_init__(self) -> None:
        if self.max_steps is None and self.max_minutes is None:
            raise ValueError("trainer.max_steps and trainer.max_minutes are both null: give at least one of them")
        check_number("trainer.max_steps", self.max_steps, minimum=1)
        check_number("trainer.max_minutes", self.max_minutes, above=0)
        check_number("trainer.accumulate", self.accumulate, minimum=1)
        check_choice("trainer.precision", self.precision, PRECISIONS)
        check_number("trainer.validate_every", self.validate_every, minimum=1)
        check_number("trainer.validation_batches", self.validation_batches, minimum=1)
        check_number("trainer.checkpoint_every", self.checkpoint_every, minimum=1)
        check_number("trainer.log_every", self.log_every, minimum=1)
        check_choice("trainer.accelerator", self.accelerator, ("auto", "cpu", "gpu", "mps"))
        check_number("trainer.devices", self.devices, minimum=1, maximum=1)
        check_number("trainer.threads", self.threads, minimum=1)


def build_trainer(config: TrainerConfig, folder: Path, callbacks: list[Callback], loggers: list[Logger]) -> Trainer:
    """A Lightning trainer that leaves its end to the callbacks, and its files and its words to us."""
    on_gpu = config.accelerator == "gpu" or (config.accelerator == "auto" and torch.cuda.is_available())
    precision = resolved_precision(config.precision, "cuda" if on_gpu else "cpu")
    return Trainer(
        accelerator=config.accelerator,
        devices=config.devices,
        precision={"32": "32-true", "bf16": "bf16-mixed"}[precision],  # type: ignore[arg-type]
        max_steps=-1,
        max_epochs=-1,
        val_check_interval=config.validate_every * config.accumulate,  # in batches
        check_val_every_n_epoch=None,  # counted across epochs
        limit_val_batches=config.validation_batches or 1.0,
        num_sanity_val_steps=0,
        inference_mode=False,  # plans made in validation are cached and serve training too
        logger=loggers,
        callbacks=callbacks,
        plugins=[CheckpointFiles()],
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without Lightning's tips, device lines and advice on workers; its errors still come."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\.")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
