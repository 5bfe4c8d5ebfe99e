"""Outputs that move along with permuted positions (case A6)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from maskzoo.audit.checks import Inapplicable, broken_symmetry
from maskzoo.audit.subject import Subject

B, T, C = 2, 7, 16
X = torch.randn(B, T, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Attention(nn.Module):
    def __init__(self, causal: bool = False, positions: bool = False) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(C, 2, 32, batch_first=True)
        self.positions = nn.Parameter(torch.randn(T, C)) if positions else None
        self.mask = torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x if self.positions is None else x + self.positions, src_mask=self.mask)


class Pooled(nn.Module):
    """Attention pooling (case A13), or the first position only."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.score, self.first = nn.Linear(C, 1), first

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] if self.first else (self.score(x).softmax(1) * x).sum(1, keepdim=True)


def run(model: nn.Module, dtype: torch.dtype = torch.float64) -> Subject:
    torch.manual_seed(0)
    return Subject(model.to(dtype).eval(), X.to(dtype))


@pytest.mark.parametrize("make", [Attention, Pooled, lambda: nn.Linear(C, C)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_symmetric_models(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    assert broken_symmetry(run(make(), dtype)) == []


@pytest.mark.parametrize(
    ("make", "layer"),
    [
        (lambda: Attention(causal=True), "layer.self_attn"),
        (lambda: Attention(positions=True), "the model's own forward, before layer"),
        (lambda: nn.Sequential(nn.Linear(C, C), nn.GRU(C, C, batch_first=True)), "1"),
    ],
)
def test_broken_symmetry(make: Callable[[], nn.Module], layer: str) -> None:
    [found] = broken_symmetry(run(make()))
    assert found.kind == "broken symmetry" and found.size > 1e-3 and found.layer == layer
    assert found.key is not None and f"inputs {found.key} and {found.key + 1}" in found.message


def test_pooled_output_that_prefers_a_position() -> None:
    [found] = broken_symmetry(run(Pooled(first=True)))
    assert "the output moves" in found.message and found.key == 0


class Graph(nn.Module):
    """Sums over neighbours; `ordered` also adds the node's number."""

    def __init__(self, ordered: bool = False) -> None:
        super().__init__()
        self.linear, self.ordered = nn.Linear(C, C), ordered

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        out = self.linear(adjacency @ x)
        return out + torch.arange(T)[:, None] if self.ordered else out


def test_nodes_with_their_edges() -> None:
    adjacency = (torch.rand(T, T, generator=torch.Generator().manual_seed(0)) < 0.4).double()

    def renumbered(inputs: tuple[Tensor, Tensor], order: Tensor) -> tuple[Tensor, Tensor]:
        x, edges = inputs
        return x[:, order], edges[order][:, order]

    for ordered in (False, True):
        subject = Subject(Graph(ordered).double().eval(), (X, adjacency))
        assert bool(broken_symmetry(subject, permuted=renumbered)) == ordered


def test_other_lengths_have_no_symmetry() -> None:
    class Shorter(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :-2]

    with pytest.raises(Inapplicable, match="one for each"):
        broken_symmetry(run(Shorter()))
