"""Rules that hold a tensor which the user brings."""

import hashlib
from functools import cached_property

from torch import Tensor


class Brought:
    """Makes rules equal where their classes and their tensors are, so that plans can be kept by them."""

    @property
    def contents(self) -> Tensor:
        """The tensor."""
        raise AssertionError(f"{type(self).__name__} says which tensor it holds")

    @cached_property
    def _digest(self) -> bytes:
        shape = str(tuple(self.contents.shape)).encode()
        return hashlib.blake2b(shape + self.contents.cpu().numpy().tobytes(), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash((type(self), self._digest))
