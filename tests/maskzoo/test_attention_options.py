"""Softcap and the logarithm of the sums: one meaning on every backend that has them, refused by the other one."""

import math

import pytest
import torch

import maskzoo as mz

ABLE = ["auto", "reference", "tiled", "edges", "triton"]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def inputs(length=40, heads=4, kv_heads=2, width=8, dtype=torch.float32):
    shapes = [(2, heads, length, width), (2, kv_heads, length, width), (2, kv_heads, length, width)]
    return [torch.randn(*shape, dtype=dtype).requires_grad_() for shape in shapes]


def written_out(q, k, v, plan, softcap, scale=0.5):
    """Attention by its definition, and the logarithm of the sums."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if plan.scores() is not None:
        scores = scores + plan.scores()
    scores = scores.masked_fill(~plan.visible, -math.inf)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


@pytest.mark.parametrize("backend", ABLE)
@pytest.mark.parametrize("bias", [None, "relative", "segment_pair(2) + alibi"])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_values_and_gradients(backend, bias, softcap):
    at = mz.Positions.packed([[25, 15], [40]]).with_fields(kind=torch.randint(0, 2, (2, 40)))
    plan = mz.plan("causal & window(9)", at, bias=bias, heads=4)
    tables = [] if plan.bias is None else [*plan.bias.parameters()]
    for table in tables:
        torch.nn.init.normal_(table)
    sources = [*inputs(), *tables]
    out, log = mz.attend(*sources[:3], plan, scale=0.5, softcap=softcap, backend=backend, return_logsumexp=True)
    expected, expected_log = written_out(*sources[:3], plan, softcap)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(log, expected_log, atol=1e-5, rtol=1e-5)
    weights = torch.randn_like(out), torch.randn_like(log)
    got = torch.autograd.grad([out, log], sources, weights)
    for one, true in zip(got, torch.autograd.grad([expected, expected_log], sources, weights), strict=True):
        torch.testing.assert_close(one, true, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("backend", ABLE)
def test_parts_over_different_keys_are_put_together(backend):
    q, k, v = inputs()
    at = mz.Positions.tokens(40)
    whole = mz.attend(q, k, v, mz.plan("causal", at))
    parts = [
        mz.attend(q, k, v, mz.plan(rule, at), backend=backend, return_logsumexp=True)
        for rule in ("causal & window(7)", "causal & ~window(7)")
    ]
    total = torch.logaddexp(parts[0][1], parts[1][1])
    joined = sum(out * (log - total).exp()[..., None] for out, log in parts)
    torch.testing.assert_close(joined, whole, atol=1e-5, rtol=1e-5)
    assert (parts[1][1][:, :, :7] == -math.inf).all(), "rows that see nothing"
    for one, true in zip(
        torch.autograd.grad(joined.sin().sum(), (q, k, v)),
        torch.autograd.grad(whole.sin().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(one, true, atol=2e-5, rtol=2e-5)


def test_weights_and_logarithms_together():
    q, k, v = inputs()
    plan = mz.plan("causal", mz.Positions.tokens(40))
    out, weights, log = mz.attend(q, k, v, plan, softcap=2.0, return_weights=True, return_logsumexp=True)
    assert out.shape == q.shape and weights.shape == (2, 4, 40, 40) and log.shape == (2, 4, 40)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 40))


def test_float64_and_wide_heads_leave_the_gpu_kernel():
    plan = mz.plan("causal", mz.Positions.tokens(40))
    object.__setattr__(plan, "kernel", "triton")
    for sources in (inputs(dtype=torch.float64), inputs(width=300)):
        out = mz.attend(*sources, plan)
        torch.testing.assert_close(out, mz.attend(*sources, plan, backend="reference"), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="takes bfloat16, float16 and float32"):
        mz.attend(*inputs(dtype=torch.float64), plan, backend="triton")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softcap": 0.0}, "softcap must be above 0 and finite, or None for none; was 0.0"),
        ({"softcap": math.inf}, "softcap must be above 0"),
        ({"softcap": 1.0, "backend": "dense"}, "backend='dense' cannot cap the scores"),
        ({"return_logsumexp": True, "backend": "dense"}, "backend='dense' cannot return the logarithm of the sums"),
        ({"backend": "trition"}, "Did you mean 'triton'"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        mz.attend(*inputs(), mz.plan("causal", mz.Positions.tokens(40)), **options)


def test_a_plan_for_a_gpu_names_the_gpu_kernel(monkeypatch):
    """What is decided for a device with Triton, without one."""
    for module in ("maskzoo.costs", "maskzoo.planning.choosing"):
        monkeypatch.setattr(f"{module}.is_at_hand", lambda device: True)
    at = mz.Positions.packed([150, 250])
    plan = mz.plan("causal & window(20)", at)
    assert plan.kernel == "triton" and " ms dense" in plan.reason
    assert "triton" in plan.explain()
    assert mz.plan("causal", at, bias="relative", heads=2).kernel == "triton"
    q, k, v = (torch.randn(1, 2, 400, 8) for _ in range(3))
    torch.testing.assert_close(
        mz.attend(q, k, v, plan), mz.attend(q, k, v, plan, backend="reference"), atol=1e-5, rtol=1e-5
    )


def test_the_gpu_kernel_compiles_into_one_graph(monkeypatch):
    for module in ("maskzoo.costs", "maskzoo.planning.choosing"):
        monkeypatch.setattr(f"{module}.is_at_hand", lambda device: True)
    plan = mz.plan("causal & window(20)", mz.Positions.packed([150, 150]), bias="relative", heads=2)
    assert plan.kernel == "triton"
    compiled = torch.compile(lambda q, k, v: mz.attend(q * 2, k, v, plan) + 1, fullgraph=True)
    q, k, v = (torch.randn(1, 2, 300, 16, requires_grad=True) for _ in range(3))
    expected = mz.attend(q * 2, k, v, plan, backend="reference") + 1
    got = compiled(q, k, v)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    for one, true in zip(*(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (got, expected)), strict=True):
        torch.testing.assert_close(one, true, atol=2e-5, rtol=2e-5)
