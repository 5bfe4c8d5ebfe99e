"""Random stacks of sound and leaking layers: the audit says leak if and only if there is one."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from maskzoo.audit import check

WIDTH, LENGTH = 8, 9


class Layer(nn.Module):
    """x plus a sum over places `offset` back, each with a weight of its own; a negative one looks ahead."""

    def __init__(self, offsets, nonlinear):
        super().__init__()
        self.offsets, self.nonlinear = offsets, nonlinear
        self.weights = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in offsets)

    def forward(self, x):
        T = x.shape[1]
        for offset, weight in zip(self.offsets, self.weights, strict=True):
            padded = F.pad(x, (0, 0, max(offset, 0), max(-offset, 0)))
            x = x + weight(padded[:, max(-offset, 0) :][:, :T])
        return torch.tanh(x) if self.nonlinear else x


def reached(layers):
    """Which inputs each output truly sees, layer by layer, bool [T, T]."""
    back = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    total = torch.eye(LENGTH)
    for offsets, _ in layers:
        for offset in offsets:
            total = ((back == 0) | (back == offset)).float() @ total
    return total > 0


stacks = st.lists(
    st.tuples(st.lists(st.integers(-1, 3), min_size=1, max_size=2), st.booleans()), min_size=1, max_size=3
)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(stacks, st.integers(0, 3))
def test_leak_is_reported_exactly_where_there_is_one(layers, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(*(Layer(*layer) for layer in layers))
    truth = reached(layers)
    report = check(model, torch.randn(1, LENGTH, WIDTH), permits="causal", method="exact", blind_spots=False, seed=seed)
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    assert bool(report.leaks) == bool((truth & future).any())
    assert torch.equal(report.influence != 0, truth)
    for leak in report.leaks:
        assert leak.query is not None and leak.key is not None and leak.key > leak.query


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(stacks, st.integers(0, 3))
def test_what_a_stack_truly_reaches_is_neither_leak_nor_blind_spot(layers, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(*(Layer(*layer) for layer in layers))
    report = check(
        model, torch.randn(1, LENGTH, WIDTH), permits=reached(layers), layers=1, lengths=(LENGTH,), seed=seed
    )
    assert not report.findings, str(report)


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, LENGTH - 1), st.integers(0, LENGTH - 1), st.integers(0, 5))
def test_a_single_pair_is_found_and_named(query, key, seed):
    torch.manual_seed(seed)
    open_pair = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    open_pair[query, key] = True

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Parameter(torch.randn(LENGTH, LENGTH))

        def forward(self, x):
            return (self.mix * open_pair)[: x.shape[1], : x.shape[1]] @ x

    report = check(Pair(), torch.randn(1, LENGTH, WIDTH), permits="causal", layers=1)
    if key <= query:
        assert not report.findings, str(report)
    else:
        assert {(leak.query, leak.key) for leak in report.leaks} == {(query, key)}
