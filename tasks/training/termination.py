"""Ends training on SIGTERM or Ctrl-C with a checkpoint to go on from."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from maskzoo.tasks.training.accumulation import AccumulatingModule
from maskzoo.tasks.training.checkpoints import Checkpoints
from maskzoo.tasks.training.errors import Terminated


class Termination(Callback):
    """After SIGTERM or the first SIGINT: finish the optimizer step, write last.ckpt, raise Terminated.

    In validation the check comes after every batch, and the checkpoint is that of the step before it. A second
    Ctrl-C stops at once, without a checkpoint.
    """

    def __init__(self, checkpoints: Checkpoints, resume_command: str) -> None:
        self.checkpoints = checkpoints
        self.resume_command = resume_command
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        # Here and not earlier, because Lightning puts its own handlers in place just before.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        assert isinstance(module, AccumulatingModule)
        if self.received is not None and module.between_steps:
            self._stop(trainer)

    def on_validation_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if self.received is not None:
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        assert self.received is not None
        path = self.checkpoints.save_last(trainer)
        error = Terminated(
            f"{self.received.name} received: stopped after step {trainer.global_step}, saved {path}. "
            f"Go on with: {self.resume_command}"
        )
        error.status = 128 + self.received
        raise error

    def restore(self) -> None:
        """Put the signal handlers back that were there before training."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.restore()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        self.restore()
