"""One training run, from the checked configuration to the scores."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import Logger
from omegaconf import OmegaConf
from rich.console import Console

from maskzoo.checkpoint import read_checkpoint
from maskzoo.registry import load_plugins, tasks
from maskzoo.tasks.training.accumulation import AccumulatingModule
from maskzoo.tasks.training.audit import Audit, check_auditable
from maskzoo.tasks.training.budget import Budget, StopWhenSpent
from maskzoo.tasks.training.checkpoints import Checkpoints
from maskzoo.tasks.training.config import RunConfig
from maskzoo.tasks.training.errors import OutputFailed
from maskzoo.tasks.training.folders import folder_to_resume, new_folder
from maskzoo.tasks.training.loggers import MetricsFile, Mode, build_wandb_logger, finish_wandb, new_wandb_id, wandb_mode
from maskzoo.tasks.training.nonfinite import NonFiniteGuard
from maskzoo.tasks.training.progress import ShowProgress
from maskzoo.tasks.training.resume import check_same, check_unfinished, with_saved
from maskzoo.tasks.training.summary import print_table, rows_after, rows_before
from maskzoo.tasks.training.termination import Termination
from maskzoo.tasks.training.trainer import build_trainer, quiet_lightning
from maskzoo.transformer.block import Block


def train(config: RunConfig, words: Sequence[str] | None = None) -> dict[str, float]:
    """Train, or go on with a run, as configured; returns the newest scores by name ("val/loss", ...).

    Args:
        config: the whole configuration; `data` and `model` are instances of the task's own classes.
        words: the overrides as they were typed. A run that is resumed takes every other value from its checkpoint;
            without `words`, `config` is taken as it is.

    Raises:
        ValueError: the configuration, the data or the run to resume do not work.
        TrainingStopped: training ended before its time; carries the exit status.
    """
    with quiet_lightning():
        return Run(config, words).train()


class Run:
    """Everything that belongs to one run while it lasts.

    Nothing is written before the data are read and the model is built, so that a mistake leaves no folder behind.

    Attributes:
        facts: what the task says about data, model and rule, for the summary.
        saved: the "maskzoo" entry of the checkpoint that is resumed, else None.
        resume_command: what a person types to go on with this run.
    """

    def __init__(self, config: RunConfig, words: Sequence[str] | None) -> None:
        self.console = Console()
        self.saved: dict[str, Any] | None = None
        if config.resume:
            folder = folder_to_resume(config.task, config.run_dir)
            self.saved = read_checkpoint(folder.last)["maskzoo"]
            if words is not None:
                config = with_saved(config, self.saved["config"], words)
            check_same(self.saved["config"], dataclasses.asdict(config))
        load_plugins(config.plugins)
        self.config = config
        self.configuration = dataclasses.asdict(config)
        self.budget = Budget(config.trainer.max_steps, config.trainer.max_minutes)
        if self.saved:
            self.budget.seconds_before = self.saved["seconds"]
            check_unfinished(self.budget, self.saved["step"], folder)
        if config.trainer.threads is not None:
            torch.set_num_threads(config.trainer.threads)
        seed_everything(config.seed, verbose=False)
        self.task = tasks.get(config.task)(config, self.budget)
        if config.audit != "off":
            check_auditable(self.task, config.task)
        self.task.data.setup("fit")
        if config.trainer.test:
            self.task.data.setup("test")
        self.module: AccumulatingModule = self.task.module
        self.facts: dict[str, str] = self.task.summary()
        self.folder = folder if config.resume else new_folder(config.task, self.configuration, config.run_dir)
        self._write_configuration()
        self.resume_command = shlex.join(["maskzoo", "train", "resume=true", f"run_dir={self.folder.path}"])
        self.wandb_id = self.saved["wandb"] if self.saved else new_wandb_id()
        self.checkpoints = Checkpoints(
            self.folder.checkpoints, config.trainer.checkpoint_every, self.budget, self._description()
        )
        self.audit = Audit(config.audit, self.task, self.folder.audit, self.console)

    def train(self) -> dict[str, float]:
        if self.config.trainer.compile:
            for block in self.module.modules():
                if isinstance(block, Block):
                    block.compile()  # in place: the names of the weights stay as they are
        mode = wandb_mode(self.config.logger.wandb)
        exit_code = 1
        try:
            trainer = self._trainer(mode)
            print_table(self.console, f"maskzoo: training {self.config.task}", rows_before(self, trainer, mode))
            trainer.fit(self.module, self.task.data, ckpt_path=self.folder.last if self.saved else None)
            self._take_best_weights(trainer)
            if self.config.trainer.test:
                trainer.test(self.module, self.task.data, verbose=False)
            print_table(self.console, "maskzoo: done", rows_after(self, trainer))
            exit_code = 0
        finally:
            if mode != "disabled":
                finish_wandb(exit_code)
        return dict(self.module.scores)

    def _trainer(self, mode: Mode) -> Trainer:
        loggers: list[Logger] = [MetricsFile(self.folder.metrics, self.saved["step"] if self.saved else None)]
        if mode != "disabled":
            loggers.append(
                build_wandb_logger(self.config.logger, mode, self.folder.path, self.wandb_id, self.configuration)
            )
        callbacks = [
            StopWhenSpent(self.budget),
            NonFiniteGuard(),
            ShowProgress(self.console, self.budget, self.config.trainer.log_every),
            self.checkpoints,
            self.audit,
            Termination(self.checkpoints, self.resume_command),
        ]
        return build_trainer(self.config.trainer, self.folder.path, callbacks, loggers)

    def _description(self) -> dict[str, Any]:
        """What every checkpoint of this run says about it, in plain types."""
        return {
            "format": 1,
            "task": self.config.task,
            **self.task.description(),
            "config": self.configuration,
            "plugins": [os.path.abspath(plugin) for plugin in self.config.plugins],
            "wandb": self.wandb_id,
        }

    def _write_configuration(self) -> None:
        try:
            self.folder.config.write_text(OmegaConf.to_yaml(OmegaConf.create(self.configuration)), encoding="utf-8")
        except OSError as error:
            raise OutputFailed(
                f"cannot write {self.folder.config}: {error.strerror}; choose another run_dir"
            ) from error

    def _take_best_weights(self, trainer: Trainer) -> None:
        """Test and write with the weights of best.ckpt, which are also what `maskzoo generate` takes."""
        if self.checkpoints.best_step not in (None, trainer.global_step):
            self.module.load_state_dict(read_checkpoint(self.folder.best)["state_dict"])
