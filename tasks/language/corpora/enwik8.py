"""enwik8: the first 10^8 bytes of an English Wikipedia dump, the usual test of byte-level models.

Source: M. Mahoney, "Large Text Compression Benchmark", http://mattmahoney.net/dc/textdata.html
"""

import gzip
import http.client
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from maskzoo.cache import cache_folder
from maskzoo.registry import datasets
from maskzoo.tasks.language.corpora.cache import sha1_of, write_aside
from maskzoo.tasks.language.corpora.splits import check_split, cuts

ADDRESS = "http://mattmahoney.net/dc/enwik8.zip"
SIZE = 100_000_000
SHA1 = "57b8363b814821dc9d47aa4d41f58733519076b2"
_FILE_NAMES = ("enwik8", "enwik8.gz", "enwik8.zip")
_BLOCK = 1 << 20
_REMEDY = "Remove it, or name another file with data.path."


@datasets.register("enwik8")
class Enwik8:
    """The first 100 MB of English Wikipedia: train 90 MB, val the next 5 MB, test the last 5 MB.

    `path` is the file `enwik8`, `enwik8.gz` or `enwik8.zip`, or a folder that holds one. Without it the cache folder
    ($MASKZOO_DATA or ~/.cache/maskzoo) is looked through, and then the file is downloaded into it. Size and SHA-1 are
    always verified. Each part is one document.
    """

    def __init__(self, path: str | None = None) -> None:
        if path is not None and not isinstance(path, str):
            raise ValueError(f"enwik8 is one file: data.path must be one path, not {path!r}")
        self.path = None if path is None else Path(path)
        self._verified: Path | None = None

    def split(self, name: str) -> list[bytes]:
        """One document: the bytes of this part. ValueError when the file is not to be had, or is damaged."""
        check_split(name)
        first, second = cuts(SIZE)
        start, stop = {"train": (0, first), "val": (first, second), "test": (second, SIZE)}[name]
        with self.file().open("rb") as file:
            file.seek(start)
            return [file.read(stop - start)]

    def file(self) -> Path:
        """The verified, unpacked file; found, unpacked or downloaded on the first call."""
        if self._verified is None:
            found = _find(cache_folder() if self.path is None else self.path)
            if found is None:
                if self.path is not None:
                    raise ValueError(f"data.path={self.path} is not enwik8, enwik8.gz or enwik8.zip, nor holds one")
                found = _download()
            raw = found if found.suffix not in (".gz", ".zip") else _unpack(found)
            _verify(raw, named=raw)
            self._verified = raw
        return self._verified

    def __str__(self) -> str:
        return f"enwik8, {self.path or self._verified or cache_folder()}"


def _find(place: Path) -> Path | None:
    if place.is_file():
        return place
    return next((place / name for name in _FILE_NAMES if (place / name).is_file()), None)


def _verify(raw: Path, named: Path) -> None:
    """ValueError, about the file the user knows as `named`, when `raw` is not exactly enwik8."""
    size = raw.stat().st_size
    if size != SIZE:
        wrong = f"{size:,} bytes instead of {SIZE:,}"
    elif (digest := sha1_of(raw)) != SHA1:
        wrong = f"SHA-1 {digest} instead of {SHA1}"
    else:
        return
    raise ValueError(f"{named} is not enwik8 or is damaged: {wrong}.\n{_REMEDY}")


def _unpack(packed: Path) -> Path:
    """The raw file in the cache folder, from an archive anywhere."""
    raw = cache_folder() / "enwik8"
    if raw.is_file():
        return raw

    def write(file: BinaryIO) -> None:
        with _open_packed(packed) as source:
            _copy(source, file, limit=SIZE + 1)
        file.flush()
        _verify(Path(file.name), named=packed)

    try:
        write_aside(raw, write)
    except (EOFError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, KeyError) as error:
        raise ValueError(f"{packed} is damaged: {error}.\n{_REMEDY}") from error
    return raw


def _open_packed(packed: Path) -> BinaryIO:
    if packed.suffix == ".gz":
        return gzip.open(packed, "rb")  # type: ignore[return-value]
    return zipfile.ZipFile(packed).open("enwik8")  # type: ignore[return-value]


def _copy(source: BinaryIO, target: BinaryIO, limit: int) -> None:
    while limit > 0 and (part := source.read(min(_BLOCK, limit))):
        target.write(part)
        limit -= len(part)


def _download() -> Path:
    """Fetch the archive, unpack it into the cache folder and verify it; returns the raw file."""
    with tempfile.TemporaryDirectory(prefix="maskzoo-") as folder:
        archive = Path(folder) / "enwik8.zip"
        try:
            with urllib.request.urlopen(ADDRESS, timeout=30) as answer, archive.open("wb") as file:
                _fetch(answer, file)
        except (OSError, http.client.HTTPException) as error:
            raise ValueError(
                f"enwik8 is not in {cache_folder()} and {ADDRESS} gives: {error}. Put enwik8, .gz or .zip there from "
                "that address,\nor name it with data.path=FILE_OR_FOLDER, or run `pip download --no-deps --no-binary "
                "mingru-pytorch mingru-pytorch==0.2.1` and take data/enwik8.gz out of it."
            ) from error
        return _unpack(archive)


def _fetch(answer: http.client.HTTPResponse, file: BinaryIO) -> None:
    total = int(answer.headers.get("Content-Length") or 0)
    done, shown = 0, -1
    while part := answer.read(_BLOCK):
        file.write(part)
        done += len(part)
        tenth = 10 * done // total if total else 0
        if tenth > shown:
            shown = tenth
            of = f" of {total / 1e6:.0f}" if total else ""
            print(f"downloading {ADDRESS}: {done / 1e6:.0f}{of} MB", file=sys.stderr, flush=True)
    if total and done != total:
        raise OSError(f"the connection ended after {done:,} of {total:,} bytes")
