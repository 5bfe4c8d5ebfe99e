import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from maskzoo.cli.configuration import store_schema
from maskzoo.cli.launch import Options, launch


@dataclass
class JobConfig:
    mask: str = "causal"
    size: int = 1
    path: str = "here"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    store_schema("test_job", JobConfig)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Jobs:
    """Stands in for training: remembers what it was called with, and fails for one size."""

    def __init__(self, error: Exception | None = None, failing_size: int = 2) -> None:
        self.configs: list[JobConfig] = []
        self.words: list[list[str]] = []
        self.error, self.failing_size = error, failing_size

    def __call__(self, config: Any, words: list[str]) -> int:
        self.configs.append(config)
        self.words.append(words)
        if self.error is not None and config.size == self.failing_size:
            raise self.error
        return 0


def test_one_job_gets_the_typed_configuration(empty_folder: Path) -> None:
    jobs = Jobs()
    assert launch("test_job", jobs, ["mask=causal & window(3)", "size=4"], Options()) == 0
    assert jobs.configs == [JobConfig(mask="causal & window(3)", size=4)]
    assert jobs.words == [["mask=causal & window(3)", "size=4"]]
    assert list(empty_folder.iterdir()) == []  # no outputs/, no .hydra/, no log


def test_a_sweep_runs_every_rule(empty_folder: Path) -> None:
    jobs = Jobs()
    options = Options(multirun=True)
    assert launch("test_job", jobs, ["mask=causal,causal & window(size=6, both_sides=True)", "size=1,2"], options) == 0
    assert [(config.mask, config.size) for config in jobs.configs] == [
        ("causal", 1),
        ("causal", 2),
        ("causal & window(size=6, both_sides=True)", 1),
        ("causal & window(size=6, both_sides=True)", 2),
    ]
    assert jobs.words[-1] == ["mask=causal & window(size=6, both_sides=True)", "size=2"]
    assert list(empty_folder.iterdir()) == []


def test_a_failing_job_fails_alone(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = Jobs(ValueError("no room"))
    assert launch("test_job", jobs, ["size=1,2,3"], Options(multirun=True)) == 2
    assert [config.size for config in jobs.configs] == [1, 2, 3]
    message = capsys.readouterr().err
    assert "maskzoo: no room" in message
    assert message.endswith("maskzoo: 1 of 3 jobs failed:\n  job 1: size=2\n")
    assert "Traceback" not in message


def test_an_internal_error_of_a_job_gives_status_1() -> None:
    assert launch("test_job", Jobs(KeyError("x")), ["size=1,2,3"], Options(multirun=True)) == 1


def test_a_signal_ends_the_whole_sweep() -> None:
    from maskzoo.tasks.training.errors import Terminated

    jobs = Jobs(Terminated("SIGTERM received"))
    with pytest.raises(SystemExit) as leaving:
        launch("test_job", jobs, ["size=1,2,3"], Options(multirun=True))
    assert leaving.value.code == 143
    assert [config.size for config in jobs.configs] == [1, 2]


def test_a_value_that_does_not_fit_stops_a_sweep_before_its_first_job() -> None:
    jobs = Jobs()
    with pytest.raises(ValueError, match="size=abc does not fit: it must be a whole number"):
        launch("test_job", jobs, ["size=1,abc"], Options(multirun=True))
    assert jobs.configs == []


def test_the_error_of_a_single_job_comes_through(capsys: pytest.CaptureFixture[str]) -> None:
    error = KeyError("x")
    with pytest.raises(KeyError) as raised:
        launch("test_job", Jobs(error, failing_size=1), [], Options())
    assert raised.value is error
    assert capsys.readouterr().err == ""


def test_the_process_is_left_as_it_was(empty_folder: Path) -> None:
    import sys

    argv, before = list(sys.argv), os.environ.get("HYDRA_FULL_ERROR")
    launch("test_job", Jobs(), [], Options())
    assert sys.argv == argv
    assert os.environ.get("HYDRA_FULL_ERROR") == before
    assert Path.cwd() == empty_folder


def test_the_configuration_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = Jobs()
    assert launch("test_job", jobs, ["mask=~causal"], Options(show_config="job")) == 0
    assert capsys.readouterr().out == "mask: ~causal\nsize: 1\npath: here\n"
    assert jobs.configs == []
