"""Language modelling: data sets, tokenizers, batches and the task that trains on them."""

from typing import TYPE_CHECKING, Any

# Importing these registers the data sets stdlib, enwik8 and text and the task; none of them needs lightning.
from maskzoo.tasks.language.corpora import Enwik8, Stdlib, Text
from maskzoo.tasks.language.task import Language

if TYPE_CHECKING:
    from maskzoo.tasks.language.batch import TokenBatch
    from maskzoo.tasks.language.data import DataConfig, LanguageData
    from maskzoo.tasks.language.tokenizers import BPETokenizer, ByteTokenizer, Tokenizer

_LAZY = {
    "BPETokenizer": "tokenizers",
    "ByteTokenizer": "tokenizers",
    "DataConfig": "data",
    "LanguageData": "data",
    "TokenBatch": "batch",
    "Tokenizer": "tokenizers",
}

__all__ = [
    "BPETokenizer",
    "ByteTokenizer",
    "DataConfig",
    "Enwik8",
    "Language",
    "LanguageData",
    "Stdlib",
    "Text",
    "TokenBatch",
    "Tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
