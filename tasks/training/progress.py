"""What a person sees while training runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from maskzoo.tasks.training.budget import Budget


class ShowProgress(Callback):
    """Step, losses, speed and time left."""

    def __init__(self, console: Console, budget: Budget, log_every: int) -> None:
        self.console = console
        self.budget = budget
        self.log_every = log_every
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        if self.console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f}%  {task.description}"),
                console=self.console,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task(self._line(trainer, module), total=1.0)
            self._bar.start()

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        if not module.between_steps:
            return
        step = trainer.global_step
        if self._bar is not None:
            self._bar.update(self._task, completed=self.budget.progress(step), description=self._line(trainer, module))
        elif step % self.log_every == 0:
            self._print(self._line(trainer, module))

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        figures = {
            name.split("/")[1].replace("_", " "): figure
            for name, figure in module.scores.items()
            if name.startswith("val/")
        }
        self._print(
            f"step {trainer.global_step:,}  validation: "
            + ", ".join(f"{name} {figure:.4g}" for name, figure in figures.items())
        )

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, module: Any, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)

    def _line(self, trainer: Trainer, module: Any) -> str:
        step, scores = trainer.global_step, module.scores
        parts = [f"step {step:,}" + (f"/{self.budget.max_steps:,}" if self.budget.max_steps else "")]
        if "train/loss" in scores:
            parts.append(f"loss {scores['train/loss']:.3f}")
        if "val/loss" in scores:
            parts.append(f"val {scores['val/loss']:.3f}")
        if "perf/tokens_per_s" in scores:
            parts.append(f"{scores['perf/tokens_per_s']:,.0f} tokens/s")
            parts.append(f"{duration(self.budget.seconds_left(step, scores['perf/step_ms'] / 1000))} left")
        return "  ".join(parts)


def duration(seconds: float) -> str:
    """ "2:05" or "1:02:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
