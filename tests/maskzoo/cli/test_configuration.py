from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from maskzoo.cli import main
from maskzoo.cli.configuration import CONF, groups, store_run_schema, typed
from maskzoo.cli.overrides import prepare
from maskzoo.tasks.language.data import DataConfig
from maskzoo.tasks.training.config import RunConfig
from maskzoo.transformer.transformer import TransformerConfig


def composed(*arguments: str) -> DictConfig:
    store_run_schema()
    with initialize_config_module(CONF, version_base="1.3"):
        return compose("config", prepare(list(arguments)))


CHOICES = [(group, choice) for group, choices in groups().items() for choice in choices]


@pytest.mark.parametrize(("group", "choice"), CHOICES, ids=map("=".join, CHOICES))
def test_every_shipped_choice_composes_and_fits_its_schema(group: str, choice: str) -> None:
    config = typed(composed(f"{group}={choice}"))
    assert isinstance(config, RunConfig)
    assert isinstance(config.data, DataConfig)
    assert isinstance(config.model, TransformerConfig)


def test_every_choice_says_what_it_is() -> None:
    store_run_schema()
    from maskzoo.cli.configuration import choice_summaries

    for _, summary in [*choice_summaries("experiment"), *choice_summaries("data"), *choice_summaries("model")]:
        assert summary


def test_the_command_line_wins_over_the_experiment_and_that_over_the_defaults() -> None:
    plain, experiment = typed(composed()), typed(composed("experiment=enwik8_small"))
    assert plain.data.name == "stdlib"
    assert (experiment.data.name, experiment.data.batching) == ("enwik8", "stream")
    assert experiment.trainer.max_minutes == 30
    assert typed(composed("experiment=enwik8_small", "data=text", "trainer.max_minutes=2")).data.name == "text"
    assert typed(composed("trainer.max_minutes=2", "experiment=enwik8_small")).trainer.max_minutes == 2


def test_the_model_follows_the_context_of_the_data() -> None:
    assert typed(composed("data.context=64")).model.context == 64
    assert typed(composed("data.context=64", "model.context=128")).model.context == 128


def test_paths_are_those_of_where_the_command_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = typed(composed("data=text", "data.path=./d=1/notes.txt", "plugins=[own.py,~/other.py]"))
    assert config.data.path == str(tmp_path / "d=1/notes.txt")
    assert config.plugins == [str(tmp_path / "own.py"), str(Path.home() / "other.py")]
    assert typed(composed("data=text", "data.path=[a.txt,b.txt]")).data.path == [
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.txt"),
    ]


def test_an_experiment_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nmask: causal & window(4)\nseed: 7\n")
    assert main(["train", f"--config-dir={tmp_path}", "experiment=mine", "--cfg"]) == 0
    shown = capsys.readouterr().out
    assert "mask: causal & window(4)" in shown
    assert "seed: 7" in shown


def test_cfg_prints_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--cfg", "job", "data.context=32", "mask=~causal"]) == 0
    shown = capsys.readouterr().out
    assert "mask: ~causal" in shown
    assert shown.count("context: 32") == 2  # resolved: the data's and the model's
    assert "hydra" not in shown
