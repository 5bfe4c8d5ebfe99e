"""Checkpoint files are whole or absent, and plain."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from maskzoo.tasks.training.checkpoints import write_checkpoint
from maskzoo.tasks.training.errors import OutputFailed


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    write_checkpoint({"step": 1}, path)

    def full(_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputFailed, match=r"last\.ckpt: No space left on device") as caught:
        write_checkpoint({"step": 2}, path)
    assert caught.value.status == 2
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_a_write_that_fails_inside_torch_is_named_too(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "last.ckpt"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OutputFailed, match=r"cannot write the checkpoint .*last\.ckpt: File too large"):
            write_checkpoint({"weights": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFailed, match="cannot write the checkpoint"):
        write_checkpoint({}, tmp_path / "file" / "last.ckpt")
