"""Whether a run can be resumed with the configuration given."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from maskzoo.tasks.training.budget import Budget
from maskzoo.tasks.training.config import RunConfig
from maskzoo.tasks.training.folders import RunFolder
from maskzoo.tasks.training.progress import duration

MAY_CHANGE = frozenset(
    {
        "trainer",
        "logger",
        "sample",
        "audit",
        "optimizer",
        "plugins",
        "resume",
        "run_dir",
        "data.workers",
        "model.dropout",
        "model.attention_dropout",
    }
)
FIXED = frozenset({"optimizer.name", "trainer.accumulate"})


def with_saved(config: RunConfig, saved: dict[str, Any], words: Sequence[str]) -> RunConfig:
    """The saved configuration with the values of `config` where `words`, the overrides as typed, name a key.

    So `maskzoo train resume=true` needs nothing repeated. `experiment=` and `task=` can set any key: with one of them
    `config` stands as it is.
    """
    typed = {word.partition("=")[0].lstrip("+~") for word in words}
    if typed & {"experiment", "task"}:
        return config
    values = {}
    for name, before in saved.items():
        now = getattr(config, name, None)
        if name in typed or name in ("resume", "run_dir"):
            continue
        if not dataclasses.is_dataclass(now):
            values[name] = before
            continue
        kept = {key: value for key, value in before.items() if f"{name}.{key}" not in typed}
        values[name] = dataclasses.replace(now, **kept)  # type: ignore[type-var]
    return dataclasses.replace(config, **values)


def check_same(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise ValueError when the configuration of a run differs from the one it was started with where it may not.

    The model's shape, the rule, the data, their order and the state of the optimizer all belong to the checkpoint; the
    length of training, learning rates, loggers and the like may change. The message names each key with both values.
    """
    differences = [
        f"{key} was {before!r} and is now {after!r}"
        for key, before, after in sorted(_differences(saved, now, ""))
        if key in FIXED or not _may_change(key)
    ]
    if differences:
        raise ValueError("cannot resume: " + "; ".join(differences) + ". Give the same values, or start a new run")


def check_unfinished(budget: Budget, step: int, folder: RunFolder) -> None:
    """Raise ValueError when a run at `step` has nothing left of its budget."""
    if budget.progress(step) >= 1.0:
        raise ValueError(
            f"the run {folder.path} is finished: step {step:,} after {duration(budget.seconds)} of {budget}. "
            "To go on, give a larger trainer.max_steps or trainer.max_minutes"
        )


def _may_change(key: str) -> bool:
    return key in MAY_CHANGE or key.split(".")[0] in MAY_CHANGE


def _differences(saved: Any, now: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(saved, dict) and isinstance(now, dict):
        for name in {**saved, **now}:
            yield from _differences(saved.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif saved != now:
        yield key, saved, now
