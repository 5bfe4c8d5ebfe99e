"""The one screen before the first step and the one after the last."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import Trainer
from rich.console import Console
from rich.markup import escape

from maskzoo.tasks.training.progress import duration

if TYPE_CHECKING:
    from maskzoo.tasks.training.run import Run


def rows_before(run: Run, trainer: Trainer, wandb: str) -> dict[str, str]:
    """Data, model, rule, kernel, plan of training, and where the outputs go."""
    config, optimizer = run.config, run.config.optimizer
    device = trainer.strategy.root_device.type
    rates = f"lr {optimizer.lr:g}" + (f", {optimizer.muon_lr:g} for matrices" if optimizer.name == "muon" else "")
    machine = [device]
    if device == "cpu":
        machine.append(f"{torch.get_num_threads()} threads")
    machine.append("bf16 autocast" if trainer.precision == "bf16-mixed" else "float32")
    if config.trainer.compile:
        machine.append("compiled")
    return {
        **run.facts,
        "planned": f"{run.budget}; {optimizer.name}, {rates}, {optimizer.schedule}",
        "machine": ", ".join(machine),
        **({"audit": run.audit.summary()} if config.audit == "off" else {}),
        "outputs": f"{run.folder.path} (wandb {wandb})"
        + (f", going on after step {run.saved['step']:,}" if run.saved else ""),
    }


def rows_after(run: Run, trainer: Trainer) -> dict[str, str]:
    """Scores, speed, memory, what the model writes, where everything lies and how to go on."""
    scores, checkpoints, folder = run.module.scores, run.checkpoints, run.folder
    rows = {
        split: ", ".join(
            f"{name.split('/')[1].replace('_', ' ')} {value:.4g}"
            for name, value in scores.items()
            if name.startswith(f"{split}/")
        )
        for split in ("train", "val", "test")
    }
    rows["audit"] = run.audit.summary()
    rows["best"] = f"val loss {checkpoints.best:.4g} at step {checkpoints.best_step}"
    rows["speed"] = run.module.speed()
    rows["time"] = f"{duration(run.budget.seconds)} for {trainer.global_step:,} steps"
    rows["memory"] = f"{peak_memory()} at most"
    if run.config.sample.tokens:
        rows["sample"] = _printable(_made(lambda: run.task.write_sample(folder.sample)))
    rows["mask"] = _made(lambda: run.task.draw_mask(folder.mask))
    page = "" if run.audit.report is None else "audit.html, "
    rows["files"] = f"{folder.path}: config.yaml, metrics.csv, {page}checkpoints/best.ckpt, checkpoints/last.ckpt"
    rows["continue"] = f"{run.resume_command} {run.budget.doubled()}"
    rows["generate"] = f"maskzoo generate checkpoint={shlex.quote(str(folder.path))}"
    return {name: text for name, text in rows.items() if text}


def print_table(console: Console, title: str, rows: dict[str, str]) -> None:
    """A name and its text a line."""
    console.print(f"[bold]{escape(title)}[/bold]", highlight=False)
    width = max(len(name) for name in rows)
    for name, text in rows.items():
        for number, line in enumerate(text.splitlines() or [""]):
            label = name if number == 0 else ""
            console.print(f"  {label:<{width}}  {escape(line)}", highlight=False, soft_wrap=True)


def peak_memory() -> str:
    """The most memory this process has held, and on a GPU the most it has had there."""
    parts = []
    if sys.platform != "win32":
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        parts.append(f"{used * (1 if sys.platform == 'darwin' else 1024) / 2**30:.2f} GiB")
    if torch.cuda.is_available():
        parts.append(f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB on the GPU")
    return ", ".join(parts) or "unknown"


def _made(make: Callable[[], str]) -> str:
    """What `make` gives, or why there is none: a rule that step-by-step decoding cannot obey is no failed training."""
    try:
        return make()
    except (ValueError, OSError) as error:
        return f"none: {error}"


def _printable(text: str) -> str:
    """Without control characters: a model that has learned little writes any byte, and a terminal would obey it."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
