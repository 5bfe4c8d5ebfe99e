"""The data module of the language task: a corpus, a tokenizer and a way of making rows, chosen by name."""

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from maskzoo.registry import datasets, nearest
from maskzoo.tasks.language.corpora import Corpus, Split
from maskzoo.tasks.language.corpora.splits import SPLITS
from maskzoo.tasks.language.documents import Documents
from maskzoo.tasks.language.packing import PackedRows, PaddedRows, Rows, StreamRows
from maskzoo.tasks.language.sampling import Batches, ResumableLoader, batch_loader, epoch_generator
from maskzoo.tasks.language.tokenizers import ByteTokenizer, Tokenizer, encoded_documents, trained_bpe

_TOKENIZERS = ("bytes", "bpe")
_BATCHINGS = ("packed", "padded", "stream")


@dataclass
class DataConfig:
    """What to read and how to batch it.

    Raises:
        ValueError: a value out of range or a name unknown; names the key, the value and what is allowed.
    """

    name: str = "stdlib"
    """A registered data set: stdlib, enwik8, text, or a plugin's."""
    path: Any = None
    """str, list of str or None: the file, files or folder of a data set that takes one. Kept absolute."""
    tokenizer: str = "bytes"
    """bytes, or bpe (learned from the training text)."""
    vocabulary_size: int = 4096
    """Ids of a BPE tokenizer, BOS and EOS included."""
    context: int = 256
    """Tokens in a row."""
    batch_size: int = 16
    """Rows in a batch."""
    batching: str = "packed"
    """packed: documents end to end, no padding; padded: one document a row; stream: windows over one long text."""
    workers: int = 0
    """Processes that prepare batches; 0 prepares them in the training process."""
    max_bytes: int | None = None
    """Use only the first bytes of the training text."""

    def __post_init__(self) -> None:
        _check_choice("data.tokenizer", self.tokenizer, _TOKENIZERS)
        _check_choice("data.batching", self.batching, _BATCHINGS)
        _check_least("data.context", self.context, 1)
        _check_least("data.batch_size", self.batch_size, 1)
        _check_least("data.workers", self.workers, 0)
        _check_least("data.vocabulary_size", self.vocabulary_size, 258)
        if self.max_bytes is not None:
            _check_least("data.max_bytes", self.max_bytes, 1)
        self.path = _absolute(self.path)


