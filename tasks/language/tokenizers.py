"""Bytes to token ids and back, without loss.

BOS and EOS are ids that no text can produce; both stand for no bytes.
"""

import hashlib
import io
import json
import logging
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO, Protocol

import numpy as np

from maskzoo.cache import cache_folder
from maskzoo.tasks.language.corpora.cache import write_aside
from maskzoo.tasks.language.documents import Documents, offsets_of

_BLOCK = 1 << 17  # characters that BPE takes as one text
_BLOCKS_AT_ONCE = 16
_TRAINING_BYTES = 32 << 20  # text that BPE merges are learned from, at most

log = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """What data, training and generation need of a tokenizer."""

    vocabulary: int
    """Number of ids, BOS and EOS included."""
    bos: int
    eos: int

    @property
    def byte_lengths(self) -> np.ndarray:
        """int64 [vocabulary]: how many bytes of text each id stands for."""
        ...

    def encode(self, text: bytes | str) -> np.ndarray:
        """Ids of a text, without BOS and EOS. A str is taken as UTF-8, with Python's marks for undecodable bytes."""
        ...

    def encode_documents(self, documents: Sequence[bytes]) -> Documents:
        """Ids of many documents in one flat array."""
        ...

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes that ids stand for. ValueError for an id outside the vocabulary."""
        ...

    def state(self) -> dict[str, Any]:
        """Plain values from which `from_state` builds an equal tokenizer."""
        ...


def from_state(state: dict[str, Any]) -> Tokenizer:
    """The tokenizer that gave this `state()`."""
    kind = state.get("kind")
    if kind == "bytes":
        return ByteTokenizer()
    if kind == "bpe":
        return BPETokenizer(state["json"])
    raise ValueError(f"unknown tokenizer kind {kind!r}; known: bytes, bpe")


class ByteTokenizer:
    """Every byte is its own id (0 … 255), then BOS 256 and EOS 257."""

    vocabulary = 258
    bos = 256
    eos = 257

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        return np.array([1] * 256 + [0, 0], np.int64)

    def encode(self, text: bytes | str) -> np.ndarray:
        """uint8 [bytes], a view of the bytes."""
        return np.frombuffer(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text, np.uint8)

    def encode_documents(self, documents: Sequence[bytes]) -> Documents:
        text = documents[0] if len(documents) == 1 else b"".join(documents)
        return Documents(self.encode(text), offsets_of([len(document) for document in documents]))

    def decode(self, ids: Iterable[int]) -> bytes:
        values = _checked(ids, self.vocabulary)
        return values[values < 256].astype(np.uint8).tobytes()

    def state(self) -> dict[str, Any]:
        return {"kind": "bytes"}


class BPETokenizer:
    """Byte-level byte-pair encoding (Sennrich et al. 2016; on bytes as in GPT-2, Radford et al. 2019).

    Lossless on any bytes: all 256 are in the vocabulary, and a byte that is no valid UTF-8 where it stands becomes its
    own token. A text of more than 131,072 characters is encoded in blocks that end after a line, each by
    itself. BOS and EOS are the two ids after those of the merges, so text that spells a mark is still only text.

    `json` is the serialised form of the `tokenizers` library.
    """

    def __init__(self, json: str) -> None:
        from tokenizers import Tokenizer as Library

        self.json = json
        self._library = Library.from_str(json)
        merged = self._library.get_vocab_size()
        self.vocabulary, self.bos, self.eos = merged + 2, merged, merged + 1
        self.dtype = np.uint16 if self.vocabulary <= 1 << 16 else np.int32

    @classmethod
    def train(cls, documents: Sequence[bytes], vocabulary_size: int) -> "BPETokenizer":
        """Learn merges from documents until there are `vocabulary_size` ids, BOS and EOS among them, or no more pairs
        that occur twice. Of more than 32 MiB of text, evenly spaced blocks of 32 MiB in all are used.

        Raises:
            ValueError: `vocabulary_size` is below 258 (256 bytes, BOS, EOS).
        """
        if vocabulary_size < 258:
            raise ValueError(f"vocabulary_size={vocabulary_size} is below 258: 256 bytes, BOS and EOS")
        from tokenizers import Tokenizer as Library
        from tokenizers import models, pre_tokenizers, trainers

        library = Library(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary_size - 2,
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        library.train_from_iterator(_training_sample(documents), trainer)
        return cls(library.to_str())

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        """The text of each id."""
        alphabet = _byte_alphabet()
        texts = [b""] * self.vocabulary
        for token, number in self._library.get_vocab().items():
            texts[number] = bytes(alphabet[character] for character in token)
        return texts

    @cached_property
    def _byte_ids(self) -> np.ndarray:
        """Ids of the 256 single bytes."""
        ids = {text: number for number, text in enumerate(self._token_bytes)}
        return np.array([ids[bytes([byte])] for byte in range(256)], self.dtype)

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        return np.array([len(text) for text in self._token_bytes], np.int64)

    def encode(self, text: bytes | str) -> np.ndarray:
        """uint16 or int32 [tokens]."""
        return self.encode_documents([text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text]).ids

    def encode_documents(self, documents: Sequence[bytes]) -> Documents:
        pieces = (self._encode(document) for document in documents)
        return Documents.joined(pieces, self.dtype)

    def _encode(self, document: bytes) -> np.ndarray:
        parts: list[np.ndarray] = []
        # surrogateescape marks each byte that is not UTF-8; the library takes the valid stretches between them.
        for stretch in re.split("([\udc80-\udcff]+)", document.decode("utf-8", "surrogateescape")):
            if stretch and "\udc80" <= stretch[0] <= "\udcff":
                parts.append(self._byte_ids[np.frombuffer(stretch.encode("utf-8", "surrogateescape"), np.uint8)])
            else:
                blocks = _blocks(stretch)
                while some := list(islice(blocks, _BLOCKS_AT_ONCE)):
                    parts += [np.array(one.ids, self.dtype) for one in self._library.encode_batch_fast(some)]
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def decode(self, ids: Iterable[int]) -> bytes:
        return b"".join(self._token_bytes[number] for number in _checked(ids, self.vocabulary))

    def state(self) -> dict[str, Any]:
        return {"kind": "bpe", "json": self.json}


def trained_bpe(documents: Sequence[bytes], vocabulary_size: int) -> BPETokenizer:
    """`BPETokenizer.train`, kept in the cache folder under a hash of the text and the settings."""
    file = cache_folder() / "bpe" / f"{_digest(documents, f'train {vocabulary_size} {_TRAINING_BYTES}')}.json"
    if file.is_file():
        try:
            return BPETokenizer(file.read_text(encoding="utf-8"))
        except Exception:  # the library raises bare Exception for text it cannot read
            log.warning("%s cannot be read and is made again", file)
    tokenizer = BPETokenizer.train(documents, vocabulary_size)
    _keep(file, tokenizer.json.encode())
    return tokenizer


def encoded_documents(tokenizer: Tokenizer, documents: Sequence[bytes]) -> Documents:
    """`tokenizer.encode_documents`, kept in the cache folder when that is slow (BPE)."""
    if isinstance(tokenizer, ByteTokenizer):
        return tokenizer.encode_documents(documents)
    settings = json.dumps(tokenizer.state(), sort_keys=True)
    file = cache_folder() / "tokens" / f"{_digest(documents, f'encode {_BLOCK} {settings}')}.npz"
    if file.is_file():
        try:
            with np.load(file) as kept:
                return Documents(kept["ids"], kept["offsets"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            log.warning("%s cannot be read and is made again", file)
    encoded = tokenizer.encode_documents(documents)
    buffer = io.BytesIO()
    np.savez(buffer, ids=encoded.ids, offsets=encoded.offsets)
    _keep(file, buffer.getbuffer())
    return encoded


def _keep(file: Any, contents: bytes | memoryview) -> None:
    """Into the cache if that is possible; the result is the same without."""

    def write(target: BinaryIO) -> None:
        target.write(contents)

    try:
        write_aside(file, write)
    except ValueError as error:
        log.warning("not cached: %s", error)


def _digest(documents: Sequence[bytes], settings: str) -> str:
    digest = hashlib.sha256(settings.encode())
    for document in documents:
        digest.update(len(document).to_bytes(8, "big"))
        digest.update(document)
    return digest.hexdigest()[:24]


def _checked(ids: Iterable[int], vocabulary: int) -> np.ndarray:
    values = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
    wrong = (values < 0) | (values >= vocabulary)
    if wrong.any():
        place = int(wrong.argmax())
        raise ValueError(f"token id {values[place]} at place {place} is outside the vocabulary of {vocabulary}")
    return values


def _blocks(text: str) -> Iterator[str]:
    """Stretches of at most `_BLOCK` characters, ended after the last line end in them where there is one."""
    start = 0
    while start < len(text):
        stop = start + _BLOCK
        if stop < len(text):
            stop = (text.rfind("\n", start, stop) + 1) or stop
        yield text[start:stop]
        start = stop


def _training_sample(documents: Sequence[bytes]) -> Iterator[str]:
    blocks = [document[start : start + _BLOCK] for document in documents for start in range(0, len(document), _BLOCK)]
    total = sum(map(len, blocks))
    taken = 0
    for number, block in enumerate(blocks, 1):
        # Take a block whenever what was taken falls behind its even share of the blocks so far.
        if total <= _TRAINING_BYTES or taken + len(block) <= _TRAINING_BYTES * number / len(blocks):
            taken += len(block)
            yield block.decode("utf-8", "ignore")


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte: itself where printable, else 256 upwards."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
