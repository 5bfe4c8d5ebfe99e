"""Trained on short text, read on long text: bits per byte of several runs at several contexts, as table and picture.

    maskzoo train -m experiment=length_alibi,length_relative,length_sinusoidal,length_rotary,length_none
    python scripts/length_generalisation.py runs/ --picture length.png --json length.json

Every run is scored on the same beginnings of the validation documents. A context slides along by half its length, as in
`maskzoo eval`, so that a longer one gives more to go by: a model that generalises goes down or stays level beyond the
length it was trained on. The second panel reads windows of the longest context and tells which places in them go wrong.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.nn import functional

from maskzoo.checkpoint import find_checkpoint, load, read_checkpoint
from maskzoo.tasks.language.data import DataConfig, LanguageData
from maskzoo.tasks.language.evaluation import evaluate_split, split_sequences
from maskzoo.tasks.language.tokenizers import from_state
from maskzoo.tasks.training.precision import resolved_precision
from maskzoo.transformer import LanguageModel

TOKENS_AT_ONCE = 8192
BINS = 16
"""Into how many bins the places of the longest context are put together."""


@dataclass(frozen=True)
class Text:
    """Beginnings of documents as token ids, and how many bytes each token of the vocabulary stands for."""

    sequences: list[np.ndarray]
    byte_lengths: np.ndarray


@dataclass(frozen=True)
class Result:
    """What one run scored: bits per byte for each context, and for each bin of places in the longest context."""

    name: str
    run: str
    trained_on: int
    bits_per_byte: dict[int, float]
    by_place: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs, or a folder that holds some")
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--each", type=int, default=4096, help="tokens read of each document")
    parser.add_argument("--precision", choices=("auto", "32", "bf16"), default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--picture", type=Path, default=None, help="a .png or .svg file")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    precision = resolved_precision(options.precision, "cpu")
    contexts = sorted(options.contexts)
    print(f"{'bits per byte':<24}" + "".join(f"{context:>9,}" for context in contexts), flush=True)
    results: list[Result] = []
    for run in run_folders(options.runs):
        results.append(score(run, contexts, options.each, precision))
        if results[-1].trained_on != results[0].trained_on:
            raise ValueError(f"{run} was trained on {results[-1].trained_on} tokens, not on {results[0].trained_on}")
        figures = "".join(f"{value:9.3f}" for value in results[-1].bits_per_byte.values())
        print(f"{results[-1].name:<24}{figures}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8")
    if options.picture is not None:
        picture(results).savefig(options.picture)


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Each path that is a run, and the runs directly inside each that is none.

    Raises:
        ValueError: a path is no run and holds none.
    """
    found = []
    for path in paths:
        inside = [path] if (path / "checkpoints").is_dir() else sorted(one.parent for one in path.glob("*/checkpoints"))
        if not inside:
            raise ValueError(f"{path} is neither the folder of a run nor a folder that holds some")
        found += inside
    return found


def score(run: Path, contexts: list[int], each: int, precision: str) -> Result:
    file = find_checkpoint(run)
    about = read_checkpoint(file)["maskzoo"]
    model = load(file)
    data = LanguageData(DataConfig(**about["config"]["data"]), tokenizer=from_state(about["tokenizer"]))
    text = Text([ids[: each + 1] for ids in split_sequences(data, "val")], data.tokenizer.byte_lengths)
    bits = {
        context: evaluate_split(
            model,
            text.sequences,
            text.byte_lengths,
            context=context,
            stride=max(1, context // 2),
            batch_size=max(1, TOKENS_AT_ONCE // context),
            precision=precision,
        ).bits_per_byte
        for context in contexts
    }
    name = about["bias"] or ("no position" if model.config.position == "none" else model.config.position)
    return Result(name, str(run), data.config.context, bits, by_place(model, text, contexts[-1], precision))


@torch.no_grad()
def by_place(model: LanguageModel, text: Text, context: int, precision: str) -> list[float]:
    """Bits per byte for each bin of places in whole windows of `context` tokens; NaN where no text is that long."""
    windows = [
        torch.from_numpy(ids[start : start + context + 1].astype(np.int64))
        for ids in text.sequences
        for start in range(0, len(ids) - context, context)
    ]
    if not windows:
        return [math.nan] * BINS
    nats, n_bytes = torch.zeros(context, dtype=torch.float64), torch.zeros(context, dtype=torch.float64)
    for rows in torch.stack(windows).split(max(1, TOKENS_AT_ONCE // context)):
        inputs, targets = rows[:, :-1], rows[:, 1:]
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = model(inputs)
        losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        nats += losses.view_as(targets).double().sum(0)
        n_bytes += torch.from_numpy(text.byte_lengths)[targets].sum(0)
    bins = zip(nats.tensor_split(BINS), n_bytes.tensor_split(BINS), strict=True)
    return [float(bin_nats.sum() / bin_bytes.sum()) / math.log(2) for bin_nats, bin_bytes in bins]


def picture(results: Sequence[Result]) -> Figure:
    """Bits per byte over the context, and over the place in the longest one."""
    drawn = Figure(figsize=(11, 4.8), dpi=150, layout="constrained")
    over_context, over_place = drawn.subplots(1, 2, sharey=True)
    longest = max(results[0].bits_per_byte)
    middles = (np.arange(BINS) + 0.5) * longest / BINS
    for number, result in enumerate(results):
        style = {"marker": "osD^v"[number % 5], "color": f"C{number}", "label": result.name}
        over_context.plot(list(result.bits_per_byte), list(result.bits_per_byte.values()), **style)
        over_place.plot(middles, result.by_place, markersize=3, **style)
    contexts = list(results[0].bits_per_byte)
    over_context.set_xscale("log", base=2)
    over_context.set_xticks(contexts, [f"{context:,}" for context in contexts])
    over_context.set(xlabel="context in tokens, sliding by half", ylabel="bits per byte", title="By context")
    over_place.set(xlabel=f"place in a window of {longest:,} tokens", title=f"By place, at context {longest:,}")
    for axes in (over_context, over_place):
        _mark_training(axes, results[0].trained_on)
    over_context.legend(loc="upper left", fontsize=9)
    return drawn


def _mark_training(axes: Axes, length: int) -> None:
    axes.axvline(length, color="0.5", linestyle="--", linewidth=1)
    axes.annotate(
        f"trained on {length:,}",
        (length, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=8,
        color="0.4",
    )
    axes.grid(alpha=0.25)


if __name__ == "__main__":
    main()