class LanguageData(LightningDataModule):
    """Train, val and test batches (`TokenBatch`) of one corpus.

    Training sees every row once an epoch, in an order that (seed, epoch) alone decides: `packed` lays the documents
    end to end in a new order each epoch and shuffles the rows; `padded` shuffles its rows; `stream` starts its windows
    at a random token and shuffles them. An incomplete last batch is dropped in training and kept in evaluation, where
    nothing is shuffled and every target is predicted once.

    Args:
        config: see `DataConfig`.
        seed: of the order.
        tokenizer: use this one (of a checkpoint) instead of the one that the configuration names.

    Raises:
        ValueError: by `setup` or a loader: text missing, empty, shorter than the context, or fewer rows than a batch.
    """

    def __init__(self, config: DataConfig, seed: int = 0, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.config, self.seed = config, seed
        self._given_tokenizer = tokenizer
        self._documents: dict[str, Documents] = {}
        self._resume_at: dict[str, Any] | None = None

    @cached_property
    def corpus(self) -> Corpus:
        provider = datasets.get(self.config.name)
        if self.config.path is None:
            return provider()
        if "path" not in inspect.signature(provider).parameters:
            raise ValueError(
                f"the data set {self.config.name!r} takes no data.path; for text of your own use data=text data.path=…"
            )
        return provider(path=self.config.path)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The given tokenizer, the byte tokenizer, or BPE learned from the training text and cached."""
        if self._given_tokenizer is not None:
            return self._given_tokenizer
        if self.config.tokenizer == "bytes":
            return ByteTokenizer()
        return trained_bpe(self.texts("train"), self.config.vocabulary_size)

    def over(self, documents: Documents) -> "LanguageData":
        """The same settings, seed and tokenizer over other training documents."""
        data = LanguageData(self.config, self.seed, self.tokenizer)
        data._documents["train"] = documents
        return data

    def texts(self, split: Split) -> list[bytes]:
        """The documents of a part as they are, the training part cut to `max_bytes`."""
        documents = self.corpus.split(split)
        return _first_bytes(documents, self.config.max_bytes) if split == "train" else documents

    def documents(self, split: Split) -> Documents:
        """The documents of a part as token ids, without BOS and EOS; encoded once."""
        if split not in self._documents:
            self._documents[split] = encoded_documents(self.tokenizer, self.texts(split))
        return self._documents[split]

    def setup(self, stage: str | None = None) -> None:
        """Read, encode and check the parts that a stage needs: fit, validate, test, or None for all."""
        parts: dict[str | None, tuple[Split, ...]] = {
            "fit": ("train", "val"),
            "validate": ("val",),
            "test": ("test",),
            "predict": (),
        }
        for split in parts.get(stage, SPLITS):
            self._check(split)

    def train_dataloader(self) -> ResumableLoader:
        """A loader that goes on from epoch to epoch and can be stopped and resumed at any batch.

        To look at a batch without asking for a loader, use `train_batches(epoch)[number]`.
        """
        length, limit = self.train_batches_per_epoch, None
        if self.trainer is not None:
            share = self.trainer.limit_train_batches  # a count, or a float for a share of them
            limit = int(share * length) if isinstance(share, float) else share
        loader = ResumableLoader(self.train_batches, length, self.config.workers, limit)
        if self._resume_at is not None:
            loader.load_state_dict(self._resume_at)
            self._resume_at = None
        return loader

    def state_dict(self) -> dict[str, Any]:
        """Where training is in the order of batches; Lightning keeps it in its checkpoints.

        Lightning also keeps the states of loaders, but does not restore them at the end of an epoch.
        """
        loader = None if self.trainer is None else self.trainer.train_dataloader
        return {"train": loader.state_dict()} if isinstance(loader, ResumableLoader) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resume_at = state.get("train")

    def val_dataloader(self) -> DataLoader:
        return self._evaluation_loader("val")

    def test_dataloader(self) -> DataLoader:
        return self._evaluation_loader("test")

    @property
    def train_batches_per_epoch(self) -> int:
        """Whole batches in an epoch; the same for every epoch. ValueError when there is none."""
        rows = len(self.train_rows(epoch=0))
        if rows < self.config.batch_size:
            raise ValueError(
                f"data.batch_size={self.config.batch_size} is more than the {rows} rows of context "
                f"{self.config.context} that the training text gives; use a smaller batch_size or more text"
            )
        return rows // self.config.batch_size

    def train_batches(self, epoch: int) -> Batches:
        """The batches of an epoch in their order."""
        rows = self.train_rows(epoch)
        order = epoch_generator(self.seed, epoch, "rows").permutation(len(rows))
        whole = len(rows) // self.config.batch_size * self.config.batch_size
        return Batches(rows, order[:whole], self.config.batch_size, self.tokenizer.byte_lengths)

    def train_rows(self, epoch: int) -> Rows:
        """The rows of an epoch, not yet shuffled; their number does not depend on the epoch."""
        self._check("train")
        random = epoch_generator(self.seed, epoch, "documents")
        documents, context = self.documents("train"), self.config.context
        if self.config.batching == "stream":
            targets = len(documents.ids) - 1
            # Leave out up to a context of text, so that the windows can start anywhere in it.
            windows = max(1, (targets - context + 1) // context)
            offset = int(random.integers(min(targets - windows * context + 1, context)))
            return StreamRows(documents.ids, context, offset, windows)
        bos, eos = self.tokenizer.bos, self.tokenizer.eos
        if self.config.batching == "packed":
            return PackedRows(documents, context, bos, eos, random.permutation(len(documents)))
        return PaddedRows(documents, context, bos, eos)

    def evaluation_rows(self, split: Split) -> Rows:
        """The rows of a part in the order of the text, all of them."""
        self._check(split)
        documents, context = self.documents(split), self.config.context
        if self.config.batching == "stream":
            return StreamRows(documents.ids, context)
        make = PackedRows if self.config.batching == "packed" else PaddedRows
        return make(documents, context, self.tokenizer.bos, self.tokenizer.eos)

    def summary(self) -> dict[str, Any]:
        """What a person wants to know before training: source, tokenizer and sizes of train and val."""
        known: dict[str, Any] = {"source": str(self.corpus), "vocabulary": self.tokenizer.vocabulary}
        for split in ("train", "val"):
            documents = self.documents(split)
            known[f"{split}_documents"] = len(documents)
            known[f"{split}_tokens"] = len(documents.ids)
            known[f"{split}_bytes"] = byte_count(documents, self.tokenizer)
        known["batches_per_epoch"] = self.train_batches_per_epoch
        return known

    def _evaluation_loader(self, split: Split) -> DataLoader:
        rows = self.evaluation_rows(split)
        batches = Batches(rows, np.arange(len(rows)), self.config.batch_size, self.tokenizer.byte_lengths)
        return batch_loader(batches, self.config.workers)

    def _check(self, split: Split) -> None:
        """ValueError when a part has too little text for its rows."""
        if self.trainer is not None and self.trainer.world_size > 1:
            raise ValueError(f"LanguageData feeds one process; trainer.devices gives {self.trainer.world_size}")
        documents, context = self.documents(split), self.config.context
        tokens = len(documents.ids)
        if self.config.batching == "stream" and len(documents) != 1:
            raise ValueError(
                f"data.batching=stream reads one long text, and the {split} part of {self.config.name!r} has "
                f"{len(documents)} documents; use packed or padded"
            )
        least = {"train": context + 1, "val": 2, "test": 2}[split]
        if tokens < least:
            needs = f"data.context={context} needs at least {context + 1}" if split == "train" else "2 are needed"
            raise ValueError(f"the {split} text is too short: it has {tokens} tokens, and {needs}")


def byte_count(documents: Documents, tokenizer: Tokenizer) -> int:
    """How many bytes of text encoded documents stand for."""
    block = 1 << 20  # looked up a part at a time, because byte_lengths are 8 bytes wide
    starts = range(0, len(documents.ids), block)
    return sum(int(tokenizer.byte_lengths[documents.ids[start : start + block]].sum()) for start in starts)


def _first_bytes(documents: Sequence[bytes], limit: int | None) -> list[bytes]:
    """Documents in order until `limit` bytes are together; the last one may be cut."""
    if limit is None:
        return list(documents)
    kept = []
    for document in documents:
        if limit <= 0:
            break
        kept.append(document[:limit])
        limit -= len(document)
    return kept


def _absolute(path: Any) -> Any:
    """Paths as seen from where the command was started, whatever the working folder becomes later."""
    if path is None:
        return None
    if isinstance(path, str | os.PathLike):
        return os.path.abspath(os.path.expanduser(path))
    if isinstance(path, Sequence) and path and all(isinstance(one, str | os.PathLike) for one in path):
        return [_absolute(one) for one in path]
    raise ValueError(f"data.path={path!r} must be a path or a list of paths")


def _check_choice(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{key}={value!r} is unknown.{nearest(str(value), known)} Known: {', '.join(known)}")


def _check_least(key: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{key}={value!r} must be a whole number of at least {least}")
