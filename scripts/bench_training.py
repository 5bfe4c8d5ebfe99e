"""Training speed of maskzoo's language model against a plain torch model of the same shape, or its own dense form.

    python scripts/bench_training.py --width 256 --layers 4 --context 256 --batch 16 --precision bf16
    python scripts/bench_training.py --lightning
    python scripts/bench_training.py --against dense --context 2048 --batch 2

Both models are pre-norm, rotary, GELU, with tied embeddings; the plain one calls
`scaled_dot_product_attention(is_causal=True)` and knows nothing of masks. With --against dense the other model is
ours too, all of whose plans go to the dense kernel, and both read packed documents (--data). A step is forward, loss,
backward, clipping of the gradient and AdamW. The two take turns on the same machine, and the ratio is the median over
pairs of turns. With --lightning ours is trained by the language task on real text, with everything that
`maskzoo train` does at each step. The last line is JSON.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskzoo.planning import Plan
from maskzoo.positions import Positions
from maskzoo.transformer import LanguageModel, TransformerConfig

VOCABULARY = 258  # of the byte tokenizer

Batch = tuple[Tensor, Tensor, Positions | None]
"""Tokens and targets [B, T] (−100: not predicted), and the positions where they are not one sequence a row."""


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Plain(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        half = width // heads // 2
        angles = torch.outer(torch.arange(context), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embedding.weight)


class DenseForm(LanguageModel):
    """The language model with the same plans, each of which goes to the dense kernel."""

    def plan(self, at: Positions, k_at: Positions | None = None) -> Plan:
        return replace(super().plan(at, k_at), kernel="dense")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true", help="compile each block of both models")
    parser.add_argument("--pairs", type=int, default=9, help="turns of each model")
    parser.add_argument("--steps", type=int, default=3, help="training steps in a turn")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--against", choices=["plain", "dense"], default="plain", help="who the other model is")
    parser.add_argument("--lightning", action="store_true", help="train ours through the language task")
    parser.add_argument(
        "--data",
        choices=["stdlib", "enwik8"],
        default="stdlib",
        help="with --lightning or --against dense: packed files, or one long text",
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    other, blocks, batches = the_other(options)
    other_turn = turn_of(other, blocks, batches, options)
    speeds = (through_lightning if options.lightning else by_hand)(options, other_turn)
    ours, theirs = (statistics.median(column) for column in zip(*speeds, strict=True))
    ratios = [a / b for a, b in speeds]
    ratio, name = statistics.median(ratios), {"plain": "plain torch", "dense": "dense form"}[options.against]
    print(
        f"{sum(p.numel() for p in other.parameters()):,} parameters, context {options.context}, batch {options.batch}, "
        f"{options.precision}, {options.device}"
    )
    print(f"  maskzoo      {ours:12,.0f} tokens a second{' (language task)' if options.lightning else ''}")
    print(f"  {name:12} {theirs:12,.0f} tokens a second")
    print(f"  ratio        {ratio:12.3f} ({min(ratios):.3f} … {max(ratios):.3f})")
    print(json.dumps({**vars(options), "maskzoo": ours, options.against: theirs, "ratio": ratio, "ratios": ratios}))


def the_other(options: argparse.Namespace) -> tuple[nn.Module, nn.ModuleList, Iterator[Batch]]:
    """The model to compare with, its blocks, and what it reads."""
    if options.against == "plain":
        plain = Plain(options.layers, options.width, options.heads, options.context)
        return plain, plain.blocks, random_batches(options)
    dense = DenseForm(shape(options), VOCABULARY, mask="causal")
    return dense, dense.transformer.blocks, text_batches(options)


def shape(options: argparse.Namespace) -> TransformerConfig:
    return TransformerConfig(
        layers=options.layers, width=options.width, heads=options.heads, context=options.context, position="rotary"
    )


def random_batches(options: argparse.Namespace) -> Iterator[Batch]:
    tokens = torch.randint(VOCABULARY, (options.batch, options.context + 1), device=options.device)
    return itertools.repeat((tokens[:, :-1], tokens[:, 1:], None))


def text_batches(options: argparse.Namespace) -> Iterator[Batch]:
    """The batches that the language task trains on, in its order, over and over."""
    from maskzoo.tasks.language.data import LanguageData

    batches = LanguageData(data_config(options)).train_batches(epoch=0)
    for number in itertools.count():
        batch = batches[number % len(batches)].to(options.device)
        yield batch.tokens, batch.targets, batch.at


def data_config(options: argparse.Namespace) -> Any:
    from maskzoo.tasks.language.data import DataConfig

    return DataConfig(
        name=options.data,
        context=options.context,
        batch_size=options.batch,
        batching={"stdlib": "packed", "enwik8": "stream"}[options.data],
    )


def turn_of(
    model: nn.Module, blocks: nn.ModuleList, batches: Iterator[Batch], options: argparse.Namespace
) -> Callable[[], float]:
    """A function that trains for some steps and returns the tokens a second."""
    model.to(options.device)
    if options.compile:
        for block in blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def turn() -> float:
        taken = list(itertools.islice(batches, options.steps))
        started = clock(options.device)
        for tokens, targets, at in taken:
            with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
                logits = model(tokens) if at is None else model(tokens, at)
            loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return options.steps * options.batch * options.context / (clock(options.device) - started)

    return turn


def by_hand(options: argparse.Namespace, other_turn: Callable[[], float]) -> list[tuple[float, float]]:
    """Both models in the same loop. Who goes first alternates."""
    model = LanguageModel(shape(options), VOCABULARY, mask="causal")
    batches = random_batches(options) if options.against == "plain" else text_batches(options)
    our_turn = turn_of(model, model.transformer.blocks, batches, options)
    for warm_up in (our_turn, other_turn):
        warm_up()
    speeds = []
    for number in range(options.pairs):
        if number % 2:
            theirs, ours = other_turn(), our_turn()
        else:
            ours, theirs = our_turn(), other_turn()
        speeds.append((ours, theirs))
    return speeds


def through_lightning(options: argparse.Namespace, other_turn: Callable[[], float]) -> list[tuple[float, float]]:
    """Ours in `maskzoo train`'s own trainer, which pauses after each turn while the other model takes its own."""
    from lightning.pytorch import Callback
    from rich.console import Console

    from maskzoo.tasks.language.task import Language
    from maskzoo.tasks.training.budget import Budget, StopWhenSpent
    from maskzoo.tasks.training.config import RunConfig
    from maskzoo.tasks.training.loggers import MetricsFile
    from maskzoo.tasks.training.nonfinite import NonFiniteGuard
    from maskzoo.tasks.training.progress import ShowProgress
    from maskzoo.tasks.training.trainer import TrainerConfig, build_trainer, quiet_lightning

    speeds: list[tuple[float, float]] = []

    class Turns(Callback):
        started = 0.0

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step % options.steps:
                return
            ours = options.steps * options.batch * options.context / (clock(options.device) - self.started)
            theirs = other_turn()
            if trainer.global_step > options.steps:  # the first turn of each warms up
                speeds.append((ours, theirs))
            self.started = clock(options.device)

        def on_train_start(self, *_: Any) -> None:
            self.started = clock(options.device)

    config = RunConfig(
        data=data_config(options),
        model=shape(options),
        trainer=TrainerConfig(
            max_steps=options.steps * (options.pairs + 1),
            precision={"fp32": "32", "bf16": "bf16"}[options.precision],
            accelerator={"cpu": "cpu", "cuda": "gpu"}[options.device],
            validate_every=10**9,
        ),
    )
    with tempfile.TemporaryDirectory() as folder, quiet_lightning():
        budget = Budget(config.trainer.max_steps, None)
        task = Language(config, budget)
        if options.compile:
            for block in task.module.model.transformer.blocks:
                block.compile()
        callbacks = [
            StopWhenSpent(budget),
            NonFiniteGuard(),
            ShowProgress(Console(quiet=True), budget, config.trainer.log_every),
            Turns(),
        ]
        logger = MetricsFile(Path(folder) / "metrics.csv")
        build_trainer(config.trainer, Path(folder), callbacks, [logger]).fit(task.module, task.data)
    return speeds


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
