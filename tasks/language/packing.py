"""From documents to rows of a batch, as pure functions of the documents.

A document x1 … xn is read as BOS x1 … xn and predicts x1 … xn EOS: n + 1 (input, target) pairs. Rows are made of
pairs, so a token is a target exactly once wherever the rows are cut, and the first input of a piece that continues a
document is the last token of the piece before it. Each piece is a segment of its own whose index starts at 0.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from maskzoo.positions import PADDING
from maskzoo.tasks.language.documents import Documents, offsets_of

IGNORED = -100  # the target that no loss counts, as in torch's cross_entropy


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows: tokens and targets [R, T], segment [R, T] or [1, T] when one row serves all; all int64.

    Padding has token 0, target -100 and segment -1. The index of a position is its order in its run of equal segments.
    """

    tokens: np.ndarray
    targets: np.ndarray
    segment: np.ndarray


class Rows(Protocol):
    """A sequence of rows that can be asked for any of them at once."""

    def __len__(self) -> int: ...

    def block(self, rows: np.ndarray) -> Block:
        """The rows with these numbers, in this order."""
        ...


class _Pairs:
    """(input, target) pairs of documents, addressed by document and place (0 … n) in it."""

    def __init__(self, documents: Documents, bos: int, eos: int) -> None:
        if not len(documents):
            raise ValueError("no documents to make rows of")
        self.ids, self.bos, self.eos = documents.ids, bos, eos
        self.starts, self.lengths = documents.offsets[:-1], documents.lengths

    def gather(self, document: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        start, length = self.starts[document], self.lengths[document]
        if not len(self.ids):  # only empty documents: each is BOS, EOS
            return np.full(place.shape, self.bos, np.int64), np.full(place.shape, self.eos, np.int64)
        last = len(self.ids) - 1
        before = self.ids[np.minimum(start + np.maximum(place - 1, 0), last)]
        here = self.ids[np.minimum(start + place, last)]
        tokens = np.where(place == 0, self.bos, before.astype(np.int64))
        targets = np.where(place == length, self.eos, here.astype(np.int64))
        return tokens, targets


class PackedRows:
    """Documents laid end to end in `order`, cut into rows of `context` pairs. Only the last row has padding."""

    def __init__(self, documents: Documents, context: int, bos: int, eos: int, order: np.ndarray | None = None) -> None:
        self.context = context
        self.order = np.arange(len(documents)) if order is None else order
        self._pairs = _Pairs(documents, bos, eos)
        self._starts = offsets_of(documents.lengths[self.order] + 1)

    def __len__(self) -> int:
        return -(-int(self._starts[-1]) // self.context)

    def block(self, rows: np.ndarray) -> Block:
        row_start = np.asarray(rows, np.int64)[:, None] * self.context
        at = row_start + np.arange(self.context)  # [R, T], places in the laid-out pairs
        real = at < self._starts[-1]
        at = np.where(real, at, row_start)
        turn = np.searchsorted(self._starts, at, side="right") - 1
        tokens, targets = self._pairs.gather(self.order[turn], at - self._starts[turn])
        return _masked(real, tokens, targets, turn - turn[:, :1])


class PaddedRows:
    """One document a row, or one piece of at most `context` pairs; right padding to the longest row of a block."""

    def __init__(self, documents: Documents, context: int, bos: int, eos: int) -> None:
        self._pairs = _Pairs(documents, bos, eos)
        pairs = documents.lengths + 1
        pieces = -(-pairs // context)
        self._document = np.repeat(np.arange(len(documents)), pieces)
        ordinal = np.arange(len(self._document)) - offsets_of(pieces)[self._document]
        self._start = ordinal * context
        self._length = np.minimum(pairs[self._document] - self._start, context)

    def __len__(self) -> int:
        return len(self._document)

    def block(self, rows: np.ndarray) -> Block:
        length = self._length[rows][:, None]
        index = np.arange(int(length.max()))[None, :]
        real = index < length
        index = np.where(real, index, 0)
        document = np.broadcast_to(self._document[rows][:, None], real.shape)
        tokens, targets = self._pairs.gather(document, self._start[rows][:, None] + index)
        return _masked(real, tokens, targets, np.zeros_like(index))


class StreamRows:
    """Consecutive windows over one long text, from token `offset` on: row i reads `context` tokens and predicts the
    same tokens one place later. No BOS and no EOS. `windows` stops there; without it the last window may be padded.
    """

    def __init__(self, ids: np.ndarray, context: int, offset: int = 0, windows: int | None = None) -> None:
        targets = len(ids) - 1 - offset
        if targets < 1:
            raise ValueError(f"a text of {len(ids)} tokens has none to predict from token {offset} on")
        self.ids, self.context, self.offset = ids, context, offset
        self._windows = -(-targets // context) if windows is None else windows
        assert self._windows * context - targets < context

    def __len__(self) -> int:
        return self._windows

    def block(self, rows: np.ndarray) -> Block:
        at = self.offset + np.asarray(rows, np.int64)[:, None] * self.context + np.arange(self.context)
        real = at < len(self.ids) - 1
        at = np.where(real, at, 0)
        tokens, targets = self.ids[at].astype(np.int64), self.ids[at + 1].astype(np.int64)
        if real.all():
            return Block(tokens, targets, np.zeros((1, self.context), np.int64))
        return _masked(real, tokens, targets, np.zeros_like(at))


def _masked(real: np.ndarray, tokens: np.ndarray, targets: np.ndarray, segment: np.ndarray) -> Block:
    """The block with padding wherever a position is not real."""
    return Block(np.where(real, tokens, 0), np.where(real, targets, IGNORED), np.where(real, segment, PADDING))
