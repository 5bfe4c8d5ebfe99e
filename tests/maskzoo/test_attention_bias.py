"""Bias through `plan` and `attend`: one meaning on every backend, with the gradient of every table."""

from functools import reduce
from operator import add

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

import maskzoo as mz
from maskzoo.transformer import LanguageModel, TransformerConfig

FAST = ["tiled", "edges", "dense"]
HEADS = 4


class Gap(mz.Bias):
    """A stored index: the difference of two positions, modulo 5, and which of them comes first."""

    def __init__(self, *, heads):
        super().__init__(heads)
        self.weight = torch.nn.Parameter(torch.zeros(heads, 8))

    def index(self, q, k):
        return (q.index - k.index).abs() % 5 + 3 * (k.index > q.index)

    def table(self, entries):
        return self.weight


PROVIDERS = [
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
    "gap",
    "table",
    "dense",
]
SUMS = [
    "alibi + 0.5 * relative(8, 20)",
    "relative(8, 20) + grid_offset(4, 3) + segment_pair(3)",
    "2 * gap + relative(8, 20)",
    "table + gap + -0.5 * alibi + offset(6, 2)",
    "dense + table + clipped_relative(5)",
]


def made(text, batch, queries, keys, dtype=torch.float64):
    """A sum of biases, and all that it learns, drawn at random."""
    terms, learned = [], []
    for term in text.split(" + "):
        factor, _, name = term.rpartition(" * ")
        if name == "gap":
            bias = Gap(heads=HEADS)
        elif name == "table":
            bias = mz.biases.Table(torch.randint(0, 300, (batch, queries, keys)), heads=HEADS)
        elif name == "dense":
            learned.append(torch.randn(HEADS, 1, keys, dtype=dtype, requires_grad=True))
            bias = mz.biases.Dense(learned[-1], heads=HEADS)
        else:
            bias = mz.biases.parse(name, heads=HEADS)
        terms.append(float(factor or 1) * bias)
    whole = reduce(add, terms).to(dtype)
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter)
    return whole, [*learned, *whole.parameters()]


def with_fields(at):
    """Positions with every field that a provider reads."""
    names = ("row", "col", "time", "kind")
    return at.with_fields(**{name: torch.randint(0, 3, (at.batch, at.length)) for name in names})


def inputs(batch, queries, keys=None, kv_heads=HEADS // 2, width=8, dtype=torch.float64):
    shapes = [(batch, HEADS, queries, width)] + [(batch, kv_heads, keys or queries, width)] * 2
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def results(backend, given, plan, wanted, weight):
    """The output and the gradients of all that is wanted."""
    out = mz.attend(*given, plan, backend=backend)
    return [out, *torch.autograd.grad((out * weight).sum(), wanted)]


def assert_all_agree(given, plan, wanted, backends=FAST, **tolerance):
    weight = torch.randn(*given[0].shape[:3], given[2].shape[3], dtype=given[0].dtype)
    expected = results("reference", given, plan, wanted, weight)
    assert all(each.abs().max() > 1e-4 for each in expected)
    for backend in backends:
        for got, right in zip(results(backend, given, plan, wanted, weight), expected, strict=True):
            torch.testing.assert_close(got, right, **tolerance)


@pytest.mark.parametrize("text", PROVIDERS + SUMS)
def test_every_backend_gives_the_references_output_and_gradients(text):
    """A packed row and a padded one, and query heads that share keys."""
    at = with_fields(mz.Positions.packed([[30, 61], [85]], padded_to=93))
    bias, learned = made(text, 2, 93, 93)
    given = inputs(2, 93)
    plan = mz.plan("causal", at, bias=bias)
    assert plan.kernel == "dense"  # which auto takes where there are few pairs
    assert_all_agree(given, plan, [*given, *learned])


@pytest.mark.parametrize("text", PROVIDERS[1:3] + SUMS)
def test_only_the_bias_is_trained(text):
    at = with_fields(mz.Positions.packed([40, 33]))
    bias, learned = made(text, 1, 73, 73)
    given = [x.detach() for x in inputs(1, 73)]
    assert_all_agree(given, mz.plan("full", at, bias=bias), learned)
    plan = mz.plan("full", at, bias=bias.requires_grad_(False))
    assert mz.attend(*given, plan, backend="tiled").requires_grad == ("dense" in text)  # which is no parameter


@settings(max_examples=40, deadline=None)
@given(
    text=st.sampled_from(PROVIDERS + SUMS),
    mask=st.sampled_from(
        [
            "causal",
            "full",
            "window(5)",
            "causal & ~window(3)",
            "stack(causal, full, window(9), block(7))",
            "random(0.1)",
        ]
    ),
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=3), min_size=1, max_size=2),
    kv_heads=st.sampled_from([1, 2, 4]),
    queries=st.sampled_from([None, 1, 5]),
)
def test_backends_agree_whatever_the_rule_and_the_positions(text, mask, lengths, kv_heads, queries):
    at = with_fields(mz.Positions.packed(lengths, padded_to=max(map(sum, lengths)) + 2))
    asked = at if queries is None else at.last(min(queries + 2, at.length))
    bias, learned = made(text, at.batch, asked.length, at.length)
    given = inputs(at.batch, asked.length, at.length, kv_heads)
    plan = mz.plan(mask, asked, k_at=at, bias=bias)
    weight = torch.randn(given[0].shape, dtype=torch.float64)
    expected = results("reference", given, plan, [*given, *learned], weight)
    for backend in FAST:
        for got, right in zip(results(backend, given, plan, [*given, *learned], weight), expected, strict=True):
            torch.testing.assert_close(got, right)


