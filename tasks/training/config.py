"""The whole resolved configuration of one run, as `train` takes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from maskzoo.registry import tasks
from maskzoo.tasks.training.loggers import LoggerConfig
from maskzoo.tasks.training.optimizer import OptimizerConfig
from maskzoo.tasks.training.ranges import check_choice, check_number
from maskzoo.tasks.training.trainer import TrainerConfig

AUDITS = ("on", "warn", "off")


@dataclass
class SampleConfig:
    """The text that the trained model writes at the end; `tokens` 0 leaves it out."""

    prompt: str = ""
    tokens: int = 200
    temperature: float = 0.8
    top_k: int | None = None

    def __post_init__(self) -> None:
        check_number("sample.tokens", self.tokens, minimum=0)
        check_number("sample.temperature", self.temperature, minimum=0)
        check_number("sample.top_k", self.top_k, minimum=1)


@dataclass
class RunConfig:
    """One run. `data` and `model` are instances of the configuration classes that the task names.

    `audit` says what comes of a model that sees more than its rule permits: "on" refuses to train it, "warn" trains it
    all the same, "off" does not look. `run_dir` is the folder of the run; left out, a new one is made under `runs/`, or
    with `resume` the newest run of the task is continued.
    """

    data: Any
    model: Any
    task: str = "language"
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    mask: str = "causal"
    bias: str | None = None
    plugins: list[str] = field(default_factory=list)
    audit: str = "on"
    seed: int = 0
    resume: bool = False
    run_dir: str | None = None

    def __post_init__(self) -> None:
        self.audit = {"True": "on", "False": "off"}.get(self.audit, self.audit)  # what YAML makes of on and off
        check_choice("audit", self.audit, AUDITS)
        check_number("seed", self.seed, minimum=0, below=2**32)


def from_plain(values: dict[str, Any]) -> RunConfig:
    """The configuration of which `dataclasses.asdict` makes these values, as a checkpoint keeps them."""
    parts = {
        **tasks.get(values["task"]).schemas(),
        "optimizer": OptimizerConfig,
        "trainer": TrainerConfig,
        "logger": LoggerConfig,
        "sample": SampleConfig,
    }
    return RunConfig(**{name: parts[name](**value) if name in parts else value for name, value in values.items()})
