"""How much training may use, and the end of it."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class Budget:
    """Steps, minutes or both. The clock goes on from where it stopped when a run is resumed."""

    def __init__(self, max_steps: int | None, max_minutes: float | None) -> None:
        self.max_steps = max_steps
        self.max_seconds = None if max_minutes is None else 60 * max_minutes
        self.seconds_before = 0.0  # used by earlier parts of the run
        self._started: float | None = None

    def start(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time used, over all parts of the run."""
        return self.seconds_before + (0.0 if self._started is None else time.monotonic() - self._started)

    def progress(self, step: int) -> float:
        """The used share of the budget after `step` steps, by whichever bound is nearer; 1.0 is the end."""
        by_steps = 0.0 if self.max_steps is None else step / self.max_steps
        by_time = 0.0 if self.max_seconds is None else self.seconds / self.max_seconds
        return min(1.0, max(by_steps, by_time))

    def seconds_left(self, step: int, seconds_per_step: float) -> float:
        """An estimate of the time to the end."""
        bounds = []
        if self.max_steps is not None:
            bounds.append((self.max_steps - step) * seconds_per_step)
        if self.max_seconds is not None:
            bounds.append(self.max_seconds - self.seconds)
        return max(0.0, min(bounds))

    def doubled(self) -> str:
        """The overrides that give twice as much."""
        bounds = []
        if self.max_steps is not None:
            bounds.append(f"trainer.max_steps={2 * self.max_steps}")
        if self.max_seconds is not None:
            bounds.append(f"trainer.max_minutes={2 * self.max_seconds / 60:g}")
        return " ".join(bounds)

    def __str__(self) -> str:
        parts = []
        if self.max_steps is not None:
            parts.append(f"{self.max_steps:,} step{'s' if self.max_steps > 1 else ''}")
        if self.max_seconds is not None:
            parts.append(f"{self.max_seconds / 60:g} minutes")
        return " or ".join(parts) + (", whichever ends first" if len(parts) == 2 else "")


class StopWhenSpent(Callback):
    """Starts the clock with training, and ends training (with a last validation) when the budget is used up."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.budget.start()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if module.between_steps and self.budget.progress(trainer.global_step) >= 1.0:
            trainer.should_stop = True
