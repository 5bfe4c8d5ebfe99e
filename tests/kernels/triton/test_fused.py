"""The GPU kernel, interpreted on the processor, against attention written out in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.kernels.offsets import CodeTerm, Offsets, StoredTerm, code_scores
from maskzoo.kernels.reference import reference
from maskzoo.kernels.tiles import from_visible, unfolded
from maskzoo.kernels.triton.schedule import scheduled

fused = pytest.importorskip("maskzoo.kernels.triton.operator", reason="no Triton").fused

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def rule(name, queries, keys, batch=1, heads=1):
    """A rule as bool [batch, heads, queries, keys]."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    return {
        "full": lambda: torch.ones(queries, keys, dtype=torch.bool),
        "causal": lambda: i >= j,
        "window": lambda: (i >= j) & (i - j < 40),
        "documents": lambda: (i >= j) & (i // 50 == j // 50),
        "dense": lambda: torch.rand(batch, heads, queries, keys) > 0.4,
        "sparse": lambda: torch.rand(batch, heads, queries, keys) > 0.99,
        "nothing": lambda: torch.zeros(queries, keys, dtype=torch.bool),
    }[name]().expand(batch, heads, queries, keys)


def inputs(batch, heads, lengths, widths, dtype=torch.float32):
    """q, k, v for (H, Hkv), (Tq, Tk) and (D, Dv)."""
    shapes = [(heads[0], lengths[0], widths[0]), (heads[1], lengths[1], widths[0]), (heads[1], lengths[1], widths[1])]
    return [torch.randn(batch, *shape).to(dtype).requires_grad_() for shape in shapes]


def stored_term(index, tiles, heads):
    """A stored term from the index of every pair, int64 [Tq, Tk]."""
    size = tiles.size
    padded = torch.zeros(tiles.query_tiles * size, tiles.key_tiles * size, dtype=torch.int64)
    padded[: tiles.queries, : tiles.keys] = index
    cut = padded.unflatten(1, (-1, size)).unflatten(0, (-1, size)).transpose(1, 2)
    _, line, tile = unfolded(tiles.rows)
    small = torch.uint8 if index.max() < 256 else torch.int16
    each = cut[line % tiles.query_tiles, tile].to(small)
    return StoredTerm(each, torch.arange(len(line), dtype=torch.int32), torch.randn(heads, int(index.max()) + 1))


def assert_equals_reference(sources, visible, *, size=64, scale=0.3, softcap=None, code=None, index=None, dense=None):
    """Values, logarithms and all gradients; `code`: a pair of codes, `index`: of every pair."""
    tiles = from_visible(visible, size)
    heads, dtype = sources[0].shape[1], sources[0].dtype
    leaves, exact = list(sources), [x.detach().double().requires_grad_() for x in sources]
    terms, bias = {}, None
    if code is not None:
        spread = int((code[0].amax(1) - code[1].amin(1)).max()) + 1
        terms["code"] = CodeTerm(*code, torch.randn(heads, spread, requires_grad=True))
        table = terms["code"].table.detach().double().requires_grad_()
        leaves.append(terms["code"].table), exact.append(table)
        bias = code_scores(CodeTerm(*code, table))
    if index is not None:
        term = stored_term(index, tiles, heads)
        terms["stored"] = StoredTerm(term.index, term.place, term.table.requires_grad_())
        table = term.table.detach().double().requires_grad_()
        leaves.append(term.table), exact.append(table)
        bias = table[:, index] if bias is None else bias + table[:, index]
    if dense is not None:
        terms["dense"] = dense.requires_grad_()
        other = dense.detach().double().requires_grad_()
        leaves.append(dense), exact.append(other)
        bias = other if bias is None else bias + other
    expected, _, log = reference(*exact[:3], visible, bias, scale=scale, softcap=softcap)
    out, logsum = fused(*sources, scheduled(tiles), scale=scale, softcap=softcap, offsets=Offsets(**terms))
    assert out.dtype == dtype
    logsumexp = logsum * math.log(2)
    weight, other_weight = torch.randn_like(expected), torch.randn_like(log)
    sees = visible.any(-1).expand(log.shape) & log.isfinite()
    assert torch.equal(logsumexp.isfinite(), log.isfinite())
    wanted = torch.autograd.grad(
        [expected, log.where(sees, 0)], exact, [weight, other_weight], allow_unused=True, materialize_grads=True
    )
    got = torch.autograd.grad([out, logsumexp.where(sees, 0)], leaves, [weight.to(dtype), other_weight.float()])
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance, equal_nan=True)
    torch.testing.assert_close(logsumexp[sees].double(), log[sees], atol=1e-4, rtol=1e-4)
    for one, true in zip(got, wanted, strict=True):
        largest = max(1.0, float(true.abs().max()) if true.numel() else 0.0)
        torch.testing.assert_close(one.double() / largest, true / largest, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 257])
