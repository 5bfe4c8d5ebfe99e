"""The audit of a model before it is trained: what a task hands over, and the callback that refuses a leaking model."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from rich.console import Console
from torch import Tensor, nn

from maskzoo.audit.checking import check
from maskzoo.audit.checks import Inapplicable, target_alignment
from maskzoo.audit.report import Report
from maskzoo.masks.base import Mask
from maskzoo.positions import Positions
from maskzoo.tasks.training.errors import OutputFailed, UnsoundModel

CHANGED = {"quick": 5, "exact": 256}  # elements of the raw data that are changed at most, one after the other


@dataclasses.dataclass(frozen=True)
class AuditCase:
    """A model with a few rows of its own training data, in the form that the audit takes.

    Attributes:
        model: the module that is trained, on its device, without its loss.
        inputs: what the model is called with on rows of a real training batch: a tensor, a tuple or a dictionary.
        permits: the rule that every layer obeys.
        at: the positions of the inputs, for rules that read more than the order in a row.
        layers: how many times the rule is applied one after the other; None: any number.
        example: raw data before targets are made of them, int64 [N], such as the tokens of documents.
        batch_of: the task's own way from raw data like `example` to the model's inputs and the targets [B, T].
        options: further arguments of `maskzoo.audit.check`, such as `output` or `symmetric`.
    """

    model: nn.Module
    inputs: Any
    permits: str | Mask | Tensor
    at: Positions | None
    layers: int | None
    example: Tensor
    batch_of: Callable[[Tensor], tuple[Any, Tensor]]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Auditable(Protocol):
    """What a task must have to be trained with audit=on or warn, and for `maskzoo audit`."""

    def audit_case(self) -> AuditCase:
        """The model as it is now with data of the training part; called after the data were set up."""
        ...


def check_auditable(task: Any, name: str) -> None:
    """Raise ValueError unless the task called `name` says how its model is audited."""
    if not callable(getattr(task, "audit_case", None)):
        raise ValueError(
            f"the task {name!r} does not say how its model is audited: {type(task).__qualname__} needs the method "
            "audit_case() of maskzoo.tasks.training.audit.Auditable; audit=off trains without"
        )


def audited(case: AuditCase, method: str) -> Report:
    """The report on what outputs depend on, and on whether any of them depends on its own target.

    Args:
        method: "exact", "quick" or "auto", as in `maskzoo.audit.check`.
    """
    started = time.perf_counter()
    report = check(case.model, case.inputs, case.permits, at=case.at, layers=case.layers, method=method, **case.options)
    samples = min(case.example.numel(), CHANGED[report.method])
    findings, checks, skipped = list(report.findings), list(report.checks), list(report.skipped)
    try:
        findings += target_alignment(case.model, case.example, case.batch_of, samples=samples)
        checks.append(f"target alignment, from raw data on ({samples} elements changed)")
    except Inapplicable as reason:
        skipped.append(str(reason))
    return dataclasses.replace(
        report,
        findings=tuple(findings),
        checks=tuple(checks),
        skipped=tuple(skipped),
        passes=report.passes + samples + 1,
        seconds=time.perf_counter() - started,
    )


class Audit(Callback):
    """Audits the model on real data before the first step, also when a run is resumed.

    The page lies in the run folder and, where wandb is on, there too. Every checkpoint holds the result under
    "maskzoo", "audit".

    Args:
        setting: "on" (a model with an error is not trained), "warn" or "off".
        task: asked for its case once the model is on its device.
        page: the HTML file for the report.

    Attributes:
        report: None before the audit, and with "off".
    """

    def __init__(self, setting: str, task: Auditable, page: Path, console: Console) -> None:
        self.setting, self.task, self.page, self.console = setting, task, page, console
        self.report: Report | None = None

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self.setting == "off":
            return
        self.report = audited(self.task.audit_case(), "quick")
        try:
            self.report.save(self.page)
        except OSError as error:
            raise OutputFailed(f"cannot write {self.page}: {error.strerror}; choose another run_dir") from error
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                _show_in_wandb(self.report, logger.experiment, self.page)
        text = str(self.report) if self.report.findings else f"audit: {self.summary()}"
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        if self.setting == "on" and not self.report.ok:
            raise UnsoundModel(
                f"the model was not trained, because it sees what it must not. {self.report.errors[0]}\n"
                f"The whole report is {self.page}; audit=warn trains all the same"
            )

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        result = {} if self.report is None else self.report.to_dict(matrices=False)
        checkpoint["maskzoo"]["audit"] = {"setting": self.setting, **result}

    def summary(self) -> str:
        """The result in a line, and one for each finding."""
        if self.report is None:
            return "off: what the model sees was not checked"
        chance = f"; {self.report.miss}" if self.report.miss else ""
        lines = [f"{self.report.verdict} ({self.report.measured}{chance})", *map(str, self.report.findings)]
        return "\n".join(lines)


def _show_in_wandb(report: Report, run: Any, page: Path) -> None:
    import wandb

    run.summary.update(
        {
            "audit/ok": report.ok,
            "audit/errors": len(report.errors),
            "audit/warnings": len(report.findings) - len(report.errors),
            "audit/passes": report.passes,
            "audit/seconds": report.seconds,
        }
    )
    run.log({"audit/page": wandb.Html(page.read_text(encoding="utf-8"), inject=False)})
