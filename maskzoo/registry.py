"""Names for everything a person can choose: masks, biases, tasks, data sets.

Providers come in through two doors: installed packages that declare an entry point in the group
`maskzoo.plugins` (the built-in providers use this one too), and local Python files. Either way the module
is imported, and importing it registers what it defines.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import keyword
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

ENTRY_POINT_GROUP = "maskzoo.plugins"

Provider = TypeVar("Provider", bound=Callable[..., Any])


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: ` Did you mean 'causal'?`, or nothing when no known name is close."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""


@dataclass(frozen=True)
class Entry:
    """A registered provider: its name, the class or function, and where it was defined."""

    name: str
    provider: Any
    place: str

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """What a person may write between the parentheses."""
        signature = inspect.signature(self.provider)
        return [
            p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD or p.kind is p.KEYWORD_ONLY
        ]

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.provider) or "").split("\n")[0]


class Registry:
    """A namespace of one kind of provider. A name can be taken once."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def register(self, name: str) -> Callable[[Provider], Provider]:
        """Class decorator that makes a provider available under `name`.

        Raises:
            ValueError: the name is no identifier, or is taken (both places are shown).
        """
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(
                f"{self.kind} name {name!r} must be a Python identifier, so that it can be typed in a rule"
            )

        def add(provider: Provider) -> Provider:
            entry = Entry(name, provider, _place(provider))
            taken = self._entries.get(name)
            if taken is not None and taken.place != entry.place:
                raise ValueError(
                    f"{self.kind} name {name!r} is used twice: at {taken.place} and at {entry.place}; rename one"
                )
            self._entries[name] = entry
            return provider

        return add

    def entry(self, name: str) -> Entry:
        """The entry called `name`.

        Raises:
            ValueError: nothing has this name; the message lists what has, and the nearest.
        """
        load_plugins()
        if name not in self._entries:
            known = ", ".join(self.names()) or "none"
            raise ValueError(f"unknown {self.kind} {name!r}.{nearest(name, self._entries)} Known: {known}")
        return self._entries[name]

    def get(self, name: str) -> Any:
        """The provider called `name`; see `entry` for errors."""
        return self.entry(name).provider

    def names(self) -> list[str]:
        """All names, sorted."""
        load_plugins()
        return sorted(self._entries)

    def discard_from(self, file: str) -> None:
        """Forget what `file` registered: an import that failed half-way leaves nothing behind."""
        self._entries = {n: e for n, e in self._entries.items() if not e.place.startswith(f"{file}:")}


masks = Registry("mask")
biases = Registry("bias")
tasks = Registry("task")
datasets = Registry("data set")


def _place(provider: Any) -> str:
    code = inspect.unwrap(provider)
    try:
        return f"{inspect.getsourcefile(code)}:{inspect.getsourcelines(code)[1]}"
    except (OSError, TypeError):
        return f"{code.__module__}:{code.__qualname__}"


_entry_points_loaded = False
_files_loaded: set[Path] = set()


def load_plugins(files: Sequence[str | Path] = ()) -> None:
    """Import the installed plugins (once) and the local plugin `files` (each once).

    Paths are relative to the current directory.

    Raises:
        ValueError: a plugin is missing or fails to import; names the plugin, its file and the original error.
    """
    global _entry_points_loaded
    if not _entry_points_loaded:
        _entry_points_loaded = True
        try:
            for point in entry_points(group=ENTRY_POINT_GROUP):
                _load_entry_point(point)
        except BaseException:
            _entry_points_loaded = False
            raise
    for file in files:
        _load_file(Path(file))


def _load_entry_point(point: EntryPoint) -> None:
    try:
        point.load()
    except Exception as error:
        spec = importlib.util.find_spec(point.module.split(".")[0])
        where = spec.origin if spec is not None and spec.origin else point.module
        raise ValueError(
            f"plugin {point.name!r} ({point.value}, in {where}) failed to import: {type(error).__name__}: {error}"
        ) from error


def _load_file(file: Path) -> None:
    path = file.expanduser().resolve()
    if path in _files_loaded:
        return
    if not path.is_file():
        raise ValueError(f"plugin file {str(file)!r} does not exist (looked at {path})")
    digest = hashlib.sha1(str(path).encode(), usedforsecurity=False).hexdigest()[:8]
    name = f"maskzoo_plugin_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"plugin file {str(file)!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        for registry in (masks, biases, tasks, datasets):
            registry.discard_from(str(path))
        raise ValueError(f"plugin {path.stem!r} ({path}) failed to import: {type(error).__name__}: {error}") from error
    _files_loaded.add(path)
