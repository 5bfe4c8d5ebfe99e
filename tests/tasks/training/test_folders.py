"""Where a run lies, and which run is resumed."""

import os
from pathlib import Path

import pytest

from maskzoo.tasks.training.errors import OutputFailed
from maskzoo.tasks.training.folders import folder_to_resume, new_folder


def test_runs_started_together_get_folders_of_their_own() -> None:
    folders = {new_folder("language", {"seed": 1}, None).path for _ in range(3)}
    assert len(folders) == 3
    assert all(path.parent == Path("runs") and "=" not in path.name and "_language_" in path.name for path in folders)


def test_the_newest_run_of_the_task_is_resumed() -> None:
    old, new, other = (new_folder(task, {}, None) for task in ("language", "language", "images"))
    for time, folder in ((100, new), (50, old), (200, other)):
        folder.last.touch()
        os.utime(folder.last, (time, time))
    assert folder_to_resume("language", None) == new
    assert folder_to_resume("language", str(old.path)) == old


def test_nothing_to_resume_is_said() -> None:
    with pytest.raises(ValueError, match="no run of the task 'language'"):
        folder_to_resume("language", None)
    with pytest.raises(ValueError, match="run_dir=elsewhere holds no run"):
        folder_to_resume("language", "elsewhere")


def test_a_run_is_not_overwritten() -> None:
    new_folder("language", {}, "mine").last.touch()
    with pytest.raises(ValueError, match="run_dir=mine holds a run already: add resume=true"):
        new_folder("language", {}, "mine")


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFailed, match="cannot write to the run folder"):
        new_folder("language", {}, str(tmp_path / "file" / "run"))