@pytest.mark.parametrize("text", ["relative(8, 20) + alibi", "gap", "dense + table"])
def test_long_rows_of_tiles(text):
    at = with_fields(mz.Positions.packed([700, 324]))
    bias, learned = made(text, 1, 1024, 1024)
    given = inputs(1, 1024)
    plan = mz.plan("causal & window(100)", at, bias=bias)
    assert plan.kernel == "tiled"
    assert_all_agree(given, plan, [*given, *learned], ["auto", "edges"])


@pytest.mark.parametrize("text", ["relative(8, 20)", "alibi + gap", "table + dense"])
def test_half_precision(text):
    at = with_fields(mz.Positions.tokens([93, 70]))
    bias, learned = made(text, 2, 93, 93, torch.float32)
    given = inputs(2, 93, dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in given]
    weight = torch.randn(given[0].shape).bfloat16()
    plan = mz.plan("causal & window(40)", at, bias=bias)
    expected = results("reference", exact, plan, [*exact, *learned], weight)
    for backend in FAST:
        for got, right in zip(results(backend, given, plan, [*given, *learned], weight), expected, strict=True):
            assert got.dtype == (torch.float32 if any(got.shape == x.shape for x in learned) else torch.bfloat16)
            assert (got.double() - right).abs().max() < 0.03 * right.abs().max()


@pytest.mark.parametrize("text", ["alibi + gap", "table", "dense + relative(8, 20)"])
def test_between_two_sequences(text):
    at, k_at = mz.Positions.tokens([70, 66]), mz.Positions.tokens([43, 31])
    bias, learned = made(text, 2, 70, 43)
    given = inputs(2, 70, 43)
    assert_all_agree(given, mz.plan("cross", at, k_at=k_at, bias=bias), [*given, *learned])


@pytest.mark.parametrize("backend", [*FAST, "auto"])
@pytest.mark.parametrize("text", ["alibi", "relative(8, 20) + gap", "segment_pair(3) + grid_offset(4, 3)"])
def test_the_last_rows_against_a_cache_are_those_of_the_whole(backend, text):
    at = with_fields(mz.Positions.tokens([130, 101], side="left"))
    bias, _ = made(text, 2, 130, 130)
    q, k, v = inputs(2, 130)
    whole = mz.attend(q, k, v, mz.plan("causal & window(50)", at, bias=bias), backend=backend)
    for last in (1, 7):
        plan = mz.plan("causal & window(50)", at.last(last), k_at=at, bias=bias)
        torch.testing.assert_close(mz.attend(q[:, :, -last:], k, v, plan, backend=backend), whole[:, :, -last:])


