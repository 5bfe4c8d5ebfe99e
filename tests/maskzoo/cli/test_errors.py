import os
import subprocess
import sys
from pathlib import Path

import pytest

from maskzoo.cli import main
from maskzoo.cli.errors import guarded, report
from maskzoo.tasks.training.errors import OutputFailed, Terminated


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["trainr.lr=1"], ["trainr", "Did you mean 'trainer'?"]),
        (["mask=window(-3)"], ["mask=window(-3)", "size=-3", "at least 1"]),
        (["mask=casual"], ["mask=casual", "Did you mean 'causal'?"]),
        (["mask=null"], ["mask=null", "text"]),
        (["bias=alib"], ["bias=alib", "Did you mean 'alibi'?"]),
        (["model.widht=3"], ["model.widht", "Did you mean 'width'?"]),
        (["data=enwk8"], ["data=enwk8", "Did you mean 'enwik8'?", "stdlib"]),
        (["data=null"], ["data=null", "choose a data by name", "stdlib"]),
        (["task=languag"], ["task=languag", "Did you mean 'language'?"]),
        (["experiment=nope"], ["experiment=nope", "enwik8_small"]),
        (["experimnt=enwik8_small"], ["experimnt", "Did you mean 'experiment'?"]),
        (["model.layers=abc"], ["model.layers=abc", "a whole number"]),
        (["trainer.max_steps=1.5"], ["trainer.max_steps=1.5", "a whole number or null"]),
        (["trainer.compile=maybe"], ["trainer.compile=maybe", "true or false"]),
        (["optimizer.betas=3"], ["optimizer.betas=3", "a list"]),
        (["optimizer.lr=-1"], ["optimizer.lr=-1", "> 0"]),
        (["model.width=7"], ["model.width", "multiple of heads", "width=7"]),
        (["+novelty=1"], ["novelty", "no key"]),
        (["++model.novelty=1"], ["model.novelty", "no key"]),
        (["data.path=${nope}"], ["data.path", "nope"]),
        (["foo"], ["'foo' has no value"]),
        ([""], ["has no key"]),
        (["--cgf"], ["--cgf", "Did you mean '--cfg'?"]),
        (["--config-dir", "/does/not/exist"], ["/does/not/exist", "no such folder"]),
        (["plugins=missing_masks.py"], ["missing_masks.py", "does not exist"]),
        (["data.name=enwik9"], ["enwik9", "enwik8"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_named_in_two_lines(
    arguments: list[str],
    parts: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    shown = capsys.readouterr()
    for part in parts:
        assert part in shown.err
    assert "Traceback" not in shown.err
    assert len(shown.err.strip().splitlines()) <= 2
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_nearest_command_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err


def test_a_plugin_that_fails_to_import_is_named_with_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "my_masks.py"
    plugin.write_text("import a_package_that_is_missing\n")
    for command in ("train", "show", "list"):
        assert main([command, f"plugins=[{plugin}]"]) == 2
        message = capsys.readouterr().err
        assert "my_masks" in message
        assert str(plugin) in message
        assert "ModuleNotFoundError: No module named 'a_package_that_is_missing'" in message
        assert len(message.strip().splitlines()) <= 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("wrong"), 2),
        (FileNotFoundError(2, "No such file or directory", "x.ckpt"), 2),
        (KeyError("missing"), 1),
        (AssertionError(), 1),
        (Terminated("SIGTERM received"), 143),
        (OutputFailed("disk full"), 2),
    ],
)
def test_the_status_says_whose_fault_it_was(error: Exception, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(error, show_traceback=False) == status
    message = capsys.readouterr().err
    assert message.startswith("maskzoo: ")
    assert len(message.strip().splitlines()) <= 2
    assert ("internal error" in message) == (isinstance(error, (KeyError, AssertionError)))


def test_a_file_error_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    report(PermissionError(13, "Permission denied", "out.json"), show_traceback=False)
    assert capsys.readouterr().err == "maskzoo: out.json: Permission denied\n"


def test_ctrl_c_gives_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert guarded(interrupted, show_traceback=True) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_the_traceback_is_shown_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["show", "mask=casual", "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("MASKZOO_TRACEBACK", "1")
    assert main(["show", "mask=casual"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "maskzoo", "--help"], stdout=closed, stderr=subprocess.PIPE, text=True
        )
    assert done.stderr == ""
    assert done.returncode == 141
