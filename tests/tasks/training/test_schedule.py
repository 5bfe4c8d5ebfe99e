"""The learning rate against steps and against the clock."""

import pytest

from maskzoo.tasks.training.budget import Budget
from maskzoo.tasks.training.optimizer import OptimizerConfig
from maskzoo.tasks.training.schedule import learning_rate_factor


@pytest.mark.parametrize(
    ("schedule", "progress", "factor"),
    [
        ("cosine", 0.0, 1.0),
        ("cosine", 0.5, 0.55),
        ("cosine", 1.0, 0.1),
        ("linear", 0.25, 0.775),
        ("linear", 1.0, 0.1),
        ("constant", 0.9, 1.0),
    ],
)
def test_decay(schedule: str, progress: float, factor: float) -> None:
    config = OptimizerConfig(schedule=schedule, warmup_steps=0, lr_final=0.1)
    assert learning_rate_factor(config, 5, progress) == pytest.approx(factor)


def test_warmup_is_linear_and_never_zero() -> None:
    config = OptimizerConfig(schedule="constant", warmup_steps=4)
    assert [learning_rate_factor(config, step, 0.0) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_progress_is_that_of_the_nearer_bound() -> None:
    budget = Budget(max_steps=100, max_minutes=1)
    budget.seconds_before = 30.0
    assert budget.progress(10) == pytest.approx(0.5)
    assert budget.progress(80) == pytest.approx(0.8)
    budget.seconds_before = 600.0
    assert budget.progress(0) == 1.0


def test_the_clock_goes_on_from_earlier_parts() -> None:
    budget = Budget(max_steps=None, max_minutes=10)
    budget.seconds_before = 120.0
    budget.start()
    assert 120.0 <= budget.seconds < 180.0
    assert budget.seconds_left(step=5, seconds_per_step=1.0) <= 480.0


def test_time_left_by_steps() -> None:
    assert Budget(max_steps=100, max_minutes=None).seconds_left(step=60, seconds_per_step=0.5) == pytest.approx(20.0)
