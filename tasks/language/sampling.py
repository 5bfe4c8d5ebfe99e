"""The order of batches: a pure function of (seed, epoch), and a loader that can be stopped and resumed in it."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from maskzoo.tasks.language.batch import TokenBatch
from maskzoo.tasks.language.packing import Rows


def epoch_generator(seed: int, epoch: int, purpose: str) -> np.random.Generator:
    """Random numbers of one epoch for one purpose, independent of every other and of what was drawn before."""
    return np.random.default_rng([seed, epoch, *purpose.encode()])


class Batches(Dataset):
    """Batches `order[i * size : (i + 1) * size]` of rows; the last may be smaller."""

    def __init__(self, rows: Rows, order: np.ndarray, size: int, byte_lengths: np.ndarray) -> None:
        self.rows, self.order, self.size, self.byte_lengths = rows, order, size, byte_lengths

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __getitem__(self, batch: int) -> TokenBatch:
        rows = self.order[batch * self.size : (batch + 1) * self.size]
        return TokenBatch.from_block(self.rows.block(rows), self.byte_lengths)


def batch_loader(batches: Batches, workers: int, start: int = 0) -> DataLoader:
    """A torch loader over batches `start`, `start + 1`, … in order, whatever the number of workers."""
    return DataLoader(
        batches,
        batch_size=None,
        sampler=range(start, len(batches)),
        num_workers=workers,
        collate_fn=_as_it_is,
        # Its own generator: a loader draws a number when it starts, and dropout must not depend on that.
        generator=torch.Generator(),
    )


class ResumableLoader:
    """Loads one epoch after another and knows how far it is: the next batch is number `batch` of epoch `epoch`.

    Iterating gives what is left of the current epoch and goes on to the next one; prefetching workers do not matter,
    because only batches that were handed out count. A state taken after batch k (in `on_train_batch_end` or later)
    resumes at batch k + 1. The epochs are counted here and not taken from Lightning, whose count may skip one when a
    checkpoint of an epoch's end is resumed.

    Args:
        batches_of_epoch: the batches of an epoch, a pure function of its number.
        length: how many batches each epoch has.
        workers: processes that prepare batches.
        limit: an epoch ends after so many batches, as with the trainer's limit_train_batches.
    """

    def __init__(
        self, batches_of_epoch: Callable[[int], Batches], length: int, workers: int = 0, limit: int | None = None
    ) -> None:
        self._batches_of_epoch, self._length, self._workers = batches_of_epoch, length, workers
        self._limit = length if limit is None else min(limit, length)
        assert self._limit > 0
        self.epoch, self.batch = 0, 0

    def __len__(self) -> int:
        """Batches in a whole epoch, not yet limited."""
        return self._length

    def __iter__(self) -> Iterator[TokenBatch]:
        epoch, first = (self.epoch, self.batch) if self.batch < self._limit else (self.epoch + 1, 0)
        batches = self._batches_of_epoch(epoch)
        assert len(batches) == self._length
        for number, batch in enumerate(batch_loader(batches, self._workers, first), first + 1):
            ended = number == self._limit
            self.epoch, self.batch = (epoch + 1, 0) if ended else (epoch, number)
            yield batch
            if ended:
                return

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.batch, "length": self._length}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict()` was taken. ValueError when the epoch then had another number of batches."""
        if state["length"] != self._length:
            raise ValueError(
                f"cannot resume: an epoch had {state['length']} batches when the checkpoint was written and has "
                f"{self._length} now; use the same data, tokenizer, context and batch_size"
            )
        self.epoch, self.batch = state["epoch"], state["batch"]


def _as_it_is(batch: Any) -> Any:
    return batch