@pytest.mark.parametrize("name", ["full", "causal", "documents", "sparse"])
def test_every_rule_and_length(name, length):
    assert_equals_reference(inputs(1, (1, 1), (length, length), (16, 16)), rule(name, length, length), size=128)


@pytest.mark.parametrize("widths", [(1, 1), (24, 24), (43, 8), (48, 96), (80, 80), (96, 17), (128, 128), (256, 256)])
def test_every_width(widths):
    assert_equals_reference(inputs(1, (2, 1), (70, 90), widths), rule("dense", 70, 90), scale=widths[0] ** -0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    sources = inputs(1, (2, 1), (129, 129), (32, 16), dtype)
    code = torch.arange(129)[None] + 128, torch.arange(129)[None]
    assert_equals_reference(sources, rule("causal", 129, 129), size=128, scale=32**-0.5, code=code)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.tuples(st.integers(1, 140), st.integers(1, 140)),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (4, 1)]),
    batch=st.integers(1, 2),
    shared=st.tuples(st.booleans(), st.booleans()),
    density=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    softcap=st.sampled_from([None, 1.5]),
)
def test_whoever_shares_the_tiles(seed, lengths, heads, batch, shared, density, softcap):
    torch.manual_seed(seed)
    own = 1 if shared[0] else batch, 1 if shared[1] else heads[0]
    visible = torch.rand(*own, *lengths) < density
    assert_equals_reference(inputs(batch, heads, lengths, (16, 16)), visible, softcap=softcap)


POSITIONS = torch.arange(150)
CODES = {
    "positions": (POSITIONS[None] + 149, POSITIONS[None]),
    "documents": (POSITIONS[None] % 50 + 49, POSITIONS[None] % 50),
    "grid": (
        POSITIONS[None] // 15 * 29 + POSITIONS[None] % 15 + 280,
        POSITIONS[None] // 15 * 29 + POSITIONS[None] % 15,
    ),
    "by sequence": (torch.stack([POSITIONS, POSITIONS.flip(0)]) + 149, torch.stack([POSITIONS, POSITIONS.flip(0)])),
}


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_codes(name, softcap):
    batch = len(CODES[name][0])
    sources = inputs(batch, (2, 1), (150, 150), (16, 16))
    assert_equals_reference(sources, rule("causal", 150, 150), size=128, code=CODES[name], softcap=softcap)


@pytest.mark.parametrize("entries", [1, 7, 200, 300])
def test_stored_indices(entries):
    sources = inputs(2, (2, 2), (150, 140), (16, 16))
    index = torch.randint(0, entries, (150, 140))
    index[0, 0] = entries - 1
    assert_equals_reference(sources, rule("dense", 150, 140), size=64, index=index)


@pytest.mark.parametrize(
    "shape", [(2, 2, 90, 70), (1, 2, 90, 70), (2, 1, 90, 70), (1, 1, 1, 70), (1, 2, 90, 1), (1,) * 4]
)
def test_a_dense_bias_that_broadcasts(shape):
    sources = inputs(2, (2, 1), (90, 70), (16, 16))
    assert_equals_reference(sources, rule("dense", 90, 70), dense=torch.randn(shape))


def test_every_term_at_once():
    sources = inputs(2, (2, 1), (150, 150), (16, 16))
    index = torch.randint(0, 5, (150, 150))
    assert_equals_reference(
        sources, rule("window", 150, 150), code=CODES["positions"], index=index, dense=torch.randn(1, 2, 1, 150)
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["sparse", "full"])
def test_what_is_not_finite_is_felt_by_those_who_see_it(value, name):
    visible = rule(name, 140, 150, batch=2).clone()
    visible[..., 5, :] = False
    sources = inputs(2, (4, 2), (140, 150), (16, 8))
    with torch.no_grad():
        sources[0][0, 1, 4, 2] = sources[0][1, 0, 5, 3] = value
        sources[1][1, 1, 9, 0] = sources[2][0, 0, 149, 1] = value
    exact = [x.detach().double().requires_grad_() for x in sources]
    expected = reference(*exact, visible, scale=0.3)[0]
    out, logsum = fused(*sources, scheduled(from_visible(visible, 64)), scale=0.3)
    assert expected.isnan().any()
    torch.testing.assert_close(out.double(), expected, equal_nan=True, atol=2e-5, rtol=2e-5)
    assert torch.equal(logsum.isnan(), expected.isnan().any(-1))
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, exact, weight)
    for one, true in zip(torch.autograd.grad(out, sources, weight.float()), wanted, strict=True):
        torch.testing.assert_close(one.double(), true, atol=5e-5, rtol=5e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38, -3e38])
