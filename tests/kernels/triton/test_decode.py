"""A few queries against many keys: split over programs, and the same as the reference."""

import math

import pytest
import torch

from maskzoo.kernels.offsets import CodeTerm, Offsets, code_scores
from maskzoo.kernels.reference import reference
from maskzoo.kernels.tiles import from_visible
from maskzoo.kernels.triton.schedule import scheduled

passes = pytest.importorskip("maskzoo.kernels.triton.passes", reason="no Triton")
fused = pytest.importorskip("maskzoo.kernels.triton.operator", reason="no Triton").fused

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter

KEYS = 1100


@pytest.fixture(autouse=True)
def many_programs(monkeypatch):
    monkeypatch.setattr(passes, "multiprocessors", lambda device: 8)


def inputs(batch, heads, queries, width=16, dtype=torch.float32):
    shapes = [(heads[0], queries), (heads[1], KEYS), (heads[1], KEYS)]
    return [torch.randn(batch, h, t, width).to(dtype) for h, t in shapes]


@pytest.mark.parametrize(("heads", "queries"), [((2, 2), 1), ((4, 1), 3), ((2, 1), 17)])
@pytest.mark.parametrize("rule", ["last", "window", "random", "nothing", "by head"])
def test_equals_the_reference(heads, queries, rule):
    q, k, v = inputs(1, heads, queries)
    back = torch.arange(KEYS - queries, KEYS)[:, None] - torch.arange(KEYS)
    visible = {
        "last": back >= 0,
        "window": (back >= 0) & (back < 300),
        "random": torch.rand(queries, KEYS) < 0.1,
        "nothing": torch.zeros(queries, KEYS, dtype=torch.bool),
        "by head": torch.rand(1, heads[0], queries, KEYS) < 0.5,
    }[rule].expand(1, heads[0] if rule == "by head" else 1, -1, -1)
    schedule = scheduled(from_visible(visible, 128))
    assert passes.split_over(q, k, schedule) > 1
    out, logsum = fused(q, k, v, schedule, scale=0.3, softcap=3.0)
    expected, _, log = reference(q, k, v, visible, scale=0.3, softcap=3.0)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(logsum * math.log(2), log, atol=2e-5, rtol=2e-5)


def test_with_a_bias_and_padding_by_sequence():
    q, k, v = inputs(2, (4, 2), 1)
    visible = torch.ones(2, 1, 1, KEYS, dtype=torch.bool)
    visible[0, ..., :400] = False
    code = torch.full((1, 1), KEYS - 1), torch.arange(KEYS)[None]
    term, dense = CodeTerm(*code, torch.randn(4, KEYS)), torch.randn(2, 1, 1, KEYS)
    schedule = scheduled(from_visible(visible, 128))
    assert passes.split_over(q, k, schedule) > 1
    out, _ = fused(q, k, v, schedule, scale=0.3, offsets=Offsets(code=term, dense=dense))
    expected = reference(q, k, v, visible, code_scores(term) + dense, scale=0.3)[0]
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=2e-5)


def test_what_is_not_finite_is_felt_by_those_who_see_it():
    q, k, v = inputs(2, (2, 1), 1)
    visible = torch.ones(2, 1, 1, KEYS, dtype=torch.bool)
    visible[0, ..., 1000:] = False
    k[:, :, 1050], v[0, :, 1099] = math.nan, math.inf
    out, _ = fused(q, k, v, scheduled(from_visible(visible, 128)), scale=0.3)
    expected = reference(q, k, v, visible, scale=0.3)[0]
    assert expected[1].isnan().all() and expected[0].isfinite().all()
    torch.testing.assert_close(out, expected, equal_nan=True, atol=2e-5, rtol=2e-5)


def test_gradients_and_dropout_are_those_of_the_whole(monkeypatch):
    sources = [x.requires_grad_() for x in inputs(1, (2, 1), 2)]
    schedule, results = scheduled(from_visible(torch.ones(1, 1, 2, KEYS, dtype=torch.bool), 128)), []
    for processors in (8, 0):
        monkeypatch.setattr(passes, "multiprocessors", lambda device, count=processors: count)
        assert (passes.split_over(*sources[:2], schedule) > 1) == (processors > 0)
        torch.manual_seed(0)
        out, _ = fused(*sources, schedule, scale=0.3, dropout_p=0.2)
        results.append([out, *torch.autograd.grad(out.sin().sum(), sources)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


def test_many_rows_are_not_split():
    q, k, _ = inputs(1, (2, 2), 65)
    assert passes.split_over(q, k, scheduled(from_visible(torch.ones(1, 1, 65, KEYS, dtype=torch.bool), 128))) == 1
