"""What the language task hands to the audit: its model, rows of its own batches, and its way from text to targets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from maskzoo.positions import Positions
from maskzoo.tasks.language.batch import TokenBatch
from maskzoo.tasks.language.data import LanguageData
from maskzoo.tasks.language.documents import Documents
from maskzoo.tasks.training.audit import AuditCase
from maskzoo.transformer.language_model import LanguageModel

ROWS = 2


def language_case(model: LanguageModel, data: LanguageData) -> AuditCase:
    """Two rows of the first training batch, and the tokens of a text to make targets of."""
    device = model.embedding.weight.device
    documents = _excerpt(data)

    def batch_of(tokens: Tensor) -> tuple[tuple[Tensor, Positions], Tensor]:
        changed = Documents(tokens.cpu().numpy().astype(documents.ids.dtype), documents.offsets)
        rows = data.over(changed).train_rows(epoch=0)
        block = rows.block(np.arange(len(rows)))
        batch = TokenBatch.from_block(block, data.tokenizer.byte_lengths).to(device)
        return (batch.tokens, batch.at), batch.targets

    batch = data.train_batches(0)[0].to(device)
    rows = _telling_rows(batch)
    at = batch.at if batch.at.batch == 1 else batch.at.select(rows)
    return AuditCase(
        model=model,
        inputs=(batch.tokens[rows], at),
        permits=model.mask,
        at=at,
        layers=model.config.layers,
        example=torch.from_numpy(documents.ids.astype(np.int64)),
        batch_of=batch_of,
    )


def _excerpt(data: LanguageData) -> Documents:
    """The first tokens of the training text, enough for a row and a half, in pieces shorter than a row."""
    documents, context = data.documents("train"), data.config.context
    length = min(len(documents.ids), max(context + 1, 3 * context // 2))
    cuts = [np.array([0, length])]
    if data.config.batching != "stream":  # which reads one text
        cuts += [documents.offsets[documents.offsets < length], np.arange(0, length, max(1, context // 2))]
    return Documents(documents.ids[:length], np.unique(np.concatenate(cuts)))


def _telling_rows(batch: TokenBatch) -> Tensor:
    """The rows of a batch with the most borders between documents, and of those the fullest."""
    segment = batch.at.segment.expand_as(batch.tokens)
    borders = (segment[:, 1:] != segment[:, :-1]).sum(1)
    fullness = (segment >= 0).sum(1)
    order = (borders * (segment.shape[1] + 1) + fullness).argsort(descending=True, stable=True)
    return order[:ROWS]
