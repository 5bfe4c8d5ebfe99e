"""Stops training before a loss that is NaN or infinite reaches the weights."""

from __future__ import annotations

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from maskzoo.tasks.training.accumulation import AccumulatingModule
from maskzoo.tasks.training.errors import NonFiniteLoss


class NonFiniteGuard(Callback):
    """Raises NonFiniteLoss before the optimizer step, naming the step, the batch and the rows.

    The weights are still those of the step before, and nothing was saved since.
    """

    def on_before_optimizer_step(self, trainer: Trainer, module: LightningModule, optimizer: Optimizer) -> None:
        assert isinstance(module, AccumulatingModule) and module.gradient_norm is not None
        if not torch.isfinite(module.gradient_norm + module.window.loss):
            raise NonFiniteLoss(_message(trainer, module))


def _message(trainer: Trainer, module: AccumulatingModule) -> str:
    step = f"step {trainer.global_step + 1}"
    for loss, (number, batch) in zip(module.window.losses, module.window.batches, strict=True):
        if not torch.isfinite(loss):
            with torch.no_grad():
                rows = (~torch.isfinite(module.row_losses(batch))).nonzero().flatten().tolist()
            where = f"rows {', '.join(map(str, rows))}" if rows else "no single row"
            what = f"the loss is {float(loss)} in batch {number} of epoch {trainer.current_epoch} ({where})"
            break
    else:
        numbers = ", ".join(str(number) for number, _ in module.window.batches)
        what = f"the gradient is not finite, although the loss is, in batch {numbers} of epoch {trainer.current_epoch}"
    return (
        f"{step}: {what}. Training stopped before this step; the checkpoints are from before it. "
        "A lower optimizer.lr or optimizer.clip_norm=1 usually helps"
    )
