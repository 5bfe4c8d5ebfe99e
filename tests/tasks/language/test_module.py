"""The loss of a language model, and the figures that validation reports."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from maskzoo.positions import Positions
from maskzoo.tasks.language.batch import TokenBatch
from maskzoo.tasks.language.evaluation import Evaluation
from maskzoo.tasks.language.module import LanguageModeling
from maskzoo.tasks.training.budget import Budget
from maskzoo.tasks.training.optimizer import OptimizerConfig
from maskzoo.tasks.training.trainer import TrainerConfig, build_trainer, quiet_lightning
from maskzoo.transformer.language_model import LanguageModel
from maskzoo.transformer.transformer import TransformerConfig


def module(cls: type[LanguageModeling] = LanguageModeling) -> LanguageModeling:
    torch.manual_seed(0)
    model = LanguageModel(TransformerConfig(layers=1, width=32, heads=2, context=16), vocabulary=50)
    return cls(model, OptimizerConfig(), Budget(1, None))


def batch() -> TokenBatch:
    tokens = torch.randint(50, (3, 12))
    targets = torch.randint(50, (3, 12))
    targets[0, 5:] = -100
    targets[2, :] = -100
    return TokenBatch(tokens, targets, Positions.tokens([12] * 3), 17, 40)


def test_the_loss_is_the_sum_over_counted_targets() -> None:
    net, given = module(), batch()
    loss, count = net.summed_loss(given)
    surprise = -net.model(given.tokens, given.at).log_softmax(-1)
    counted = [
        surprise[row, place, given.targets[row, place]]
        for row in range(3)
        for place in range(12)
        if given.targets[row, place] != -100
    ]
    assert count == len(counted) == 17
    torch.testing.assert_close(loss, torch.stack(counted).sum())


def test_rows_add_up_to_the_loss() -> None:
    net, given = module(), batch()
    rows = net.row_losses(given)
    assert rows.shape == (3,) and rows[2] == 0
    torch.testing.assert_close(rows.sum(), net.summed_loss(given)[0])


class Given(LanguageModeling):
    """The summed loss of a batch is the one written into its first token."""

    def summed_loss(self, batch: Any) -> tuple[Tensor, int]:
        return batch.tokens[0, 0].float(), batch.target_count


@pytest.mark.parametrize("stage", ["val", "test"])
def test_validation_is_weighted_by_tokens(tmp_path: Path, stage: str) -> None:
    """B24: (2, 1), (90, 9) → mean 9.2 and perplexity e^9.2."""
    net = module(Given)
    batches = [
        TokenBatch(torch.tensor([[loss]]), torch.tensor([[0]]), Positions.tokens([1]), count, 2 * count)
        for loss, count in ((2, 1), (90, 9))
    ]
    loader = DataLoader(batches, batch_size=None, collate_fn=lambda one: one)
    with quiet_lightning():
        trainer = build_trainer(TrainerConfig(accelerator="cpu", precision="32"), tmp_path, [], [])
        run = trainer.validate if stage == "val" else trainer.test
        run(net, loader, verbose=False)
    assert net.scores == pytest.approx(
        {
            f"{stage}/loss": 9.2,
            f"{stage}/perplexity": math.exp(9.2),
            f"{stage}/bits_per_byte": 92 / math.log(2) / 20,
        },
        rel=1e-5,
    )


def test_figures_stay_finite() -> None:
    nothing = Evaluation(nats=0.0, tokens=0, bytes=0)
    assert (nothing.loss, nothing.perplexity, nothing.bits_per_byte) == (0.0, 1.0, 0.0)
    assert math.isfinite(Evaluation(nats=1e9, tokens=1, bytes=1).perplexity)
