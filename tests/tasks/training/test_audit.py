"""The audit before training: what it refuses, what it lets through, and where the result is kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from maskzoo.audit.report import Report
from maskzoo.cli.errors import report as exit_status
from maskzoo.tasks.language.task import Language
from maskzoo.tasks.training.config import RunConfig
from maskzoo.tasks.training.errors import UnsoundModel
from maskzoo.tasks.training.run import train
from maskzoo.transformer.attention_layer import AttentionLayer

Configured = Callable[..., RunConfig]

SHORT = {"max_steps": 2, "validate_every": 2, "validation_batches": 1}


def checkpoint(run: str) -> dict[str, Any]:
    return torch.load(Path(run) / "checkpoints" / "last.ckpt", weights_only=True)


@pytest.fixture
def leaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attention of every layer mixes in what stands one place ahead."""
    original = AttentionLayer.forward

    def forward(layer: AttentionLayer, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        return original(layer, x, *arguments, **named) + x.roll(-1, dims=1)

    monkeypatch.setattr(AttentionLayer, "forward", forward)


def test_a_sound_model_is_trained_and_the_result_is_kept(
    configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    train(configured(run_dir="run", trainer=SHORT))
    before, after = capsys.readouterr().out.split("maskzoo: done")
    assert "audit: nothing found (quick: " in before
    assert " s" in before.split("audit: ")[1].splitlines()[0]  # what it cost
    assert "  audit" in after and "nothing found" in after
    kept = checkpoint("run")["maskzoo"]["audit"]
    assert kept["setting"] == "on"
    read = Report.from_dict({name: value for name, value in kept.items() if name != "setting"})
    assert read.ok and read.method == "quick" and read.passes > 0 and read.miss
    assert any("target" in check for check in read.checks)
    assert "Sound" in Path("run/audit.html").read_text()


def test_a_rule_that_lets_a_model_read_its_own_answers_is_refused(
    configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnsoundModel, match=r"(?s)target misalignment.*run/audit\.html.*audit=warn") as caught:
        train(configured(run_dir="run", mask="full", trainer=SHORT))
    assert exit_status(caught.value, show_traceback=False) == 1
    printed = capsys.readouterr()
    assert len(printed.err.strip().splitlines()) == 2
    assert "error" in printed.out and "target misalignment" in printed.out
    assert "Not sound" in Path("run/audit.html").read_text()
    assert list(Path("run/checkpoints").iterdir()) == []


def test_a_leaking_layer_is_refused_and_named(configured: Configured, leaking: None) -> None:
    with pytest.raises(UnsoundModel, match=r"leak: .*transformer\.blocks\.0\.attention"):
        train(configured(run_dir="run", trainer=SHORT))


def test_with_warn_it_is_trained_all_the_same(
    configured: Configured, capsys: pytest.CaptureFixture[str], leaking: None
) -> None:
    train(configured(run_dir="run", audit="warn", trainer=SHORT))
    before, after = capsys.readouterr().out.split("maskzoo: done")
    for shown in (before, after):
        assert "leak: " in shown
    kept = checkpoint("run")["maskzoo"]
    assert kept["step"] == 2
    assert (kept["audit"]["setting"], kept["audit"]["ok"]) == ("warn", False)
    assert {finding["kind"] for finding in kept["audit"]["findings"]} >= {"leak", "target misalignment"}


def test_with_off_nothing_is_looked_at(
    configured: Configured, capsys: pytest.CaptureFixture[str], leaking: None
) -> None:
    train(configured(run_dir="run", audit="off", trainer=SHORT))
    before, after = capsys.readouterr().out.split("maskzoo: done")
    for shown in (before, after):
        assert "off: what the model sees was not checked" in shown
    assert checkpoint("run")["maskzoo"]["audit"] == {"setting": "off"}
    assert not Path("run/audit.html").exists()


@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_it_does_not_change_what_is_trained(configured: Configured, batching: str) -> None:
    data = {"batching": batching}
    states = []
    for setting in ("on", "off"):
        train(configured(run_dir=setting, audit=setting, data=data, trainer=SHORT))
        states.append(checkpoint(setting)["state_dict"])
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_resumed_run_is_audited_with_its_trained_weights(configured: Configured, leaking: None) -> None:
    train(configured(run_dir="run", audit="off", trainer=SHORT))
    with pytest.raises(UnsoundModel):
        train(configured(run_dir="run", resume=True, trainer={**SHORT, "max_steps": 4}))
    assert checkpoint("run")["maskzoo"]["step"] == 2
    train(configured(run_dir="run", resume=True, audit="warn", trainer={**SHORT, "max_steps": 4}))
    assert checkpoint("run")["maskzoo"]["audit"]["ok"] is False


def test_a_task_cannot_forget_it(configured: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Language, "audit_case")
    with pytest.raises(ValueError, match=r"the task 'language' does not say how .*Language needs .*audit_case"):
        train(configured(run_dir="run", trainer=SHORT))
    assert not Path("run").exists()
    train(configured(run_dir="run", audit="off", trainer=SHORT))
    assert checkpoint("run")["maskzoo"]["step"] == 2


def test_wandb_has_the_figures_and_the_page(configured: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    summaries = []
    finish = wandb.finish
    monkeypatch.setattr("wandb.finish", lambda **named: (summaries.append(dict(wandb.run.summary)), finish(**named)))
    with pytest.raises(UnsoundModel):
        train(configured(run_dir="run", mask="full", logger={"wandb": "offline"}, trainer=SHORT))
    (summary,) = summaries
    assert summary["audit/ok"] is False
    assert summary["audit/errors"] == 1
    assert summary["audit/seconds"] > 0
    (page,) = Path("run/wandb").glob("offline-run-*/files/media/html/audit/page_*.html")
    assert page.read_text() == Path("run/audit.html").read_text()


@pytest.mark.parametrize(("given", "meant"), [("on", "on"), ("off", "off"), ("True", "on"), ("False", "off")])
def test_on_and_off_are_also_what_yaml_makes_of_them(configured: Configured, given: str, meant: str) -> None:
    assert configured(audit=given).audit == meant


def test_another_setting_is_refused(configured: Configured) -> None:
    with pytest.raises(ValueError, match=r"audit='wran' is unknown: .*on, warn, off\. Did you mean 'warn'\?"):
        configured(audit="wran")
