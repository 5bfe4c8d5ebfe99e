"""metrics.csv, and the choice of wandb's mode without ever asking."""

import csv
from pathlib import Path

import pytest

from maskzoo.tasks.training import loggers
from maskzoo.tasks.training.errors import OutputFailed
from maskzoo.tasks.training.loggers import LoggerConfig, MetricsFile, wandb_mode


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_columns_appear_when_a_figure_first_does(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.csv")
    file.log_metrics({"train/loss": 2.0}, step=1)
    file.log_metrics({"val/loss": 3.0}, step=1)
    file.log_metrics({"train/loss": 1.5}, step=2)
    assert read(tmp_path / "metrics.csv") == [
        {"step": "1", "train/loss": "2.0", "val/loss": ""},
        {"step": "1", "train/loss": "", "val/loss": "3.0"},
        {"step": "2", "train/loss": "1.5", "val/loss": ""},
    ]


def test_resuming_appends_after_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = MetricsFile(path)
    for step in (1, 2, 3):
        first.log_metrics({"train/loss": float(step)}, step=step)
    resumed = MetricsFile(path, resumed_at=2)
    resumed.log_metrics({"train/loss": 30.0, "lr": 0.1}, step=3)
    assert [(row["step"], row["train/loss"], row["lr"]) for row in read(path)] == [
        ("1", "1.0", ""),
        ("2", "2.0", ""),
        ("3", "30.0", "0.1"),
    ]


def test_a_file_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(OutputFailed, match=r"cannot write .*metrics\.csv"):
        MetricsFile(tmp_path / "absent" / "metrics.csv")


def test_no_key_means_offline() -> None:
    """B34: without a key nothing is asked and nothing is sent."""
    assert wandb_mode("auto") == "offline"
    assert wandb_mode("disabled") == "disabled"


def test_a_key_without_network_means_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    asked = []
    monkeypatch.setattr(loggers, "_answers", lambda host, port: asked.append((host, port)) or False)
    assert wandb_mode("auto") == "offline"
    assert asked == [("api.wandb.ai", 443)]
    monkeypatch.setattr(loggers, "_answers", lambda host, port: True)
    assert wandb_mode("auto") == "online"


def test_the_environment_decides_for_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode("auto") == "disabled"
    assert wandb_mode("offline") == "offline"


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"logger\.wandb='ofline' .* Did you mean 'offline'\?"):
        LoggerConfig(wandb="ofline")