@pytest.mark.parametrize("backend", FAST)
def test_dropout_drops_visible_weights_and_nothing_else(backend):
    length, share = 70, 0.4
    bias, learned = made("relative(8, 20) + gap", 1, length, length)
    plan = mz.plan("causal & window(30)", mz.Positions.tokens(length), bias=bias)
    q, k, _ = inputs(1, length, kv_heads=HEADS)
    values = torch.eye(length, dtype=torch.float64).expand(1, HEADS, -1, -1)  # the output is then the weights
    weights = mz.attend(q, k, values, plan, return_weights=True)[1]
    kept, total, rounds = 0, torch.zeros_like(weights), 60
    for seed in range(rounds):
        torch.manual_seed(seed)
        out = mz.attend(q, k, values, plan, dropout_p=share, backend=backend)
        assert (out[~plan.visible.expand_as(out)] == 0).all()
        torch.testing.assert_close(out[out != 0], weights[out != 0] / (1 - share))
        kept, total = kept + int((out != 0).sum()), total + out.detach()
    torch.manual_seed(rounds - 1)
    assert torch.equal(mz.attend(q, k, values, plan, dropout_p=share, backend=backend), out)
    assert kept / rounds / int(plan.visible.sum()) / HEADS == pytest.approx(1 - share, abs=0.01)
    torch.testing.assert_close(total.sum(1) / rounds, weights.sum(1), atol=0.5, rtol=0)
    # A weight that was dropped teaches the table nothing through the values that it would have multiplied.
    weight = torch.randn_like(out)
    grads = torch.autograd.grad((out * weight).sum(), learned)
    mask = (out != 0).double() / (1 - share)
    again = torch.autograd.grad((weights * mask * weight).sum(), learned)
    for got, right in zip(grads, again, strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("backend", FAST)
def test_far_below_what_a_float_holds(backend):  # case B5
    bias = mz.biases.ClippedRelative(3, heads=HEADS)
    torch.nn.init.constant_(bias.weight, -100.0)
    with torch.no_grad():
        bias.weight[:, 3] = -220.0  # itself
    given = inputs(1, 70, dtype=torch.float32)
    plan = mz.plan("causal", mz.Positions.tokens(70), bias=bias)
    out = mz.attend(*given, plan, backend=backend)
    grads = torch.autograd.grad(out.square().sum(), [*given, bias.weight])
    assert out.isfinite().all() and all(grad.isfinite().all() for grad in grads)
    assert (out[:, :, 0] != 0).all()  # the first query sees itself alone, at exp(-220)
    torch.testing.assert_close(out, mz.attend(*given, plan, backend="reference"))


@pytest.mark.parametrize("backend", FAST)
def test_no_finite_bias_lifts_a_mask(backend):  # case B6
    length = 70
    q, k, v = inputs(1, length, kv_heads=HEADS, dtype=torch.float32)
    visible = torch.rand(length, length).tril() > 0.3
    visible[:, 0] = True
    other = (torch.rand(length, length) > 0.2).logical_or(torch.eye(length, dtype=torch.bool))
    other[:, 0] = True
    at = mz.Positions.tokens(length)
    rule = mz.masks.Dense(visible) & mz.masks.Dense(other)
    # Visible pairs score −2e4, hidden ones −1e4: a bias in place of a mask would show the hidden.
    plane = torch.where(visible & other, -2e4, -1e4)
    values = torch.eye(length).expand(1, HEADS, -1, -1)
    weights = mz.attend(q, k, values, mz.plan(rule, at, bias=plane, heads=HEADS), backend=backend)
    assert (weights[:, :, ~(visible & other)] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, HEADS, length))
    # Two planes of the lowest float in hidden pairs would add up to −inf: nothing of them is left either.
    lowest = [torch.zeros(length, length).masked_fill(~rule, torch.finfo().min) for rule in (visible, other)]
    planes = reduce(add, (mz.biases.Dense(plane, heads=HEADS) for plane in lowest))
    out = mz.attend(q, k, v, mz.plan(rule, at, bias=planes), backend=backend)
    torch.testing.assert_close(out, mz.attend(q, k, v, mz.plan(rule, at), backend="reference"))
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), (q, k, v)))