def test_hidden_garbage_changes_no_bit(value):
    """The end is padding: hidden from the rest, and seeing nothing. It changes no gradient of a table either."""
    visible = torch.zeros(1, 1, 150, 150, dtype=torch.bool)
    visible[..., :100, :100] = torch.ones(100, 100, dtype=torch.bool).tril()
    schedule, results = scheduled(from_visible(visible, 64)), []
    clean = [x.detach() for x in inputs(1, (2, 1), (150, 150), (16, 16))]
    table = torch.randn(2, 299, requires_grad=True)
    for filled in (0.0, value):
        sources = [x.clone() for x in clean]
        for x in sources:
            x[:, :, 100:] = filled
            x.requires_grad_()
        term = CodeTerm(*CODES["positions"], table)
        out, _ = fused(*sources, schedule, scale=0.3, offsets=Offsets(code=term))
        grads = torch.autograd.grad(out[:, :, :100].square().sum(), [*sources, table])
        results.append([out, *grads])
    for one, other in zip(*results, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


def test_gradients_of_rows_that_see_nothing_do_no_harm():
    visible = rule("dense", 70, 70).clone()
    visible[..., 3, :] = visible[..., 40:60, :] = False
    sources = inputs(1, (1, 1), (70, 70), (16, 16))
    out, _ = fused(*sources, scheduled(from_visible(visible, 64)), scale=0.3)
    empty = ~visible.any(-1)[0, 0]
    assert (out[:, :, empty] == 0).all()
    weight = torch.ones_like(out).masked_fill(empty[:, None], math.nan)
    dq, dk, dv = torch.autograd.grad(out, sources, weight)
    assert (dq[:, :, empty] == 0).all()
    assert all(x.isfinite().all() for x in (dq, dk, dv))


def test_any_strides():
    q, k, v = (x.detach() for x in inputs(2, (2, 2), (70, 70), (16, 16)))
    schedule = scheduled(from_visible(rule("causal", 70, 70), 64))
    expected, _ = fused(q, k, v, schedule, scale=0.3)
    lying = q.transpose(1, 2).contiguous().transpose(1, 2), k.mT.contiguous().mT, v[:, :, :1].expand(2, 2, 70, 16)
    out, _ = fused(lying[0], lying[1], v, schedule, scale=0.3)
    assert torch.equal(out, expected)
    assert out.stride() == lying[0].stride(), "the result lies as the queries do"
    expanded, _ = fused(q, k, lying[2], schedule, scale=0.3)
    torch.testing.assert_close(expanded, lying[2])


def test_equal_inputs_give_equal_bits():
    sources = inputs(2, (2, 1), (150, 150), (16, 16))
    table = torch.randn(2, 299, requires_grad=True)
    schedule, term = scheduled(from_visible(rule("causal", 150, 150), 64)), CodeTerm(*CODES["positions"], table)
    results = []
    for _ in range(2):
        out, _ = fused(*sources, schedule, scale=0.3, offsets=Offsets(code=term))
        results.append([out, *torch.autograd.grad(out.sin().sum(), [*sources, table])])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (0, 3)])
def test_some_of_the_gradients_are_those_of_all(wanted):
    sources = [*inputs(1, (2, 1), (100, 100), (16, 16)), torch.randn(2, 199, requires_grad=True)]
    schedule = scheduled(from_visible(rule("causal", 100, 100), 64))
    code = torch.arange(100)[None] + 99, torch.arange(100)[None]

    def run(q, k, v, table):
        return fused(q, k, v, schedule, scale=0.3, offsets=Offsets(code=CodeTerm(*code, table)))[0].sin().sum()

    every = torch.autograd.grad(run(*sources), sources)
    some = [x if i in wanted else x.detach() for i, x in enumerate(sources)]
    for one, i in zip(torch.autograd.grad(run(*some), [some[i] for i in wanted]), wanted, strict=True):
        torch.testing.assert_close(one, every[i])


