import sysconfig
from pathlib import Path

import pytest

from maskzoo.registry import datasets
from maskzoo.tasks.language.corpora.splits import SPLITS
from maskzoo.tasks.language.corpora.stdlib import Stdlib


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))

    def add(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return add


def test_this_python(monkeypatch):
    corpus = Stdlib()
    parts = {name: corpus.split(name) for name in SPLITS}
    assert parts["train"] == Stdlib().split("train")
    documents = [*parts["train"], *parts["val"], *parts["test"]]
    assert all(documents) and len(documents) > 200
    assert Path(sysconfig.get_path("stdlib"), "dataclasses.py").read_bytes() in documents
    assert 0.03 < len(parts["val"]) / len(documents) < 0.07


def test_only_the_library_itself(library):
    for number in range(30):
        library(f"module{number:02}.py", f"# {number}\n")
    for name in ("test/a.py", "site-packages/b.py", "json/tests/c.py", "idlelib/d.py", "notes.txt", "empty.py"):
        library(name, "" if name == "empty.py" else "other\n")
    library("json/tool.py", "# json\n")
    library("_sysconfigdata_linux.py", "build = 1\n")
    documents = [document for name in SPLITS for document in Stdlib().split(name)]
    assert sorted(documents) == sorted([b"# json\n"] + [f"# {number}\n".encode() for number in range(30)])


def test_python_without_its_source(library):
    with pytest.raises(ValueError, match=r"no library source .*\nUse data=text"):
        Stdlib().split("train")


def test_registered():
    assert datasets.get("stdlib") is Stdlib
    assert "nothing fetched" in datasets.entry("stdlib").summary