class Steep(mz.biases.OffsetBias):
    """A slope that is a number without dimensions."""

    def __init__(self):
        super().__init__(HEADS)
        self.scale = torch.nn.Parameter(torch.tensor(0.3))

    def code(self, at):
        return at.index

    def table(self, differences):
        return (-self.scale * differences.abs()).expand(HEADS, -1)


class Layer(Gap):
    """Offsets that a linear layer makes of features."""

    def __init__(self):
        super().__init__(heads=HEADS)
        del self.weight
        self.linear = torch.nn.Linear(5, HEADS, bias=False)

    def table(self, entries):
        return self.linear(torch.linspace(-1, 1, 40, dtype=self.linear.weight.dtype).view(8, 5)).T


@pytest.mark.parametrize("make", [Steep, Layer, lambda: mz.biases.GridOffset(7, 7, heads=HEADS)])
def test_whatever_makes_the_table_is_trained(make):  # case B9
    bias = make().double()
    for parameter in bias.parameters():
        if parameter.dim():
            torch.nn.init.normal_(parameter)
    given = inputs(2, 98)
    at = mz.Positions.grid(14, 7)
    assert_all_agree(given, mz.plan("causal", at, bias=bias), [*given, *bias.parameters()])


@pytest.mark.parametrize("backend", ["tiled", "edges"])
def test_autocast_leaves_tables_as_they_are(backend):
    bias = Layer() + mz.biases.Relative(8, heads=HEADS)
    torch.nn.init.normal_(bias.terms[1].weight)
    q, k, v = inputs(1, 93, dtype=torch.bfloat16)
    weight = torch.randn(q.shape).bfloat16()
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            plan = mz.plan("causal", mz.Positions.tokens(93), bias=bias)
            out = mz.attend(q, k, v, plan, backend=backend)
            assert plan.scores().dtype == torch.float32
        found.append([out, *torch.autograd.grad((out * weight).sum(), list(bias.parameters()))])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_learned_bias_compiles_into_one_graph():
    bias, learned = made("relative(8, 20) + 0.5 * gap", 1, 0, 0, torch.float32)
    attend = torch.compile(lambda q, k, v, plan: mz.attend(q, k, v, plan), fullgraph=True, backend="aot_eager")
    for lengths in ([300, 212], [512]):
        plan = mz.plan("causal & window(200)", mz.Positions.packed(lengths), bias=bias)
        assert plan.kernel == "tiled"
        given = inputs(1, 512, dtype=torch.float32)
        out, expected = attend(*given, plan), mz.attend(*given, plan)
        torch.testing.assert_close(out, expected)
        wanted = [*given, *learned]
        grads = [torch.autograd.grad(each.square().sum(), wanted) for each in (out, expected)]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("shape", [(16, 1), (HEADS, 1, 43), (1, 43), (3, 1, 1, 1), (3, HEADS, 16, 43), (43,), ()])
def test_a_tensor_broadcasts_and_its_gradient_is_summed(backend, shape):  # case B10
    tensor = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    given = inputs(3, 16, 43)
    at, k_at = mz.Positions.tokens(16), mz.Positions.tokens(43)
    weight = torch.randn(given[0].shape, dtype=torch.float64)
    plan = mz.plan("cross", at, k_at=k_at, bias=tensor, heads=HEADS)
    got = results(backend, given, plan, [*given, tensor], weight)
    expected = results("reference", given, plan, [*given, tensor], weight)
    assert got[-1].shape == shape
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", FAST)
def test_a_graph_in_a_batch_is_the_graph_alone(backend):  # case B16
    nodes = [37, 93]
    relation = torch.randint(0, 12, (2, 93, 93))
    relation[0, 37:], relation[0, :, 37:] = 0, 0
    weight = torch.randn(HEADS, 12, dtype=torch.float64)

    def attended(relation, at, given):
        bias = mz.biases.Table(relation, entries=12, heads=HEADS).double()
        with torch.no_grad():
            bias.weight.copy_(weight)
        return mz.attend(*given, mz.plan("full", at, bias=bias), backend=backend)

    given = inputs(2, 93)
    both = attended(relation, mz.Positions.tokens(nodes), given)
    alone = attended(relation[0, :37, :37], mz.Positions.tokens(37), [x[:1, :, :37] for x in given])
    torch.testing.assert_close(both[:1, :, :37], alone)
    assert (both[0, :, 37:] == 0).all()
    changed = relation.clone()
    changed[1] = torch.randint(0, 12, (93, 93))
    with torch.no_grad():
        for x in given:
            x[1].normal_()
    other = attended(changed, mz.Positions.tokens(nodes), given)
    assert torch.equal(other[0], both[0]) and not torch.allclose(other[1], both[1])


