"""Training on the mean over all counted targets of an optimizer step, however the step is cut into batches."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from maskzoo.tasks.training.budget import Budget
from maskzoo.tasks.training.optimizer import OptimizerConfig, build_optimizer
from maskzoo.tasks.training.schedule import learning_rate_factor


@dataclass
class Window:
    """What one optimizer step has added up so far."""

    losses: list[Tensor] = field(default_factory=list)  # each the sum over one batch, a scalar
    batches: list[tuple[int, Any]] = field(default_factory=list)  # (number in the epoch, batch)
    count: int = 0

    @property
    def loss(self) -> Tensor:
        return torch.stack(self.losses).sum()


@dataclass
class Spent:
    """Steps with the targets they counted, and the seconds they took without validation."""

    losses: list[Tensor] = field(default_factory=list)  # each the sum over one step, a scalar
    steps: int = 0
    count: int = 0
    seconds: float = 0.0

    def add(self, steps: int, count: int, seconds: float) -> None:
        self.steps += steps
        self.count += count
        self.seconds += seconds


class AccumulatingModule(LightningModule, ABC):
    """A model in training: subclasses say what a batch's summed loss is and how many targets it counts.

    Gradients of sums are added over `accumulate` batches and divided once by the targets of all of them, so that
    every target weighs the same whether it came in a full batch or a nearly empty one. (A mean of batch means does
    not have this property.) The window runs on over the end of an epoch.

    Attributes:
        window: the losses and batches of the step in progress, or of the last one until the next batch.
        gradient_norm: of the step's mean loss, before clipping; None before the first step.
        scores: the newest figures by name ("train/loss", "val/loss", ...).
    """

    def __init__(
        self, model: nn.Module, optimizer: OptimizerConfig, budget: Budget, accumulate: int = 1, log_every: int = 10
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.optimizer_config = optimizer
        self.budget = budget
        self.accumulate = accumulate
        self.log_every = log_every
        self.window = Window()
        self.gradient_norm: Tensor | None = None
        self.scores: dict[str, float] = {}
        self._unreported = Spent()
        self._spent = Spent()
        self._mark = time.perf_counter()

    @abstractmethod
    def summed_loss(self, batch: Any) -> tuple[Tensor, int]:
        """The sum of the losses of the counted targets, a scalar attached to the graph, and their number."""

    @abstractmethod
    def row_losses(self, batch: Any) -> Tensor:
        """The summed loss of each row of a batch, [B]; read only to say where a loss is not finite."""

    @property
    def between_steps(self) -> bool:
        """No gradient is half added up: the state of training is whole and may be saved."""
        return len(self.window.losses) in (0, self.accumulate)

    def configure_optimizers(self) -> Optimizer:
        return build_optimizer(self.model, self.optimizer_config)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        if len(self.window.losses) == self.accumulate:
            self.window = Window()
        loss, count = self.summed_loss(batch)
        self.manual_backward(loss)
        self.window.losses.append(loss.detach())
        self.window.batches.append((batch_idx, batch))
        self.window.count += count
        if len(self.window.losses) == self.accumulate:
            self._finish_step()

    def _finish_step(self) -> None:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        progress = self.budget.progress(self.global_step)
        self.learning_rate_factor = learning_rate_factor(self.optimizer_config, self.global_step, progress)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self.learning_rate_factor
        self._divide_and_clip()
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        self._unreported.losses.append(self.window.loss)
        self._unreported.add(1, self.window.count, now - self._mark)
        self._mark = now
        if self.global_step % self.log_every == 0:
            self._report_training()

    def _divide_and_clip(self) -> None:
        """Turn gradients of the sum into gradients of the mean, of norm at most `clip_norm`: one pass over them."""
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        count = max(self.window.count, 1)
        self.gradient_norm = torch.nn.utils.get_total_norm(gradients) / count
        scale = torch.full_like(self.gradient_norm, 1.0 / count)
        if self.optimizer_config.clip_norm:
            scale *= (self.optimizer_config.clip_norm / (self.gradient_norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, scale)

    def _report_training(self) -> None:
        assert self.gradient_norm is not None
        since = self._unreported
        self.report(
            {
                "train/loss": float(torch.stack(since.losses).sum()) / max(since.count, 1),
                "train/gradient_norm": float(self.gradient_norm),
                "lr": self.optimizer_config.lr * self.learning_rate_factor,
                "perf/tokens_per_s": since.count / since.seconds,
                "perf/step_ms": 1000 * since.seconds / since.steps,
            }
        )
        self._spent.add(since.steps, since.count, since.seconds)
        self._unreported = Spent()

    def report(self, figures: dict[str, float]) -> None:
        """Keep the figures as the newest scores and send them to the loggers under the current optimizer step."""
        self.scores.update(figures)
        for logger in self.loggers:
            logger.log_metrics(figures, step=self.global_step)

    def on_train_start(self) -> None:
        self._mark = time.perf_counter()

    def on_validation_start(self) -> None:
        if self._unreported.steps:
            self._report_training()

    def on_validation_end(self) -> None:
        self._mark = time.perf_counter()

    def speed(self) -> str:
        """The mean over all steps since training started or was resumed."""
        spent = self._spent
        return f"{spent.count / spent.seconds:,.0f} tokens/s, {1000 * spent.seconds / spent.steps:.0f} ms a step"
