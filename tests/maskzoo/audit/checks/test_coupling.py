"""Rows of a batch that move with one another."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from maskzoo.audit.checks import Inapplicable, batch_coupling
from maskzoo.audit.subject import Subject

B, T, C = 4, 6, 8
X = torch.randn(B, T, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def subject(model: nn.Module, x: Tensor = X) -> Subject:
    return Subject(model.double().eval(), x)


class OverRows(nn.Module):
    """LayerNorm over the batch instead of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(B)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(0, 2)).transpose(0, 2)


class BatchNormAlways(nn.Module):
    """BatchNorm that never uses running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(C, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class RowsAsPositions(nn.Module):
    """Attention that takes the batch for the sequence: batch_first forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(C, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class Experts(nn.Module):
    """Routes each position to one of two layers; the last to come find no room where there is a capacity."""

    def __init__(self, capacity: int | None) -> None:
        super().__init__()
        self.router, self.capacity = nn.Linear(C, 2), capacity
        self.experts = nn.ModuleList(nn.Linear(C, C) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        chosen, out = self.router(flat).argmax(1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[: self.capacity, 0]
            out[rows] = expert(flat[rows])
        return out.view_as(x)


class Quantised(nn.Module):
    """Rounds to steps of the largest activation of the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        step = x.abs().amax() / 127
        return (x / step).round() * step


class HalfTheRows(nn.Module):
    """The last row takes in the first."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:-1], x[-1:] + 1e-6 * x[:1]])


@pytest.mark.parametrize(
    ("make", "layer"),
    [
        (OverRows, "1.norm"),
        (BatchNormAlways, "1.norm"),
        (RowsAsPositions, "1.attention"),
        (lambda: Experts(capacity=8), "1"),
        (Quantised, "1"),
        (HalfTheRows, "1"),
    ],
)
def test_coupled_rows_are_found(make: Callable[[], nn.Module], layer: str) -> None:
    torch.manual_seed(0)
    [found] = batch_coupling(subject(nn.Sequential(nn.Linear(C, C), make(), nn.Linear(C, C))), setting="in a test")
    assert found.kind == "batch coupling" and found.severity == "error"
    assert found.layer == layer and found.size > 0 and found.pairs >= 1
    assert f"row {found.row}" in found.message and found.message.endswith("in a test")


def test_the_usual_cause_is_the_module_s() -> None:
    [found] = batch_coupling(subject(BatchNormAlways()))
    assert "batch normalisation" in found.cause


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.TransformerEncoderLayer(C, 2, 16, batch_first=True),
        lambda: nn.Sequential(nn.Linear(C, C), nn.Dropout(0.5)),
        lambda: Experts(capacity=None),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(T * C, 3)),
        lambda: nn.GRU(C, C, batch_first=True),
        lambda: nn.BatchNorm1d(T),  # with running statistics, in evaluation mode
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_alarm_on_rows_that_stand_alone(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert batch_coupling(Subject(make().to(dtype).eval(), X.to(dtype))) == []


def test_one_row_has_no_companions() -> None:
    with pytest.raises(Inapplicable, match="two rows"):
        batch_coupling(subject(nn.Linear(C, C), X[:1]))