@pytest.mark.parametrize("backend", ["tiled", "edges"])
@pytest.mark.parametrize("text", ["relative(8, 20) + alibi", "gap", "dense + table"])
def test_equal_inputs_give_equal_bits(backend, text):
    at = with_fields(mz.Positions.packed([200, 120]))
    bias, learned = made(text, 1, 320, 320, torch.float32)
    given = inputs(1, 320, dtype=torch.float32)
    weight = torch.randn(given[0].shape)
    threads, found = torch.get_num_threads(), []
    torch.set_num_threads(2)
    for _ in range(2):
        plan = mz.plan("causal & window(100)", at, bias=bias)
        found.append(results(backend, given, plan, [*given, *learned], weight))
    torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("mask", ["causal", "causal & window(256)"])
@pytest.mark.parametrize("text", ["relative + alibi", "distance(learned=True) + segment_pair(2) + offset(32)"])
def test_nothing_is_made_for_every_pair(mask, text):
    """Planning, forward and backward: the profiler also sees what a kernel's operator makes inside."""
    length, heads = 1024, 8
    at = mz.Positions.tokens(length).with_fields(kind=torch.arange(length) % 2)
    bias = mz.biases.parse(text, heads=heads)
    q, k, v = (torch.randn(1, heads, length, 8, requires_grad=True) for _ in range(3))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiled:
        plan = mz.plan(mask, at, bias=bias)
        mz.attend(q, k, v, plan, backend="tiled").square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in bias.parameters())
    events = profiled.profiler.kineto_results.events()
    seen = [
        (torch.Size(shape).numel(), dtype, event.name())
        for event in events
        for shape, dtype in zip(event.shapes(), event.dtypes(), strict=True)
        if shape and all(isinstance(size, int) for size in shape)
    ]
    bytes_of = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert len(seen) > 1000 and max(bytes_of) > q.nbytes
    one_byte = ("bool", "unsigned char", "signed char")
    assert [one for one in seen if one[0] >= length**2 and one[1] not in one_byte] == []
    assert max(one[0] for one in seen) < heads * length**2 and max(bytes_of) < heads * length**2


@pytest.mark.parametrize("text", ["relative(buckets=16) + alibi", "clipped_relative(20)"])
def test_a_language_model_trains_and_decodes_with_a_bias(text):
    config = TransformerConfig(layers=2, width=32, heads=4, context=512, position="none", bias_per_layer=True)
    model = LanguageModel(config, 17, bias=text)
    tokens = torch.randint(17, (1, 8)).repeat(2, 65)[:, :513]  # a phrase of eight, again and again
    assert model.plan(mz.Positions.tokens(512)).kernel == "tiled"
    tables = [p for name, p in model.named_parameters() if "bias" in name and name.endswith("weight") and p.dim() == 2]
    tables = [p for p in tables if p.shape[0] == config.heads]
    assert len(tables) == config.layers
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.02), []
    for _ in range(12):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1 and all(table.abs().max() > 0.02 for table in tables)
    model.eval()
    with torch.no_grad():
        cache = model.new_cache(2, 512)
        parts = tokens[:, :512].split([500, 1, 1, 10], dim=1)
        steps = torch.cat([model(part, cache=cache) for part in parts], dim=1)
        torch.testing.assert_close(steps, model(tokens[:, :512]), atol=1e-4, rtol=1e-4)
