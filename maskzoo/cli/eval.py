"""`maskzoo eval`: score a trained model on a whole split."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from omegaconf import MISSING

from maskzoo.cli.configuration import store_schema
from maskzoo.cli.help import command_help
from maskzoo.cli.launch import Options, launch

TOKENS_AT_ONCE = 8192

HELP = """\
usage: maskzoo eval checkpoint=PATH [key=value ...]

Every token of the split is predicted once, with a context that slides along.

examples:
  maskzoo eval checkpoint=runs/NAME
  maskzoo eval checkpoint=runs/NAME split=val stride=1 output=scores.json
"""


@dataclass
class EvalConfig:
    """What to score, and how closely."""

    checkpoint: str = field(default=MISSING, metadata={"help": "a run folder (its best checkpoint) or a .ckpt file"})
    split: str = field(default="test", metadata={"help": "train, val or test"})
    context: int | None = field(default=None, metadata={"help": "tokens read at once; null: those of training"})
    stride: int | None = field(
        default=None, metadata={"help": "tokens that the context moves on; 1 is exact and slow; null: half the context"}
    )
    batch_size: int | None = field(default=None, metadata={"help": "rows at once; does not change the scores"})
    precision: str = field(default="auto", metadata={"help": "32, bf16, or auto: bf16 where that is fast"})
    text: str | None = field(default=None, metadata={"help": "another file or folder in place of the run's data"})
    output: str | None = field(default=None, metadata={"help": "a file for the scores as JSON"})

    def __post_init__(self) -> None:
        from maskzoo.tasks.training.precision import PRECISIONS
        from maskzoo.tasks.training.ranges import check_choice, check_number

        check_choice("split", self.split, ("train", "val", "test"))
        check_number("batch_size", self.batch_size, minimum=1)
        check_choice("precision", self.precision, PRECISIONS)


def help_text() -> str:
    return command_help(HELP, EvalConfig)


def main(overrides: list[str], options: Options) -> int:
    store_schema("eval", EvalConfig)
    return launch("eval", run, overrides, options)


def run(config: EvalConfig, words: list[str]) -> int:
    """Print the scores as a table and as one line of JSON."""
    from maskzoo.checkpoint import find_checkpoint, load, read_checkpoint
    from maskzoo.tasks.language.corpora import Split
    from maskzoo.tasks.language.data import DataConfig, LanguageData
    from maskzoo.tasks.language.evaluation import evaluate_split, split_sequences
    from maskzoo.tasks.language.tokenizers import from_state
    from maskzoo.tasks.training.precision import resolved_precision

    file = find_checkpoint(config.checkpoint)
    about = read_checkpoint(file)["maskzoo"]
    model = load(file)
    data_config = DataConfig(**about["config"]["data"])
    if config.text is not None:
        data_config = dataclasses.replace(data_config, name="text", path=config.text)
    data = LanguageData(data_config, tokenizer=from_state(about["tokenizer"]))
    context = data_config.context if config.context is None else config.context
    stride = max(1, context // 2) if config.stride is None else config.stride
    scores = evaluate_split(
        model,
        split_sequences(data, cast(Split, config.split)),
        data.tokenizer.byte_lengths,
        context=context,
        stride=stride,
        batch_size=config.batch_size or max(1, TOKENS_AT_ONCE // context),
        precision=resolved_precision(config.precision, next(model.parameters()).device.type),
        progress=_show_progress if sys.stderr.isatty() else None,
    )
    figures = {
        "checkpoint": str(file),
        "data": data_config.name,
        "split": config.split,
        "context": context,
        "stride": stride,
        "tokens": scores.tokens,
        "bytes": scores.bytes,
        "loss": scores.loss,
        "perplexity": scores.perplexity,
        "bits_per_byte": scores.bits_per_byte,
        "tokens_per_second": scores.tokens_per_second,
    }
    for name, figure in figures.items():
        print(f"{name.replace('_', ' '):<20}{_shown(figure)}")
    print(json.dumps(figures))
    if config.output is not None:
        Path(config.output).expanduser().write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def _show_progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done / total:4.0%} of {total:,} tokens", end=end, file=sys.stderr, flush=True)


def _shown(figure: Any) -> str:
    if isinstance(figure, float):
        return f"{figure:,.4f}"
    return f"{figure:,}" if isinstance(figure, int) else str(figure)
