"""Training a language model: the loss of the next token, and what it comes to in perplexity and bits per byte."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from maskzoo.tasks.language.batch import TokenBatch
from maskzoo.tasks.language.evaluation import Evaluation
from maskzoo.tasks.language.packing import IGNORED
from maskzoo.tasks.training.accumulation import AccumulatingModule
from maskzoo.transformer.language_model import LanguageModel


class LanguageModeling(AccumulatingModule):
    """Next-token prediction. Losses are in nats and weighted by tokens everywhere.

    Logged: train/loss, val/loss (nats per counted target), val/perplexity, val/bits_per_byte.
    """

    model: LanguageModel

    def summed_loss(self, batch: TokenBatch) -> tuple[Tensor, int]:
        """Sum over the counted targets in nats, and how many there are; a batch without any gives an attached 0."""
        return self._token_losses(batch, "sum"), batch.target_count

    def row_losses(self, batch: TokenBatch) -> Tensor:
        return self._token_losses(batch, "none").view_as(batch.targets).sum(-1)

    def _token_losses(self, batch: TokenBatch, reduction: str) -> Tensor:
        logits = self.model(batch.tokens, batch.at)
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=IGNORED, reduction=reduction
        )

    def on_validation_epoch_start(self) -> None:
        self._nats: list[Tensor] = []
        self._tokens = self._bytes = 0

    def validation_step(self, batch: TokenBatch, batch_idx: int) -> None:
        nats, tokens = self.summed_loss(batch)
        self._nats.append(nats)
        self._tokens += tokens
        self._bytes += batch.target_bytes

    def on_validation_epoch_end(self) -> None:
        self._report_evaluation("val")

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step

    def on_test_epoch_end(self) -> None:
        self._report_evaluation("test")

    def _report_evaluation(self, split: str) -> None:
        score = Evaluation(float(torch.stack(self._nats).double().sum()), self._tokens, self._bytes)
        self.report(
            {
                f"{split}/loss": score.loss,
                f"{split}/perplexity": score.perplexity,
                f"{split}/bits_per_byte": score.bits_per_byte,
            }
        )
        self.log(f"{split}/loss", score.loss, logger=False, batch_size=1)
