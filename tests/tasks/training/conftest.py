"""A run small enough to be made many times."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from maskzoo.tasks.language.data import DataConfig
from maskzoo.tasks.training.config import RunConfig, SampleConfig
from maskzoo.tasks.training.loggers import LoggerConfig
from maskzoo.tasks.training.trainer import TrainerConfig
from maskzoo.transformer.transformer import TransformerConfig


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs under tmp_path, no account of any person, and one thread."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MASKZOO_DATA", str(tmp_path / "cache"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("builtins.input", _no_questions)
    torch.set_num_threads(1)


def _no_questions(*_: Any) -> str:
    raise AssertionError("training must never ask a question")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """About 100 short documents of words."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(100):
        words = " ".join(str((number * 37 + place * 11) % 101) for place in range(6 + number % 9))
        (folder / f"{number}.txt").write_text(f"{words}\n")
    return folder


@pytest.fixture
def configured(text: Path) -> Callable[..., RunConfig]:
    """RunConfig of a 2-layer model; keywords change the parts: trainer={"max_steps": 3}, seed=1, ..."""

    def make(**changes: Any) -> RunConfig:
        parts = {
            "data": DataConfig(name="text", path=str(text), context=32, batch_size=4),
            "model": TransformerConfig(layers=2, width=32, heads=2, context=32, dropout=0.1),
            "trainer": TrainerConfig(
                precision="32", max_steps=6, validate_every=3, validation_batches=2, log_every=2, accelerator="cpu"
            ),
            "logger": LoggerConfig(wandb="disabled"),
            "sample": SampleConfig(tokens=0),
        }
        for name, part in parts.items():
            parts[name] = dataclasses.replace(part, **changes.pop(name, {}))
        return RunConfig(**parts, **changes)

    return make
