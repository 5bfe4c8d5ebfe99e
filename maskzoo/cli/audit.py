"""`maskzoo audit`: prove what a model can see."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskzoo.cli.configuration import store_run_schema, store_schema
from maskzoo.cli.help import command_help
from maskzoo.cli.launch import Options, launch
from maskzoo.registry import load_plugins, tasks

if TYPE_CHECKING:
    from maskzoo.tasks.training.config import RunConfig

METHODS = ("auto", "exact", "quick")

HELP = """\
usage: maskzoo audit checkpoint=PATH [key=value ...]
       maskzoo audit [task=TASK] [key=value ...]

Measures which inputs move which outputs, on rows of the training data, and compares that with what the rule permits.
Without checkpoint=, the model is a new one and every key of `maskzoo train` can be given.
The exit status is 1 if the model sees what it must not.

examples:
  maskzoo audit checkpoint=runs/NAME report=audit.html
  maskzoo audit checkpoint=runs/NAME method=quick
  maskzoo audit task=language mask="causal & window(64)" model.layers=2
  maskzoo audit plugins=[my_masks.py] mask="my_mask(3)" report=audit.json
"""


@dataclass
class AuditConfig:
    """Which trained model to audit, and how."""

    checkpoint: str | None = field(
        default=None, metadata={"help": "a run folder (its best checkpoint) or a .ckpt file; null: a new model"}
    )
    method: str = field(
        default="auto", metadata={"help": "exact: every pair; quick: random probes; auto: by what exact would cost"}
    )
    report: str | None = field(default=None, metadata={"help": "a file for the report, .html or .json"})
    text: str | None = field(
        default=None, metadata={"help": "with checkpoint: another file or folder in place of the run's data"}
    )

    def __post_init__(self) -> None:
        from maskzoo.audit.report import check_suffix
        from maskzoo.tasks.training.ranges import check_choice

        check_choice("method", self.method, METHODS)
        if self.report is not None:
            check_suffix(self.report)
        if self.text is not None and self.checkpoint is None:
            raise ValueError(f"text={self.text} belongs to checkpoint=; for a new model write data=text data.path=…")


def help_text() -> str:
    return command_help(HELP, AuditConfig)


def main(overrides: list[str], options: Options) -> int:
    store_run_schema()
    store_schema("audit", AuditConfig)
    if any(word.startswith("checkpoint=") for word in overrides):
        return launch("audit", run, overrides, options)
    keys = {key.name for key in dataclasses.fields(AuditConfig)}
    own = [word for word in overrides if word.partition("=")[0] in keys]
    asked: list[AuditConfig] = []

    def keep(config: AuditConfig, words: list[str]) -> int:
        asked.append(config)
        return 0

    launch("audit", keep, own, Options())
    others = [word for word in overrides if word not in own]
    return launch("config", lambda config, words: run_new(config, asked[0]), others, options)


def run(config: AuditConfig, words: list[str]) -> int:
    """Audit the model of a checkpoint."""
    from maskzoo.checkpoint import find_checkpoint, read_checkpoint
    from maskzoo.tasks.training.config import from_plain

    assert config.checkpoint is not None
    checkpoint = read_checkpoint(find_checkpoint(config.checkpoint))
    load_plugins(checkpoint["maskzoo"]["plugins"])
    saved = from_plain(checkpoint["maskzoo"]["config"])
    if config.text is not None:
        saved.data = dataclasses.replace(saved.data, name="text", path=config.text)
    task = _task(saved)
    task.restore(checkpoint)
    return _audit(task, saved, config)


def run_new(config: RunConfig, asked: AuditConfig) -> int:
    """Audit a new model, as `maskzoo train` would start with."""
    from maskzoo.cli.rules import checked_bias, checked_mask

    load_plugins(config.plugins)
    checked_mask(config.mask)
    checked_bias(config.bias, heads=config.model.heads)
    return _audit(_task(config), config, asked)


def _task(config: RunConfig) -> Any:
    import torch

    from maskzoo.tasks.training.audit import check_auditable
    from maskzoo.tasks.training.budget import Budget

    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    torch.manual_seed(config.seed)
    task = tasks.get(config.task)(config, Budget(config.trainer.max_steps, config.trainer.max_minutes))
    check_auditable(task, config.task)
    return task


def _audit(task: Any, config: RunConfig, asked: AuditConfig) -> int:
    """Print the report, save it if asked, and return the exit status."""
    import torch

    from maskzoo.tasks.training.audit import audited

    task.data.setup("fit")
    if torch.cuda.is_available() and config.trainer.accelerator in ("auto", "gpu"):
        task.module.to("cuda")
    report = audited(task.audit_case(), asked.method)
    print(report)
    if asked.report is not None:
        print(f"saved {report.save(Path(asked.report))}")
    return 0 if report.ok else 1
