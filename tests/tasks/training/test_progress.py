"""The bar on a terminal and the lines elsewhere."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from maskzoo.tasks.training.budget import Budget
from maskzoo.tasks.training.progress import ShowProgress, duration

SCORES = {
    "train/loss": 2.5,
    "val/loss": 2.25,
    "val/bits_per_byte": 3.3,
    "perf/tokens_per_s": 12345.0,
    "perf/step_ms": 500.0,
}


def shown(terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    progress = ShowProgress(console, Budget(100, None), log_every=10)
    module: Any = SimpleNamespace(scores=SCORES, between_steps=True)
    trainer: Any = SimpleNamespace(global_step=0)
    progress.on_train_start(trainer, module)
    for trainer.global_step in range(1, 41):
        progress.on_train_batch_end(trainer, module)
    progress.on_validation_end(trainer, module)
    progress.on_train_end(trainer, module)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_come_every_log_every_steps() -> None:
    lines = shown(terminal=False).splitlines()
    assert lines == [
        *(
            f"step {step}/100  loss 2.500  val 2.250  12,345 tokens/s  0:{(100 - step) // 2} left"
            for step in (10, 20, 30, 40)
        ),
        "step 40  validation: loss 2.25, bits per byte 3.3",
    ]


def test_a_terminal_gets_a_bar_that_ends_where_training_does() -> None:
    text = shown(terminal=True)
    assert "━" in text and "\x1b[" in text
    assert " 40%  step 40/100  loss 2.500" in text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (125, "2:05"), (3725, "1:02:05")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
