"""The optimizer, and which parameters get which rule and which decay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from maskzoo.biases.base import Bias
from maskzoo.tasks.training.ranges import check_choice, check_number
from maskzoo.transformer.block import Block


@dataclass
class OptimizerConfig:
    """AdamW, or Muon for the matrices inside the blocks beside AdamW for everything else.

    `lr` is AdamW's and `muon_lr` Muon's learning rate at the schedule's peak; `lr_final` is the fraction of the peak
    that is left at the end. Decay applies to the matrices inside the blocks only. Bias tables move TABLE_RATE times
    faster than AdamW's other parameters. `clip_norm` 0 turns clipping off.
    """

    name: str = "adamw"
    lr: float = 1e-3
    muon_lr: float = 0.01
    muon_momentum: float = 0.95
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    weight_decay: float = 0.1
    schedule: str = "cosine"
    warmup_steps: int = 50
    lr_final: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_choice("optimizer.name", self.name, ("adamw", "muon"))
        check_choice("optimizer.schedule", self.schedule, ("cosine", "linear", "constant"))
        check_number("optimizer.lr", self.lr, above=0)
        check_number("optimizer.muon_lr", self.muon_lr, above=0)
        check_number("optimizer.muon_momentum", self.muon_momentum, minimum=0, below=1)
        if len(self.betas) != 2:
            raise ValueError(f"optimizer.betas={list(self.betas)} must hold two numbers, for example [0.9, 0.95]")
        for place, beta in enumerate(self.betas):
            check_number(f"optimizer.betas[{place}]", beta, minimum=0, below=1)
        check_number("optimizer.weight_decay", self.weight_decay, minimum=0)
        check_number("optimizer.warmup_steps", self.warmup_steps, minimum=0)
        check_number("optimizer.lr_final", self.lr_final, minimum=0, maximum=1)
        check_number("optimizer.clip_norm", self.clip_norm, minimum=0)


TABLE_RATE = 10.0
"""The learning rate of bias tables, in units of AdamW's: an entry has to reach several units of a score, starts at
zero, and is moved by about the rate at each step whatever its gradient."""


def bias_tables(model: nn.Module) -> list[nn.Parameter]:
    """The trained parameters of biases."""
    biases = [module for module in model.modules() if isinstance(module, Bias)]
    tables = {id(p): p for bias in biases for p in bias.parameters() if p.requires_grad}
    return list(tables.values())


def block_matrices(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The 2-D parameters inside Transformer blocks, and all others (embeddings, norms, head, biases, bias tables)."""
    inside = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, Block)
        for parameter in module.parameters()
        if parameter.ndim == 2
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [p for p in trained if id(p) in inside], [p for p in trained if id(p) not in inside]


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer of `model`; each group keeps its peak learning rate as `initial_lr`."""
    matrices, others = block_matrices(model)
    tables = bias_tables(model)
    apart = {id(table) for table in tables}
    groups: list[dict[str, Any]] = [{"params": [p for p in others if id(p) not in apart], "weight_decay": 0.0}]
    if tables:
        groups.append({"params": tables, "weight_decay": 0.0, "lr": TABLE_RATE * config.lr})
    if config.name == "adamw":
        groups.append({"params": matrices, "weight_decay": config.weight_decay})
    beta1, beta2 = config.betas
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in others)
    optimizer: Optimizer = AdamW(groups, lr=config.lr, betas=(beta1, beta2), fused=fused)
    if config.name == "muon":
        muon = Muon(
            matrices,
            lr=config.muon_lr,
            weight_decay=config.weight_decay,
            momentum=config.muon_momentum,
            adjust_lr_fn="match_rms_adamw",  # updates of AdamW's size in any shape (Liu et al. 2025, section 2.2)
        )
        optimizer = Together([muon, optimizer])
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


class Together(Optimizer):
    """Several optimizers that step as one; their parameter groups are shared with them, not copied."""

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]
