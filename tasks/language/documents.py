"""Encoded documents: one flat array of token ids and where each document starts."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Documents:
    """Token ids of several documents, laid end to end without marks between them.

    `ids` [N] is uint8, uint16 or int32, whichever is the smallest that holds the vocabulary, so that a text of
    90 MB stays 90 MB. `offsets` [documents + 1] is int64: document d is `ids[offsets[d]:offsets[d + 1]]`.
    """

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def joined(cls, pieces: Iterable[np.ndarray], dtype: np.dtype | type) -> "Documents":
        arrays = [np.asarray(piece, dtype=dtype) for piece in pieces]
        ids = np.concatenate(arrays) if arrays else np.empty(0, dtype)
        return cls(ids, offsets_of([len(array) for array in arrays]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, document: int) -> np.ndarray:
        if not 0 <= document < len(self):
            raise IndexError(f"document {document} of {len(self)}")
        return self.ids[self.offsets[document] : self.offsets[document + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each document, int64 [documents]."""
        return np.diff(self.offsets)


def offsets_of(lengths: Iterable[int] | np.ndarray) -> np.ndarray:
    """Starts of consecutive stretches of the given lengths, and the end of the last: int64 [n + 1]."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64), dtype=np.int64)]).astype(np.int64)
