"""Python's own library, as source text: always there, nothing to fetch."""

import platform
import sysconfig
from pathlib import Path

from maskzoo.registry import datasets
from maskzoo.tasks.language.corpora.splits import check_split, split_names

# Not the library itself, or tables rather than code: installed packages, tests, demos, character maps, help texts.
_LEFT_OUT = {
    "__pycache__",
    "dist-packages",
    "encodings",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}


@datasets.register("stdlib")
class Stdlib:
    """Source of Python's standard library, one document a module (the embedded default, nothing fetched).

    About 450 files and 8 MB; the exact text depends on the Python version. Files go to train, val and test (90/5/5)
    by a hash of their paths.
    """

    def __init__(self) -> None:
        self.folder = Path(sysconfig.get_path("stdlib"))

    def split(self, name: str) -> list[bytes]:
        """The modules of a part, sorted by path. ValueError when this Python comes without its source."""
        check_split(name)
        texts = {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in self._modules()}
        texts = {module: text for module, text in texts.items() if text}
        documents = [texts[module] for module in split_names(texts)[name]]
        if not documents:
            raise ValueError(
                f"no library source for the {name} part in {self.folder}: this Python comes without it.\n"
                "Use data=text data.path=FOLDER with text of your own."
            )
        return documents

    def __str__(self) -> str:
        return f"Python {platform.python_version()} library source, {self.folder}"

    def _modules(self) -> list[Path]:
        return [path for path in self.folder.rglob("*.py") if path.is_file() and self._belongs(path)]

    def _belongs(self, path: Path) -> bool:
        parents = path.relative_to(self.folder).parts[:-1]
        if path.name.startswith("_sysconfigdata"):  # written when this Python was built, full of its paths
            return False
        return not any(part in _LEFT_OUT or part.startswith("config-") for part in parents)
