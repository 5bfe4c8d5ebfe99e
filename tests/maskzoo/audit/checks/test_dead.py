"""Outputs that nothing moves, and outputs that are no numbers."""

import pytest
import torch
from torch import Tensor, nn

from maskzoo.audit.checks import dead_queries
from maskzoo.audit.subject import Subject

B, T, C = 2, 6, 8
X = torch.randn(B, T, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class With(nn.Module):
    """A linear layer, whose output at position 2 is replaced."""

    def __init__(self, value: float | None) -> None:
        super().__init__()
        self.linear, self.value = nn.Linear(C, C), value

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x).clone()
        if self.value is not None:
            out[:, 2] = self.value
        return out


class Strict(nn.Module):
    """The sum of earlier positions; the first has none."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) - x


def run(model: nn.Module) -> Subject:
    return Subject(model.double().eval(), X)


@pytest.mark.parametrize(("value", "word"), [(0.0, "is zero"), (3.5, "does not move")])
def test_constant_output(value: float, word: str) -> None:
    [found] = dead_queries(run(With(value)))
    assert (found.kind, found.severity, found.query, found.pairs) == ("dead query", "warning", 2, B)
    assert word in found.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_output_that_is_no_number(value: float) -> None:
    [found] = dead_queries(run(With(value)))
    assert (found.severity, found.query) == ("error", 2) and "no finite number" in found.message


def test_fully_masked_row_of_torch_attention() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(C, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.zeros(T, T, dtype=torch.bool)
            hidden[3] = True
            return self.attention(x, x, x, attn_mask=hidden)[0]

    [found] = dead_queries(run(Masked()))
    assert found.query == 3 and found.severity == "error"


def test_no_alarm() -> None:
    assert dead_queries(run(With(None))) == []
    assert dead_queries(run(nn.GRU(C, C, batch_first=True))) == []
    strictly = torch.ones(1, T, T, dtype=torch.bool).tril(-1)
    assert len(dead_queries(run(Strict()))) == 1 and dead_queries(run(Strict()), strictly) == []
    real = torch.ones(1, T, dtype=torch.bool)
    real[:, 2] = False
    assert dead_queries(run(With(float("nan"))), real=real) == []


def test_logits_that_are_ruled_out_are_allowed() -> None:
    class Ruled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, torch.full_like(x[..., :1], -torch.inf)], dim=-1)

    assert dead_queries(run(Ruled())) == []
