"""A user's own text: a file, several files, or a folder."""

import os
from pathlib import Path

from maskzoo.registry import datasets
from maskzoo.tasks.language.corpora.splits import check_split, contiguous, split_names

_SPLIT_BY_DOCUMENT_FROM = 20  # documents; then 5 per cent is at least one


@datasets.register("text")
class Text:
    """Your own text: a file, a list of files, or a folder with everything in it that is UTF-8 text.

    Files named one by one are taken as they are. In a folder and the folders below it every file counts that decodes
    as UTF-8 and holds no NUL byte; others are skipped and counted in `skipped`, and so are empty files; names that
    start with a dot are not looked at. From 20 documents on whole documents go to train, val or test (90/5/5, by a
    hash of their names); with fewer, each document is cut into its first 90 per cent, the next 5 and the last 5.
    """

    def __init__(self, path: str | list[str] | None = None) -> None:
        if not path:
            raise ValueError("the data set 'text' needs data.path: a file, a list of files, or a folder")
        self.paths = [Path(one) for one in ([path] if isinstance(path, str) else path)]
        self.skipped = 0
        self._documents = self._read()

    def split(self, name: str) -> list[bytes]:
        """The documents of a part, sorted by name; pieces of documents when there are fewer than 20."""
        check_split(name)
        documents = self._documents
        if len(documents) >= _SPLIT_BY_DOCUMENT_FROM:
            return [documents[document] for document in split_names(documents)[name]]
        pieces = [contiguous(documents[document], name) for document in sorted(documents)]
        return [piece for piece in pieces if piece]

    def __str__(self) -> str:
        shown = ", ".join(str(path) for path in self.paths[:3]) + (", …" if len(self.paths) > 3 else "")
        skipped = f" ({self.skipped} files skipped: empty or not text)" if self.skipped else ""
        return f"{len(self._documents)} documents of {shown}{skipped}"

    def _read(self) -> dict[str, bytes]:
        """Documents by name. Names are relative to what the user named, so that a moved folder splits alike."""
        documents: dict[str, bytes] = {}
        for number, path in enumerate(self.paths):
            prefix = f"{number}/" if len(self.paths) > 1 else ""
            if path.is_dir():
                documents |= {prefix + name: text for name, text in self._folder(path).items()}
            else:
                documents[prefix + path.name] = _file(path)
        return documents

    def _folder(self, folder: Path) -> dict[str, bytes]:
        documents = {}
        skipped_before = self.skipped
        for file in _files_below(folder):
            text = _contents(file)
            if text and _is_text(text):
                documents[file.relative_to(folder).as_posix()] = text
            else:
                self.skipped += 1
        if not documents:
            skipped = self.skipped - skipped_before
            what = f"{skipped} files, all empty or not UTF-8 text" if skipped else "no files"
            raise ValueError(f"data.path={folder} has no text: the folder holds {what}")
        return documents


def _file(path: Path) -> bytes:
    if not path.exists():
        raise ValueError(f"data.path={path} does not exist")
    text = _contents(path)
    if not text:
        raise ValueError(f"data.path={path} is an empty file")
    return text


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error


def _files_below(folder: Path) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in sorted(files) if not name.startswith(".")]
    return [file for file in found if file.is_file()]


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
