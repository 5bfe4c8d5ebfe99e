"""The whole resolved configuration of one run, as `train` takes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from maskzoo.tasks.training.loggers import LoggerConfig
from maskzoo.tasks.training.optimizer import OptimizerConfig
from maskzoo.tasks.training.ranges import check_number
from maskzoo.tasks.training.trainer import TrainerConfig


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

    `run_dir` is the folder of the run; left out, a new one is made under `runs/`, or with `resume` the newest
    run of the task is continued.
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
    seed: int = 0
    resume: bool = False
    run_dir: str | None = None

    def __post_init__(self) -> None:
        check_number("seed", self.seed, minimum=0, below=2**32)
