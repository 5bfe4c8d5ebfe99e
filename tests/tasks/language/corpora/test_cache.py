from pathlib import Path

import pytest

from maskzoo.tasks.language.corpora.cache import sha1_of, write_aside


def test_whole_file_or_none(tmp_path):
    path = tmp_path / "new" / "file"
    write_aside(path, lambda file: file.write(b"abc"))
    assert path.read_bytes() == b"abc"
    assert sha1_of(path) == "a9993e364706816aba3e25717850c26c9cd0d89d"  # of FIPS 180-4's example

    def fails(file):
        file.write(b"half")
        raise EOFError("source ended")

    with pytest.raises(EOFError):
        write_aside(path, fails)
    assert path.read_bytes() == b"abc"
    assert list(path.parent.iterdir()) == [path]


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write .*\.\nSet MASKZOO_DATA"):
        write_aside(tmp_path / "file" / "below", lambda file: None)


def test_full_disk(tmp_path):
    def full(file):
        raise OSError(28, "No space left on device")

    with pytest.raises(ValueError, match="No space left"):
        write_aside(Path(tmp_path, "a"), full)
    assert not list(tmp_path.iterdir())
