"""Texts to train on, one a file. A corpus is a class registered in `maskzoo.registry.datasets`:

@datasets.register("poems")
class Poems:
    def __init__(self, path: str | list[str] | None = None) -> None: ...   # only if it takes data.path
    def split(self, name: str) -> list[bytes]: ...                          # "train", "val" or "test"
"""

from typing import Protocol

from maskzoo.tasks.language.corpora.enwik8 import Enwik8
from maskzoo.tasks.language.corpora.splits import Split
from maskzoo.tasks.language.corpora.stdlib import Stdlib
from maskzoo.tasks.language.corpora.text import Text


class Corpus(Protocol):
    """What a data set has to give."""

    def split(self, name: Split) -> list[bytes]:
        """The documents of one part, always the same ones in the same order; none of them empty."""
        ...

    def __str__(self) -> str:
        """Where the text comes from, for the summary."""
        ...


__all__ = ["Corpus", "Enwik8", "Split", "Stdlib", "Text"]
