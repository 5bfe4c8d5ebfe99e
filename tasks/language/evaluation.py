"""The score of a whole split: every token predicted once, with a sliding context before it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from maskzoo.positions import Positions
from maskzoo.tasks.language.corpora import Split
from maskzoo.tasks.language.data import LanguageData
from maskzoo.tasks.language.packing import IGNORED
from maskzoo.transformer.language_model import LanguageModel, evaluating


@dataclass(frozen=True)
class Evaluation:
    """What predicting a split cost: summed nats over `tokens` targets that stand for `bytes` bytes of text."""

    nats: float
    tokens: int
    bytes: int
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / max(self.tokens, 1)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))  # e^710 is beyond a float

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / max(self.bytes, 1)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else math.inf


@dataclass(frozen=True)
class _Window:
    """Inputs `sequence[start:end]`, targets one place later; targets count from place `counted` of the sequence on."""

    sequence: int
    start: int
    end: int
    counted: int

    @property
    def length(self) -> int:
        return self.end - self.start


def evaluate_split(
    model: LanguageModel,
    sequences: Sequence[np.ndarray],
    byte_lengths: np.ndarray,
    *,
    context: int,
    stride: int,
    batch_size: int = 16,
    precision: str = "32",
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Predict every token of every sequence but its first, each exactly once.

    A sequence is read in windows of `context` tokens that move on by `stride`, and a window scores only the tokens
    that the windows before it did not. So every target has at least `context - stride` tokens before it that the
    model may look at, except near the start of its sequence, where it has all there are.

    Args:
        model: evaluated without dropout, on the device it is on.
        sequences: token ids, each whole number arrays as the model reads them: with BOS and EOS where it learned them.
        byte_lengths: [vocabulary], how many bytes of text each token stands for.
        context: the longest input; at most what the model was built for.
        stride: 1 is the most exact and slowest, `context` the fastest.
        batch_size: windows at once; does not change the result.
        precision: "32", or "bf16" for autocast.
        progress: called with (targets scored, all targets) after each batch.

    Raises:
        ValueError: context or stride out of range; nothing to predict.
    """
    limit = model.config.context
    if not 1 <= context <= limit:
        raise ValueError(f"context={context} is out of range: the model was built for 1 to {limit}")
    if not 1 <= stride <= context:
        raise ValueError(f"stride={stride} is out of range: it must be from 1 to context={context}")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is out of range: it must be at least 1")
    windows = [window for number, ids in enumerate(sequences) for window in _windows(number, len(ids), context, stride)]
    if not windows:
        raise ValueError("nothing to evaluate: no sequence has two tokens or more")
    # Alike lengths together; the longest first shows what memory it takes.
    windows.sort(key=lambda window: -window.length)
    device = next(model.parameters()).device
    total = sum(window.end - window.counted for window in windows)
    nats, tokens, n_bytes, started = 0.0, 0, 0, time.perf_counter()
    # no_grad rather than inference_mode: plans made here are cached and may serve training later.
    with evaluating(model), torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        for first in range(0, len(windows), batch_size):
            inputs, targets, at = _batch(windows[first : first + batch_size], sequences)
            logits = model(inputs.to(device), at.to(device))
            losses = functional.cross_entropy(
                logits.flatten(0, 1).float(), targets.flatten().to(device), ignore_index=IGNORED, reduction="none"
            )
            counted = targets[targets != IGNORED].numpy()
            nats += float(losses.double().sum())
            tokens += len(counted)
            n_bytes += int(byte_lengths[counted].sum())
            if progress is not None:
                progress(tokens, total)
    return Evaluation(nats, tokens, n_bytes, time.perf_counter() - started)


def _windows(number: int, length: int, context: int, stride: int) -> Iterator[_Window]:
    last = length - 1  # the last token is only a target
    end = 0
    while end < last:
        counted, end = end, min(last, end + (stride if end else context))
        yield _Window(number, max(0, end - context), end, counted)


def _batch(windows: list[_Window], sequences: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor, Positions]:
    longest = max(window.length for window in windows)
    inputs = np.zeros((len(windows), longest), np.int64)
    targets = np.full((len(windows), longest), IGNORED, np.int64)
    for row, window in enumerate(windows):
        ids = sequences[window.sequence][window.start : window.end + 1]
        inputs[row, : window.length] = ids[:-1]
        skipped = window.counted - window.start
        targets[row, skipped : window.length] = ids[1 + skipped :]
    at = Positions.tokens([window.length for window in windows], padded_to=longest)
    return torch.from_numpy(inputs), torch.from_numpy(targets), at


def split_sequences(data: LanguageData, split: Split) -> list[np.ndarray]:
    """A whole split as the model learned to read it: BOS and EOS around each document, or one bare stream."""
    documents, tokenizer = data.documents(split), data.tokenizer
    if data.config.batching == "stream":
        return [documents[number] for number in range(len(documents))]
    return [
        np.concatenate([[tokenizer.bos], documents[number].astype(np.int64), [tokenizer.eos]])
        for number in range(len(documents))
    ]