def test_dropout_keeps_its_share_and_visibility_and_is_the_same_backward():
    q, k = torch.zeros(1, 2, 128, 16), torch.zeros(1, 2, 128, 16)
    v = torch.eye(128)[None, None].expand(1, 2, 128, 128).clone().requires_grad_()
    visible = rule("causal", 128, 128)
    schedule = scheduled(from_visible(visible, 128))
    torch.manual_seed(1)
    out, _ = fused(q, k, v, schedule, scale=1.0, dropout_p=0.3)
    kept = out.detach() != 0
    assert not kept[(~visible).expand_as(kept)].any()
    seen = visible.sum() * 2
    assert kept.sum() / seen == pytest.approx(0.7, abs=0.015)
    torch.testing.assert_close(out.detach()[kept], (1 / visible.sum(-1, keepdim=True) / 0.7).expand_as(out)[kept])
    assert not torch.equal(kept[0, 0], kept[0, 1])
    by_row = kept[0, 0, -64:, :64].float().mean(1)
    assert by_row.min() > 0.35 and by_row.max() < 1.0
    # The result is linear in v: its gradient is the weights that were used.
    (dv,) = torch.autograd.grad(out, v, torch.ones_like(out))
    torch.testing.assert_close(dv, out.detach().mT.sum(-1, keepdim=True).expand_as(dv))
    torch.manual_seed(1)
    assert torch.equal(fused(q, k, v, schedule, scale=1.0, dropout_p=0.3)[0], out)
    assert not torch.equal(fused(q, k, v, schedule, scale=1.0, dropout_p=0.3)[0], out)


def test_dropout_has_the_gradients_of_what_it_kept():
    sources = [x.detach() for x in inputs(1, (1, 1), (20, 30), (16, 16))]
    visible = rule("dense", 20, 30)
    schedule = scheduled(from_visible(visible, 64))
    torch.manual_seed(3)
    kept = fused(torch.zeros(1, 1, 20, 16), torch.zeros(1, 1, 30, 16), torch.eye(30)[None, None], schedule, scale=1.0,
                 dropout_p=0.4)[0] != 0  # fmt: skip
    q, k, v = (x.double().requires_grad_() for x in sources)
    weights = torch.softmax((q @ k.mT * 0.3).masked_fill(~visible, -torch.inf), -1)
    expected = (weights * kept / 0.6) @ v
    mine = [x.requires_grad_() for x in sources]
    torch.manual_seed(3)
    out, _ = fused(*mine, schedule, scale=0.3, dropout_p=0.4)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (q, k, v), weight)
    for one, true in zip(torch.autograd.grad(out, mine, weight.float()), wanted, strict=True):
        torch.testing.assert_close(one.double(), true, atol=2e-5, rtol=2e-5)


def test_the_operator_keeps_its_contract():
    q, k, v = inputs(1, (2, 1), (40, 40), (16, 16))
    tiles = from_visible(rule("causal", 40, 40), 64)
    term = stored_term(torch.randint(0, 4, (40, 40)), tiles, 2)
    code = torch.arange(40)[None] + 39, torch.arange(40)[None], torch.randn(2, 79, requires_grad=True)
    arguments = (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, scheduled(tiles).as_list(), *code)
    arguments = (*arguments, term.index, term.place, term.table.requires_grad_(), torch.randn(1, 2, 1, 40))
    results = torch.library.opcheck(torch.ops.maskzoo.triton.default, (*arguments, 0.3, 2.0, 0.0, None))
    assert set(results.values()) == {"SUCCESS"}


def test_compiles_in_one_piece():
    sources = inputs(1, (2, 1), (40, 40), (16, 16))
    schedule = scheduled(from_visible(rule("causal", 40, 40), 64))

    def step(q, k, v):
        return fused(q * 2, k, v, schedule, scale=0.3)[0] + 1

    compiled = torch.compile(step, fullgraph=True)
    got = torch.autograd.grad(compiled(*sources).sin().sum(), sources)
    wanted = torch.autograd.grad(step(*sources).sin().sum(), sources)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_no_second_derivative():
    sources = inputs(1, (1, 1), (8, 8), (16, 16))
    out, _ = fused(*sources, scheduled(from_visible(rule("causal", 8, 8), 64)), scale=0.3)
    with pytest.raises(RuntimeError, match="backend='reference'"):
        torch.autograd.grad(out.sum(), sources, create_graph=True)


@pytest.mark.parametrize(
    ("dtype", "width", "message"),
    [(torch.float64, 16, "takes bfloat16, float16 and float32"), (torch.float32, 257, "at most 256 numbers, got 257")],
)
def test_what_it_cannot_take(dtype, width, message):
    sources = inputs(1, (1, 1), (8, 8), (width, width), dtype)
    with pytest.raises(ValueError, match=message):
        fused(*sources, scheduled(from_visible(rule("causal", 8, 8), 64)), scale=0.3)


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="runs on GPUs, and the inputs are on cpu"):
        fused(*inputs(1, (1, 1), (8, 8), (16, 16)), scheduled(from_visible(rule("causal", 8, 8), 64)), scale=0.3)
