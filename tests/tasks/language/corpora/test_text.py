from itertools import chain

import pytest

from maskzoo.registry import datasets
from maskzoo.tasks.language.corpora.splits import SPLITS
from maskzoo.tasks.language.corpora.text import Text


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_one_file_is_cut_into_three_parts(tmp_path):
    corpus = Text(write(tmp_path / "a.txt", bytes(range(100))))
    assert [corpus.split(name) for name in SPLITS] == [
        [bytes(range(90))],
        [bytes(range(90, 95))],
        [bytes(range(95, 100))],
    ]


def test_few_files_are_each_cut(tmp_path):
    paths = [write(tmp_path / "a", "x" * 100), write(tmp_path / "b", "y" * 200)]
    assert Text(paths).split("val") == [b"x" * 5, b"y" * 10]


def test_many_files_are_split_whole_and_alike_wherever_the_folder_lies(tmp_path):
    texts = [f"page {number}".encode() for number in range(40)]
    for number, text in enumerate(texts):
        write(tmp_path / f"pages/{number}/page.md", text)
    parts = [Text(str(tmp_path / "pages")).split(name) for name in SPLITS]
    assert [len(part) for part in parts] == [36, 2, 2]
    assert sorted(chain.from_iterable(parts)) == sorted(texts)
    (tmp_path / "pages").rename(tmp_path / "moved")
    assert [Text(str(tmp_path / "moved")).split(name) for name in SPLITS] == parts


def test_folder_takes_text_of_any_name_and_counts_what_it_skips(tmp_path):
    write(tmp_path / "a.rst", "größe" * 20)
    write(tmp_path / "deep/er/b", "b" * 100)
    write(tmp_path / "picture.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    write(tmp_path / "nul.txt", b"text\0text")
    write(tmp_path / "empty.txt", "")
    write(tmp_path / ".git/config", "hidden")
    corpus = Text(str(tmp_path))
    assert b"".join(corpus.split("train")) == ("größe" * 20).encode()[:126] + b"b" * 90
    assert corpus.skipped == 3
    assert "3 files skipped" in str(corpus) and "2 documents" in str(corpus)


def test_named_file_is_taken_as_it_is(tmp_path):
    assert Text(write(tmp_path / "latin", b"\xe9" * 20)).split("train") == [b"\xe9" * 18]


def test_files_of_one_name_in_two_folders_are_both_kept(tmp_path):
    paths = [write(tmp_path / "a/x.txt", "a" * 20), write(tmp_path / "b/x.txt", "b" * 20)]
    assert Text(paths).split("train") == [b"a" * 18, b"b" * 18]
    assert Text([str(tmp_path / "a"), str(tmp_path / "b")]).split("train") == [b"a" * 18, b"b" * 18]


def test_faults(tmp_path):
    (tmp_path / "none").mkdir()
    write(tmp_path / "binary/a", b"\xff\xfe")
    for path, message in {
        tmp_path / "missing.txt": "missing.txt does not exist",
        write(tmp_path / "empty.txt", ""): "empty.txt is an empty file",
        tmp_path / "none": "no text: the folder holds no files",
        tmp_path / "binary": "holds 1 files, all empty or not UTF-8 text",
    }.items():
        with pytest.raises(ValueError, match=message):
            Text(str(path))
    with pytest.raises(ValueError, match=r"needs data\.path"):
        Text()


def test_registered():
    assert datasets.get("text") is Text
    assert [parameter.name for parameter in datasets.entry("text").parameters] == ["path"]
