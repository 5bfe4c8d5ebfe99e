"""Every counted target weighs the same, however an optimizer step is cut into batches."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader

from maskzoo.positions import Positions
from maskzoo.tasks.language.batch import TokenBatch
from maskzoo.tasks.language.module import LanguageModeling
from maskzoo.tasks.training.accumulation import AccumulatingModule
from maskzoo.tasks.training.budget import Budget, StopWhenSpent
from maskzoo.tasks.training.optimizer import OptimizerConfig
from maskzoo.tasks.training.trainer import TrainerConfig, build_trainer, quiet_lightning
from maskzoo.transformer.language_model import LanguageModel
from maskzoo.transformer.transformer import TransformerConfig


class Gradients(Callback):
    """Keeps a copy of the gradients that the first optimizer step sees."""

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.seen = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


class Given(AccumulatingModule):
    """The loss of a batch (sum, count) is `sum` times a parameter that starts at 1."""

    def __init__(self, **options: Any) -> None:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        super().__init__(model, OptimizerConfig(clip_norm=0), Budget(1, None), **options)

    def summed_loss(self, batch: Any) -> tuple[Tensor, int]:
        return batch[0] * self.model.weight.sum(), batch[1]

    def row_losses(self, batch: Any) -> Tensor:
        return batch[0] * self.model.weight.sum()[None]


def one_step(module: AccumulatingModule, batches: list[Any], folder: Path) -> Gradients:
    gradients = Gradients()
    config = TrainerConfig(max_steps=1, accumulate=module.accumulate, accelerator="cpu", precision="32")
    with quiet_lightning():
        trainer = build_trainer(config, folder, [StopWhenSpent(module.budget), gradients], [])
        trainer.fit(module, loader(batches))
    return gradients


def loader(batches: list[Any]) -> DataLoader:
    return DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch)


def rows(lengths: list[int], ignored: bool = False) -> TokenBatch:
    """Rows of given lengths whose tokens do not depend on their companions."""
    width = max(lengths)
    tokens = torch.stack([torch.arange(width) * (3 + length) % 50 for length in lengths])
    real = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    targets = torch.where(real & (not ignored), (tokens * 7 + 1) % 50, -100)
    counted = int((targets != -100).sum())
    return TokenBatch(tokens, targets, Positions.tokens(lengths), counted, counted)


def language_module(**options: Any) -> LanguageModeling:
    torch.manual_seed(1)
    model = LanguageModel(TransformerConfig(layers=2, width=32, heads=2, context=128), vocabulary=50)
    return LanguageModeling(model, OptimizerConfig(clip_norm=0), Budget(1, None), log_every=1, **options)


def test_mean_of_a_window_is_weighted_by_targets(tmp_path: Path) -> None:
    """B24: (2, 1) and (90, 9) have mean 9.2, not 6."""
    module = Given(accumulate=2, log_every=1)
    gradients = one_step(module, [(torch.tensor(2.0), 1), (torch.tensor(90.0), 9)], tmp_path)
    assert module.scores["train/loss"] == pytest.approx(9.2)
    assert gradients.seen["model.weight"].item() == pytest.approx(9.2)


def test_gradients_do_not_depend_on_how_sequences_are_batched(tmp_path: Path) -> None:
    """B25: 11 and 101 tokens, one after the other or both at once."""
    together = one_step(language_module(), [rows([11, 101])], tmp_path)
    accumulated = one_step(language_module(accumulate=2), [rows([11]), rows([101])], tmp_path)
    for name, gradient in together.seen.items():
        torch.testing.assert_close(accumulated.seen[name], gradient, rtol=1e-4, atol=1e-7)
    assert max(gradient.abs().max() for gradient in together.seen.values()) > 1e-3


def test_batch_without_targets_gives_an_attached_zero(tmp_path: Path) -> None:
    """B26."""
    module = language_module()
    loss, count = module.summed_loss(rows([5, 3], ignored=True))
    assert (loss.item(), count, loss.requires_grad) == (0.0, 0, True)
    gradients = one_step(module, [rows([5, 3], ignored=True)], tmp_path)
    assert all(gradient.eq(0).all() for gradient in gradients.seen.values())
    assert all(parameter.isfinite().all() for parameter in module.parameters())
    assert module.scores["train/loss"] == 0.0


def test_clipping_measures_the_mean_gradient(tmp_path: Path) -> None:
    module = Given(accumulate=2)
    module.optimizer_config.clip_norm = 1.0
    gradients = one_step(module, [(torch.tensor(2.0), 1), (torch.tensor(90.0), 9)], tmp_path)
    assert module.gradient_norm is not None and module.gradient_norm.item() == pytest.approx(9.2)
    assert gradients.seen["model.weight"].item() == pytest.approx(1.0, rel=1e-5)


def test_steps_are_counted_in_windows_across_epochs(tmp_path: Path) -> None:
    module = Given(accumulate=2)
    module.budget = Budget(3, None)
    config = TrainerConfig(max_steps=3, accumulate=2, accelerator="cpu", precision="32")
    with quiet_lightning():
        trainer = build_trainer(config, tmp_path, [StopWhenSpent(module.budget)], [])
        trainer.fit(module, loader([(torch.tensor(1.0), 1)] * 5))
    assert trainer.global_step == 3
    assert trainer.fit_loop.total_batch_idx + 1 == 6
    assert module.between_steps


def test_steps_of_two_optimizers_count_once(tmp_path: Path) -> None:
    module = language_module()
    module.optimizer_config.name = "muon"
    module.budget = Budget(2, None)
    with quiet_lightning():
        trainer = build_trainer(
            TrainerConfig(max_steps=2, accelerator="cpu", precision="32"), tmp_path, [StopWhenSpent(module.budget)], []
        )
        trainer.fit(module, loader([rows([20, 30])] * 4))
    assert trainer.global_step == 2
    assert math.isfinite(module.scores["train/loss"])
