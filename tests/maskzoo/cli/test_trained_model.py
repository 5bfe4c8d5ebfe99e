"""Train, score and write from the command line, outside the checkout, with the files found by path alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from maskzoo.cli import main

SMALL = [
    "data=text",
    "data.context=16",
    "data.batch_size=2",
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "trainer.max_steps=2",
    "trainer.validate_every=1",
    "trainer.validation_batches=1",
    "sample.tokens=2",
    "logger=csv",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with a text whose path holds `=`, `#` and a space, and in runs/ one trained model."""
    folder = tmp_path_factory.mktemp("elsewhere")
    text = folder / "a=b" / "my #1 text.txt"
    text.parent.mkdir()
    text.write_text("".join(f"{number} sheep jumped over the fence.\n" for number in range(200)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MASKZOO_DATA", str(folder / "cache"))
        status = main(["train", *SMALL, "data.path=a=b/my #1 text.txt", "mask=causal & window(5)"])
        assert status == 0
        yield folder


@pytest.fixture
def checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    (run,) = (folder / "runs").glob("*_language*")
    return run


def test_a_run_is_one_folder_without_equals_signs(checkpoint: Path, folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names <= {"runs", "a=b", "cache"}
    inside = [str(path.relative_to(folder)) for path in checkpoint.rglob("*")]
    assert any(name.endswith("last.ckpt") for name in inside)
    assert not any("=" in name for name in inside)


def test_eval_prints_a_table_and_json(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the data's path still holds
    output = tmp_path / "scores.json"
    assert main(["eval", f"checkpoint={checkpoint}", "split=val", "stride=4", f"output={output}"]) == 0
    *table, line = capsys.readouterr().out.splitlines()
    scores = json.loads(line)
    assert json.loads(output.read_text()) == scores
    assert (scores["split"], scores["context"], scores["stride"]) == ("val", 16, 4)
    assert 0 < scores["bits_per_byte"] < 9
    assert any(row.startswith("bits per byte") and f"{scores['bits_per_byte']:.4f}" in row for row in table)


def test_generate_repeats_itself_with_a_seed(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        assert main(["generate", f"checkpoint={checkpoint}", "prompt=3 sheep {#1}, ", "tokens=5", "seed=1"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].startswith("3 sheep {#1}, ")


def test_generate_writes_several_prompts_of_different_lengths(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", f"checkpoint={checkpoint}", "prompt=['one sheep ','2']", "tokens=3", "temperature=0"]) == 0
    together = capsys.readouterr().out
    for prompt in ("one sheep ", "2"):
        assert main(["generate", f"checkpoint={checkpoint}", f"prompt={prompt}", "tokens=3", "temperature=0"]) == 0
        assert capsys.readouterr().out in together


def test_the_prompt_may_be_a_file(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = tmp_path / "start.txt"
    prompt.write_text("from a file ")
    assert main(["generate", f"checkpoint={checkpoint}", f"prompt_file={prompt}", "tokens=1"]) == 0
    assert capsys.readouterr().out.startswith("from a file ")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["generate"], "checkpoint is required"),
        (["eval"], "checkpoint is required"),
        (["eval", "checkpoint=runs/nowhere"], "runs/nowhere"),
        (["eval", "checkpoint=CHECKPOINT", "split=tset"], "Did you mean 'test'?"),
        (["eval", "checkpoint=CHECKPOINT", "stride=99"], "stride=99"),
        (["generate", "checkpoint=CHECKPOINT", "temperature=-1"], "temperature=-1"),
        (["generate", "checkpoint=CHECKPOINT", "top_p=2"], "top_p=2"),
        (["generate", "checkpoint=CHECKPOINT", "prompt=a", "prompt_file=b"], "not both"),
        (["generate", "checkpoint=CHECKPOINT", "prompt_file=missing.txt"], "missing.txt"),
        (["generate", "-m", "checkpoint=CHECKPOINT"], "does not sweep"),
    ],
)
def test_mistakes_are_refused(
    arguments: list[str], part: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.replace("CHECKPOINT", str(checkpoint)) for argument in arguments]) == 2
    message = capsys.readouterr().err
    assert part in message
    assert len(message.strip().splitlines()) <= 2


def test_a_sweep_of_runs_gets_a_folder_each(checkpoint: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set((folder / "runs").iterdir())
    status = main(
        [
            "train",
            "-m",
            *SMALL,
            "trainer.max_steps=1",
            "data.path=a=b/my #1 text.txt",
            "mask=causal,window(0),full & causal",
        ]
    )
    assert status == 2
    message = capsys.readouterr().err
    assert "1 of 3 jobs failed" in message
    assert "job 1:" in message
    made = set((folder / "runs").iterdir()) - before
    assert len(made) == 2
    assert sorted(("full & causal" in (run / "config.yaml").read_text()) for run in made) == [False, True]
