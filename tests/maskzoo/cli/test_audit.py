"""`maskzoo audit`, of a new model and of a trained one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from maskzoo.cli import main

MODEL = ["model.layers=2", "model.width=16", "model.heads=2", "data.context=16", "data.batch_size=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with a text, and one trained model in run/."""
    folder = tmp_path_factory.mktemp("audited")
    (folder / "text.txt").write_text("".join(f"{number} sheep jumped over the fence.\n" for number in range(200)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MASKZOO_DATA", str(folder / "cache"))
        steps = ["trainer.max_steps=2", "trainer.validate_every=2", "trainer.validation_batches=1", "sample.tokens=0"]
        text = ["data=text", "data.path=text.txt", "run_dir=run", "logger=csv", "mask=causal & window(5)"]
        assert main(["train", *MODEL, *steps, *text]) == 0
        yield folder


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


TEXT = ["data=text", "data.path=text.txt"]


@pytest.mark.parametrize("method", ["exact", "quick"])
def test_a_trained_model(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / f"{method}.json"
    assert main(["audit", "checkpoint=run", f"method={method}", f"report={report}"]) == 0
    shown = capsys.readouterr().out
    assert "window(5)" in shown.splitlines()[0] and "nothing found" in shown
    assert f"saved {report}" in shown
    written = json.loads(report.read_text())
    assert written["ok"] is True
    assert written["method"] == method


def test_a_trained_model_without_its_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.txt"
    other.write_text("something else, and long enough to be packed into a few rows. " * 20)
    Path("text.txt").rename("gone.txt")
    try:
        assert main(["audit", "checkpoint=run", "method=quick"]) == 2
        assert "text.txt" in capsys.readouterr().err
        assert main(["audit", "checkpoint=run", "method=quick", f"text={other}"]) == 0
    finally:
        Path("gone.txt").rename("text.txt")


def test_a_new_model_takes_the_keys_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "audit.html"
    words = ["task=language", *TEXT, *MODEL, "mask=causal & (window(3) | sinks(1))", "bias=alibi", "seed=3"]
    assert main(["audit", *words, f"report={page}"]) == 0
    assert "sinks(1)" in capsys.readouterr().out
    assert "Sound" in page.read_text()
    assert not Path("runs").exists()


def test_a_model_that_reads_its_own_answers_gives_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "audit.json"
    assert main(["audit", *TEXT, *MODEL, "mask=full", "method=quick", f"report={report}"]) == 1
    assert "target misalignment: " in " ".join(capsys.readouterr().out.split())
    assert [finding["kind"] for finding in json.loads(report.read_text())["findings"]] == ["target misalignment"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["checkpoint=nowhere"], "nowhere"),
        (["checkpoint=run", "mask=causal"], "there is no key 'mask'"),
        (["checkpoint=run", "method=exect"], "Did you mean 'exact'?"),
        (["checkpoint=run", "report=audit.txt"], ".html or .json"),
        (["method=exect"], "Did you mean 'exact'?"),
        (["text=text.txt"], "data.path"),
        (["mask=casual"], "Did you mean 'causal'?"),
        (["maks=causal"], "Did you mean 'mask'?"),
        (["-m", "mask=causal,full"], "does not sweep"),
    ],
)
def test_mistakes_are_refused(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *arguments]) == 2
    message = capsys.readouterr().err
    assert part in message
    assert len(message.strip().splitlines()) <= 2
