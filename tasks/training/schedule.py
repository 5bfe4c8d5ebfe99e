"""The learning rate over the course of training."""

from __future__ import annotations

import math

from maskzoo.tasks.training.optimizer import OptimizerConfig


def learning_rate_factor(config: OptimizerConfig, step: int, progress: float) -> float:
    """The learning rate of the step after `step` finished ones, as a fraction of its peak.

    Linear warm-up over the first `warmup_steps`, times the way from 1 down to `lr_final` as `progress`, the used share
    of the budget in steps or time, goes from 0 to 1. The cosine is that of Loshchilov and Hutter 2017 (SGDR), eq. 5.
    """
    warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    if config.schedule == "constant":
        return warmup
    remaining = 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return warmup * (config.lr_final + (1.0 - config.lr_final) * remaining)
