"""Whole runs: outputs, stopping, resuming, and what must not happen on the way."""

import csv
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import maskzoo
from maskzoo.tasks.language.batch import TokenBatch
from maskzoo.tasks.language.module import LanguageModeling
from maskzoo.tasks.training.config import RunConfig
from maskzoo.tasks.training.errors import NonFiniteLoss, Terminated
from maskzoo.tasks.training.optimizer import OptimizerConfig
from maskzoo.tasks.training.run import train
from maskzoo.transformer.block import Block

Configured = Callable[..., RunConfig]


def checkpoint(run: str, name: str = "last") -> dict[str, Any]:
    return torch.load(Path(run) / "checkpoints" / f"{name}.ckpt", weights_only=True)


def same_weights(one: dict[str, Any], other: dict[str, Any]) -> bool:
    assert one["state_dict"].keys() == other["state_dict"].keys()
    return all(torch.equal(value, other["state_dict"][name]) for name, value in one["state_dict"].items())


class Watch:
    """Sees every batch, and can act on the n-th training or validation batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trained: list[bytes] = []
        self.seen = {"train": 0, "val": 0}
        self.action: tuple[str, int, Callable[[], None]] | None = None
        original = LanguageModeling.summed_loss

        def watched(module: LanguageModeling, batch: TokenBatch) -> Any:
            stage = "train" if module.training else "val"
            self.seen[stage] += 1
            if module.training:
                self.trained.append(batch.tokens.numpy().tobytes())
            if self.action is not None and self.action[:2] == (stage, self.seen[stage]):
                self.action[2]()
            return original(module, batch)

        monkeypatch.setattr(LanguageModeling, "summed_loss", watched)

    def forget(self) -> None:
        self.trained, self.seen, self.action = [], {"train": 0, "val": 0}, None


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def test_a_run_leaves_all_its_outputs(configured: Configured, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(run_dir="run", mask="causal & window(8)", trainer={"test": True}, sample={"tokens": 5})
    scores = train(config)
    printed = capsys.readouterr()
    names = sorted(str(path.relative_to("run")) for path in Path("run").rglob("*") if path.is_file())
    assert names == [
        "audit.html",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "config.yaml",
        "mask.png",
        "metrics.csv",
        "sample.txt",
    ]
    assert not any("=" in name for name in names)  # B30
    assert {"train/loss", "val/loss", "val/perplexity", "val/bits_per_byte", "test/bits_per_byte"} <= scores.keys()
    with open("run/metrics.csv", newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == sorted(steps) and steps[-1] == 6
    before, after = printed.out.split("maskzoo: done")
    assert len(before.splitlines()) < 30
    for word in ("documents", "parameters", "causal & window(8)", "kernel", "tokens", "6 steps", "run"):
        assert word in before
    assert "maskzoo train resume=true run_dir=run" in after
    assert "maskzoo generate checkpoint=run" in after
    assert "query key" in after
    assert "GPU available" not in printed.err + printed.out
    assert "Tip" not in printed.err + printed.out


def test_a_checkpoint_is_plain_and_enough(configured: Configured) -> None:
    """B35: weights_only, and a model from the path alone."""
    train(configured(run_dir="run", bias="alibi", optimizer=OptimizerConfig(name="muon")))
    written = checkpoint("run")
    assert written["maskzoo"]["step"] == 6
    assert written["maskzoo"]["config"]["model"]["layers"] == 2
    model = maskzoo.load("run/checkpoints/last.ckpt")
    tokens = torch.arange(20)[None]
    weights = {name.removeprefix("model."): value for name, value in written["state_dict"].items()}
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert model(tokens).shape == (1, 20, 258)


def test_compiled_and_eager_checkpoints_load_both_ways(configured: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    """B36. Compiled by the backend that generates no code, which is enough for the names of the weights."""
    compiled = []

    def compile_without_code(block: Block) -> None:
        compiled.append(block)
        nn.Module.compile(block, backend="eager")

    monkeypatch.setattr(Block, "compile", compile_without_code)
    train(configured(run_dir="eager", trainer={"max_steps": 1}))
    train(configured(run_dir="compiled", trainer={"max_steps": 1, "compile": True}))
    assert len(compiled) == 2
    assert checkpoint("eager")["state_dict"].keys() == checkpoint("compiled")["state_dict"].keys()
    train(configured(run_dir="eager", resume=True, trainer={"max_steps": 2, "compile": True}))
    train(configured(run_dir="compiled", resume=True, trainer={"max_steps": 2}))
    for run in ("eager", "compiled"):
        assert checkpoint(run)["maskzoo"]["step"] == 2


@pytest.mark.parametrize(
    ("stage", "number", "step"),
    [("train", 2, 1), ("train", 9, 5), ("train", 14, 7), ("train", 18, 9), ("val", 1, 3), ("val", 5, 9)],
)
def test_a_terminated_run_goes_on_as_if_it_had_not_stopped(
    configured: Configured, watch: Watch, stage: str, number: int, step: int
) -> None:
    """B28 and B29: same batches in the same order and the same weights, mid-epoch, mid-window and in validation."""
    settings = {"trainer": {"max_steps": 10, "accumulate": 2, "validate_every": 3, "checkpoint_every": 4}}
    small = {"data": {"max_bytes": 1200}}
    train(configured(run_dir="straight", **settings, **small))
    straight = watch.trained
    assert len(straight) == 20
    watch.forget()
    before = signal.getsignal(signal.SIGTERM)
    watch.action = (stage, number, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Terminated, match=r"SIGTERM.*last\.ckpt.*resume=true run_dir=stopped") as caught:
        train(configured(run_dir="stopped", **settings, **small))
    assert caught.value.status == 143
    assert signal.getsignal(signal.SIGTERM) == before
    assert checkpoint("stopped")["maskzoo"]["step"] == step
    first = watch.trained
    watch.forget()
    train(configured(run_dir="stopped", resume=True, **settings, **small))
    assert first + watch.trained == straight
    assert same_weights(checkpoint("stopped"), checkpoint("straight"))


def test_time_counts_over_all_parts_of_a_run(configured: Configured) -> None:
    train(configured(run_dir="run", trainer={"max_steps": 2}))
    seconds = checkpoint("run")["maskzoo"]["seconds"]
    train(configured(run_dir="run", resume=True, trainer={"max_steps": 3}))
    assert checkpoint("run")["maskzoo"]["seconds"] > seconds > 0


def test_a_run_can_be_bounded_by_time_alone(configured: Configured) -> None:
    train(configured(run_dir="run", trainer={"max_steps": None, "max_minutes": 0.005}))
    written = checkpoint("run")["maskzoo"]
    assert written["seconds"] >= 0.3
    assert "val/loss" in written["scores"]


def test_nan_stops_before_the_step(configured: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    """B27: step, batch and rows are named, and no checkpoint holds what came of it."""
    calls = []
    original = LanguageModeling._token_losses

    def poisoned(module: LanguageModeling, batch: TokenBatch, reduction: str) -> torch.Tensor:
        losses = original(module, batch, "none").view_as(batch.targets)
        if module.training and reduction == "sum":
            calls.append(batch)
        if module.training and len(calls) == 5:
            losses = losses * torch.tensor([1.0, 1.0, float("nan"), 1.0])[:, None]
        return losses.sum() if reduction == "sum" else losses.flatten()

    monkeypatch.setattr(LanguageModeling, "_token_losses", poisoned)
    with pytest.raises(NonFiniteLoss, match=r"step 5: the loss is nan in batch 4 of epoch 0 \(rows 2\)") as caught:
        train(configured(run_dir="run", trainer={"checkpoint_every": 1}))
    assert caught.value.status != 0
    for name in ("last", "best"):
        written = checkpoint("run", name)
        assert written["maskzoo"]["step"] <= 4
        assert all(value.isfinite().all() for value in written["state_dict"].values())


def test_a_changed_model_cannot_be_resumed(configured: Configured) -> None:
    train(configured(run_dir="run", trainer={"max_steps": 1}))
    with pytest.raises(
        ValueError, match=r"cannot resume: mask was 'causal' and is now 'full'; model\.width was 32 and is now 64"
    ):
        train(configured(run_dir="run", resume=True, mask="full", model={"width": 64}))


def test_a_resumed_run_takes_what_is_not_typed_from_its_checkpoint(configured: Configured) -> None:
    train(configured(run_dir="run", mask="causal & window(4)", seed=3, trainer={"max_steps": 1, "log_every": 1}))
    train(configured(run_dir="run", resume=True, trainer={"max_steps": 2}), ["resume=true", "trainer.max_steps=2"])
    written = checkpoint("run")["maskzoo"]
    assert (written["step"], written["mask"]) == (2, "causal & window(4)")
    assert (written["config"]["seed"], written["config"]["trainer"]["log_every"]) == (3, 1)
    with pytest.raises(ValueError, match=r"cannot resume: mask was 'causal & window\(4\)' and is now 'full'"):
        train(configured(run_dir="run", resume=True, mask="full"), ["resume=true", "mask=full"])


def test_a_finished_run_is_not_resumed_by_accident(configured: Configured) -> None:
    train(configured(run_dir="run", trainer={"max_steps": 1}))
    with pytest.raises(ValueError, match=r"the run run is finished: step 1 .* larger trainer\.max_steps"):
        train(configured(run_dir="run", resume=True, trainer={"max_steps": 1}))


def test_a_truncated_checkpoint_is_named(configured: Configured) -> None:
    train(configured(run_dir="run", trainer={"max_steps": 1}))
    last = Path("run/checkpoints/last.ckpt")
    last.write_bytes(last.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"last\.ckpt"):
        train(configured(run_dir="run", resume=True))


@pytest.mark.parametrize("wrong", [{"mask": "casual"}, {"bias": "alibi(3, 4, 5)"}, {"data": {"batch_size": 10_000}}])
def test_a_mistake_leaves_no_folder(configured: Configured, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        train(configured(run_dir="run", **wrong))
    assert not Path("run").exists()


def test_rows_longer_than_the_model_are_refused(configured: Configured) -> None:
    with pytest.raises(ValueError, match=r"data\.context=32 is more than model\.context=16"):
        train(configured(run_dir="run", model={"context": 16}))


def wandb_ids(run: str) -> list[str]:
    return sorted(path.name.rsplit("-", 1)[1] for path in (Path(run) / "wandb").glob("offline-run-*"))


def test_wandb_runs_are_separate_and_a_failure_does_not_leak(
    configured: Configured, watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    """B33, B34, B39: three jobs in one process, the second failing, the first resumed later; no key, no network."""
    import wandb

    logger = {"logger": {"wandb": "auto"}, "trainer": {"max_steps": 2}}
    train(configured(run_dir="one", **logger))
    watch.forget()
    watch.action = ("train", 1, lambda: exec("raise ZeroDivisionError"))
    with pytest.raises(ZeroDivisionError):
        train(configured(run_dir="two", **logger))
    watch.forget()
    train(configured(run_dir="three", **logger))
    assert wandb.run is None
    assert "WANDB_MODE" not in os.environ
    ids = [wandb_ids(run) for run in ("one", "two", "three")]
    assert [len(found) for found in ids] == [1, 1, 1]
    assert len({found[0] for found in ids}) == 3
    train(configured(run_dir="one", resume=True, logger={"wandb": "auto"}, trainer={"max_steps": 4}))
    assert set(wandb_ids("one")) == set(ids[0])
    with open("one/metrics.csv", newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == sorted(steps) and steps[0] <= 2 and steps[-1] == 4
