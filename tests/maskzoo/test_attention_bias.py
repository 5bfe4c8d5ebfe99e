"""Bias through `plan` and `attend`: one meaning on every backend, with the gradient of every table."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

import maskzoo as mz
from maskzoo.transformer import LanguageModel, TransformerConfig
from maskzoo.transformer.generation import generate

FAST = ["tiled", "edges", "dense"]
HEADS = 4


class Gap(mz.Bias):
    """A stored index: which of eight groups the difference of two positions falls in."""

    def __init__(self, *, heads):
        super().__init__(heads)
        self.weight = torch.nn.Parameter(torch.zeros(heads, 8))

    def index(self, q, k):
        return (q.index - k.index).abs() % 5 + 3 * (k.index > q.index)

    def table(self, entries):
        return self.weight


TEXTS = [
    "alibi",
    "relative(8, 20)",
    "relative(8, 20, both_directions=True)",
    "clipped_relative(5)",
    "offset(6, 2)",
    "grid_offset(4, 3)",
    "grid_offset(4, 3, times=2)",
    "distance",
    "distance('linear', ('row', 'col'), 'chebyshev', learned=True)",
    "segment_pair(3)",
]
SUMS = [
    "alibi + 0.5 * relative(8, 20)",
    "relative(8, 20) + grid_offset(4, 3) + segment_pair(3)",
    "gap",
    "2 * gap + relative(8, 20)",
    "table",
    "table + gap + -0.5 * (alibi + offset(6, 2))",
    "dense",
    "dense + table + clipped_relative(5)",
]


def made(text, batch, queries, keys, dtype=torch.float64):
    """The bias, with tables drawn at random; `gap`, `table` and `dense` are made for these lengths."""
    own = {
        "gap": lambda: Gap(heads=HEADS),
        "table": lambda: mz.biases.Table(torch.randint(0, 300, (batch, queries, keys)), heads=HEADS),
        "dense": lambda: mz.biases.Dense(torch.randn(HEADS, 1, keys, dtype=dtype, requires_grad=True), heads=HEADS),
    }
    registry = {name: mz.registry.Entry(name, lambda heads, make=make: make(), "") for name, make in own.items()}
    bias = parsed(text, registry).to(dtype)
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    return bias
