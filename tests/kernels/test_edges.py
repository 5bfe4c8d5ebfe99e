import copy
import gc
import math

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from maskzoo.kernels import pairs as pair_lists
from maskzoo.kernels import segments, tiles
from maskzoo.kernels.edges import edges
from maskzoo.kernels.offsets import CodeTerm, ListedTerm, Offsets, code_scores
from maskzoo.kernels.pairs import Pairs
from maskzoo.kernels.reference import reference


def listed(visible):
    return pair_lists.from_tiles(tiles.from_visible(visible, 16))


def drawn(batch, heads, kv_heads, lengths, widths, dtype=torch.float64):
    shapes = ((heads, lengths[0], widths[0]), (kv_heads, lengths[1], widths[0]), (kv_heads, lengths[1], widths[1]))
    return [torch.randn(batch, *shape).to(dtype).requires_grad_() for shape in shapes]


def with_gradients(out, inputs):
    weight = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view_as(out).to(out.dtype)
    return [out, *torch.autograd.grad((out * weight).sum(), inputs)]


def assert_equals_reference(inputs, visible, tolerance, pairs=None):
    scale = inputs[0].shape[-1] ** -0.5
    got = with_gradients(edges(*inputs, pairs or listed(visible), scale=scale)[0], inputs)
    expected = with_gradients(reference(*inputs, visible, scale=scale)[0], inputs)
    for name, a, b in zip(("out", "dq", "dk", "dv"), got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 1025])
@pytest.mark.parametrize("density", [0.01, 0.3])
def test_equals_reference_at_all_lengths(length, density):
    visible = torch.rand(1, 1, length, length) < density
    assert_equals_reference(drawn(1, 2, 2, (length, length), (16, 16)), visible, 1e-12)


@pytest.mark.parametrize("rules", [(1, 1), (2, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_equals_reference_with_rules_by_sequence_and_head(rules, kv_heads):
    visible = torch.rand(*rules, 37, 51) < 0.2
    visible[:, :, 5] = False
    assert_equals_reference(drawn(2, 4, kv_heads, (37, 51), (8, 12)), visible, 1e-12)


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_parts_are_put_together(monkeypatch, kv_heads):
    monkeypatch.setattr(segments, "PAIRS_AT_ONCE", 100)
    visible = torch.rand(2, 1, 60, 40) < 0.2
    visible[0, 0, 7] = True
    pairs = listed(visible)
    widest = max(len(part.key) for part in segments.parts(pairs, 2, 4))
    assert widest <= 100 and len(list(segments.parts(pairs, 2, 4))) >= 8 * 4
    assert_equals_reference(drawn(2, 4, kv_heads, (60, 40), (8, 8)), visible, 1e-12)


def test_heads_that_share_a_rule_out_of_order():
    own = torch.rand(1, 2, 20, 30) < 0.4
    group = torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0]])
    pairs = Pairs(20, 30, group, listed(own).start, listed(own).key)
    assert_equals_reference(drawn(2, 4, 2, (20, 30), (8, 8)), own[0, group], 1e-12, pairs)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 4e-2), (torch.float16, 1e-2)])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_equals_reference_in_each_dtype(dtype, tolerance, kv_heads):
    visible = torch.rand(1, 1, 129, 129) < 0.1
    inputs = drawn(2, 4, kv_heads, (129, 129), (32, 24), dtype)
    assert edges(*inputs, listed(visible), scale=1.0)[0].dtype == dtype
    assert_equals_reference(inputs, visible, tolerance)


def test_equals_reference_without_mkl(monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    visible = torch.rand(2, 1, 30, 40) < 0.2
    assert_equals_reference(drawn(2, 4, 2, (30, 40), (8, 8)), visible, 1e-12)


def test_strides_do_not_matter():
    visible = torch.rand(1, 1, 33, 33) < 0.3
    inputs = [torch.randn(2, 33, 4, 8, dtype=torch.float64).transpose(1, 2).requires_grad_() for _ in range(3)]
    assert_equals_reference(inputs, visible, 1e-12)


def test_gradients_in_float64():
    visible = torch.rand(2, 1, 5, 6) < 0.5
    visible[:, :, 2] = False
    pairs = listed(visible)
    inputs = drawn(2, 2, 1, (5, 6), (3, 4))
    assert torch.autograd.gradcheck(lambda *x: edges(*x, pairs, scale=0.5)[0], inputs)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_only_gradients_that_are_needed(wanted):
    visible = torch.rand(1, 1, 20, 20) < 0.3
    inputs = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(drawn(1, 2, 2, (20, 20), (8, 8)))]
    edges(*inputs, listed(visible), scale=0.3)[0].square().sum().backward()
    got = [x.grad for x in inputs]
    expected = [x.detach().requires_grad_() for x in inputs]
    reference(*expected, visible, scale=0.3)[0].square().sum().backward()
    for i, (mine, other) in enumerate(zip(got, expected, strict=True)):
        assert (mine is None) == (i not in wanted)
        if mine is not None:
            torch.testing.assert_close(mine, other.grad)


def test_empty_rows_are_exact_zeros():  # case B1, B2
    visible = torch.ones(2, 1, 8, 8, dtype=torch.bool).tril()
    visible[0, :, 4:] = False
    visible[1] = False
    inputs = drawn(2, 2, 2, (8, 8), (4, 4), torch.float32)
    out, *gradients = with_gradients(edges(*inputs, listed(visible), scale=0.5)[0], inputs)
    assert (out[0, :, 4:] == 0).all() and (out[1] == 0).all()
    assert all(x.isfinite().all() and (x[1] == 0).all() for x in gradients)
    assert (gradients[0][0, :, 4:] == 0).all()
    assert_equals_reference(inputs, visible, 1e-5)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_is_not_finite_stays_where_it_is_visible(poison, dtype, which):  # case B3
    visible = torch.rand(2, 1, 20, 20) < 0.3
    inputs = [x.detach() for x in drawn(2, 2, 2, (20, 20), (8, 8), dtype)]
    inputs[which][0, 1, 7, 3] = poison
    inputs = [x.requires_grad_() for x in inputs]
    got = with_gradients(edges(*inputs, listed(visible), scale=0.3)[0], inputs)
    expected = with_gradients(reference(*inputs, visible, scale=0.3)[0], inputs)
    assert got[0].isnan().any() and not got[0].isnan().all()
    assert all(gradient.isfinite().all() for gradient in got[1:])
    for a, b in zip(got, expected, strict=True):
        tolerance = 5e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(a, b, equal_nan=True, atol=tolerance, rtol=tolerance)


def test_a_bad_key_that_nobody_sees_is_not_felt():
    visible = torch.rand(1, 1, 20, 20) < 0.5
    visible[..., 7] = False
    inputs = [x.detach() for x in drawn(1, 2, 2, (20, 20), (8, 8))]
    inputs[1][:, :, 7], inputs[2][:, :, 7] = math.nan, math.inf
    inputs = [x.requires_grad_() for x in inputs]
    results = with_gradients(edges(*inputs, listed(visible), scale=0.3)[0], inputs)
    assert all(x.isfinite().all() for x in results)
    assert (results[2][:, :, 7] == 0).all() and (results[3][:, :, 7] == 0).all()


def test_scores_of_any_size_keep_finite_gradients():  # cases B5, B6
    q, k, v = drawn(1, 1, 1, (6, 6), (4, 4), torch.float32)
    visible = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    inputs = [(q * 300).detach().requires_grad_(), (k * 300).detach().requires_grad_(), v]
    assert_equals_reference(inputs, visible, 1e-2)
    assert all(x.isfinite().all() for x in with_gradients(edges(*inputs, listed(visible), scale=1.0)[0], inputs))


def test_dropout_keeps_the_mask_and_the_mean():  # case B13
    q, k, _ = drawn(1, 1, 1, (8, 8), (4, 4), torch.float32)
    v = torch.eye(8)[None, None]
    pairs = listed(torch.ones(1, 1, 8, 8, dtype=torch.bool).tril())
    with torch.no_grad():
        samples = torch.stack([edges(q, k, v, pairs, scale=0.5, dropout_p=0.3)[0] for _ in range(600)])
        whole = edges(q, k, v, pairs, scale=0.5)[0]
    assert (samples.triu(1) == 0).all()
    assert (samples[:, 0, 0].tril() == 0).any()
    torch.testing.assert_close(samples.mean(0), whole, atol=0.08, rtol=0)


def test_dropout_has_the_gradient_of_what_it_drew(monkeypatch):
    monkeypatch.setattr(segments, "PAIRS_AT_ONCE", 40)
    pairs = listed(torch.rand(1, 1, 9, 7) < 0.7)
    inputs = drawn(1, 2, 1, (9, 7), (3, 4))

    def once(*x):
        torch.manual_seed(5)
        return edges(*x, pairs, scale=0.5, dropout_p=0.4)[0]

    assert torch.autograd.gradcheck(once, inputs)
    torch.manual_seed(5)
    first, second = (edges(*inputs, pairs, scale=0.5, dropout_p=0.4)[0] for _ in range(2))
    assert torch.equal(first, once(*inputs)) and not torch.equal(first, second)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
def test_the_same_bits_each_time(threads, dropout_p):
    pairs = listed(torch.rand(1, 1, 300, 300) < 0.1)
    inputs = drawn(2, 4, 2, (300, 300), (32, 32), torch.float32)

    def once():
        torch.manual_seed(3)
        return with_gradients(edges(*inputs, pairs, scale=0.2, dropout_p=dropout_p)[0], inputs)

    torch.set_num_threads(threads)
    try:
        first = once()
        assert all(torch.equal(a, b) for _ in range(3) for a, b in zip(first, once(), strict=True))
    finally:
        torch.set_num_threads(1)


def test_second_derivative_says_what_to_do():
    pairs = listed(torch.rand(1, 1, 5, 5) < 0.7)
    inputs = drawn(1, 1, 1, (5, 5), (3, 3))
    out = edges(*inputs, pairs, scale=0.5)[0]
    (gradient,) = torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="backend='reference'"):
        torch.autograd.grad(gradient.sum(), inputs[0])
    assert gradient.isfinite().all()


def test_compiles_in_one_piece():
    pairs = listed(torch.rand(1, 1, 20, 20) < 0.5)
    inputs = drawn(2, 2, 1, (20, 20), (8, 8), torch.float32)

    def block(q, k, v):
        return edges(q * 2, k, v, pairs, scale=0.3)[0] + 1

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for mine, other in zip(
        with_gradients(compiled(*inputs), inputs), with_gradients(block(*inputs), inputs), strict=True
    ):
        torch.testing.assert_close(mine, other)
    dropped = torch.compile(
        lambda *x: edges(*x, pairs, scale=0.3, dropout_p=0.5)[0], fullgraph=True, backend="aot_eager"
    )
    assert all(x.isfinite().all() for x in with_gradients(dropped(*inputs), inputs))


def test_operators_keep_their_contract():
    pairs = listed(torch.rand(1, 1, 6, 6) < 0.5)
    inputs = drawn(1, 2, 1, (6, 6), (4, 5), torch.float32)
    seed = torch.zeros((), dtype=torch.int64)
    arguments = (*inputs, pairs.group, pairs.start, pairs.key, *[None] * 7, seed, 0.5, 2.0, 0.0)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    results = torch.library.opcheck(torch.ops.maskzoo.edges.default, arguments, test_utils=checks)
    assert set(results.values()) == {"SUCCESS"}


def largest_allocation(call):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    return max(event.self_cpu_memory_usage for event in record.events())


def test_memory_does_not_follow_the_square_of_the_length():
    length, heads, width = 4096, 2, 16
    query = torch.arange(length)
    key = ((query[:, None] + torch.arange(8) * 511) % length).sort(1).values
    pairs = Pairs(
        length, length, torch.zeros(1, 1, dtype=torch.int64), torch.arange(length + 1) * 8, key.flatten().int()
    )
    inputs = drawn(1, heads, heads, (length, length), (width, width), torch.float32)
    gc.collect()
    rows, listed_pairs = heads * length * width * 4, heads * len(pairs.key) * 8
    largest = largest_allocation(lambda: edges(*inputs, pairs, scale=0.25)[0].sum().backward())
    assert 0 < largest <= 2 * max(rows, listed_pairs) < length**2 / 4


def test_nothing_of_the_pairs_is_kept_between_forward_and_backward():
    pairs = listed(torch.rand(1, 1, 50, 50) < 0.5)
    inputs = drawn(1, 2, 2, (50, 50), (4, 4))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        edges(*inputs, pairs, scale=0.25)[0]
    shapes = {tuple(shape) for shape in kept}
    assert shapes == {(1, 2, 50, 4), (1, 2, 50), (1, 1), (51,), tuple(pairs.key.shape), ()}


def test_inputs_are_left_alone():
    pairs = listed(torch.rand(1, 1, 20, 20) < 0.5)
    inputs = [x.detach() for x in drawn(1, 2, 2, (20, 20), (4, 4), torch.float32)]
    inputs[0][0, 0, 0, 0] = math.inf
    before = copy.deepcopy([*inputs, pairs])
    edges(*[x.requires_grad_() for x in inputs], pairs, scale=0.25)[0].nan_to_num().sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=False))
    assert torch.equal(pairs.key, before[-1].key) and torch.equal(pairs.start, before[-1].start)


KINDS = ["code", "stored", "dense"]


def offset_by(kinds, pairs, heads, batch=1, dense=None, dtype=torch.float64, number=torch.uint8):
    """Offsets of some kinds, with own codes for each sequence."""
    code = stored = None
    if "code" in kinds:
        q, k = torch.randint(20, 50, (batch, pairs.queries)), torch.randint(0, 20, (1, pairs.keys))
        code = CodeTerm(q, k, torch.randn(heads, 50).to(dtype).requires_grad_())
    if "stored" in kinds:
        index = torch.randint(0, 7, pairs.key.shape).to(number)
        stored = ListedTerm(index, torch.randn(heads, 7).to(dtype).requires_grad_())
    shape = dense or (batch, heads, pairs.queries, pairs.keys)
    return Offsets(code, stored, torch.randn(shape).to(dtype).requires_grad_() if "dense" in kinds else None)


def tables(offsets):
    terms = offsets.code, offsets.stored
    return [term.table for term in terms if term is not None] + ([] if offsets.dense is None else [offsets.dense])


def offset_scores(offsets, pairs):
    """The dense form of all terms."""
    total = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    if offsets.code is not None:
        total = total + code_scores(offsets.code)
    if offsets.stored is not None:
        index = torch.zeros(len(pairs.start) - 1, pairs.keys, dtype=torch.int64)
        index[pairs.row, pairs.key.long()] = offsets.stored.index.long()
        table = offsets.stored.table
        group = pairs.group.expand(-1, len(table))
        index = index.view(pairs.groups, pairs.queries, pairs.keys)
        total = total + torch.stack([table[head][index[group[:, head]]] for head in range(len(table))], 1)
    return total if offsets.dense is None else total + offsets.dense


def assert_offsets_equal_reference(inputs, visible, pairs, offsets, tolerance=1e-9):
    sources = [*inputs, *tables(offsets)]
    got = with_gradients(edges(*inputs, pairs, scale=0.4, offsets=offsets)[0], sources)
    exact = [x.double() for x in inputs]
    expected = with_gradients(reference(*exact, visible, offset_scores(offsets, pairs), scale=0.4)[0], sources)
    for mine, other in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), other.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 257])
@pytest.mark.parametrize("kinds", [["code"], ["stored"], ["dense"], KINDS])
def test_offsets_equal_reference_at_all_lengths(length, kinds):
    visible = torch.rand(1, 1, length, length) < 0.1
    pairs = listed(visible)
    inputs = drawn(1, 2, 2, (length, length), (8, 8))
    assert_offsets_equal_reference(inputs, visible, pairs, offset_by(kinds, pairs, 2))


@pytest.mark.parametrize("rules", [(1, 1), (2, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("lengths", [(37, 51), (1, 40), (5, 40)])
def test_offsets_with_rules_by_sequence_and_head(monkeypatch, rules, kv_heads, lengths):
    monkeypatch.setattr(segments, "PAIRS_AT_ONCE", 300)
    visible = torch.rand(*rules, *lengths) < 0.3
    visible[:, :, lengths[0] // 2] = lengths[0] == 1
    pairs = listed(visible)
    inputs = drawn(2, 4, kv_heads, lengths, (8, 12))
    assert_offsets_equal_reference(inputs, visible, pairs, offset_by(KINDS, pairs, 4, 2))


@pytest.mark.parametrize("shape", [(1,), (20,), (1, 1, 20, 1), (1, 4, 1, 1), (2, 1, 1, 20), (4, 20, 20), (1, 4, 1, 20)])
def test_a_dense_offset_broadcasts_and_its_gradient_is_summed(shape):
    visible = torch.rand(1, 1, 20, 20) < 0.3
    pairs = listed(visible)
    offsets = offset_by(["dense"], pairs, 4, dense=shape)
    assert offsets.dense.shape == shape
    assert_offsets_equal_reference(drawn(2, 4, 2, (20, 20), (8, 8)), visible, pairs, offsets)


@pytest.mark.parametrize("number", [torch.uint8, torch.int16, torch.int32])
def test_half_precision_keeps_offsets_in_float32(number):
    visible = torch.rand(1, 1, 65, 65) < 0.2
    pairs = listed(visible)
    offsets = offset_by(KINDS, pairs, 4, dtype=torch.float32, number=number)
    inputs = drawn(1, 4, 2, (65, 65), (8, 8), torch.bfloat16)
    assert_offsets_equal_reference(inputs, visible, pairs, offsets, 4e-2)
    gradients = torch.autograd.grad(edges(*inputs, pairs, scale=0.4, offsets=offsets)[0].sum(), tables(offsets))
    assert {gradient.dtype for gradient in gradients} == {torch.float32}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_gradients_of_offsets_in_float64(kind, dropout_p):
    visible = torch.rand(2, 1, 5, 6) < 0.6
    visible[:, :, 2] = False
    pairs = listed(visible)
    offsets = offset_by([kind], pairs, 2, dense=(2, 5, 1))

    def once(q, k, v, values):
        code, stored = offsets.code, offsets.stored
        given = Offsets(
            code and CodeTerm(code.q_code, code.k_code, values),
            stored and ListedTerm(stored.index, values),
            values if kind == "dense" else None,
        )
        torch.manual_seed(4)
        return edges(q, k, v, pairs, scale=0.5, dropout_p=dropout_p, offsets=given)[0]

    assert torch.autograd.gradcheck(once, [*drawn(2, 2, 1, (5, 6), (3, 4)), *tables(offsets)])


@pytest.mark.parametrize("kinds", [["code"], ["stored"], ["dense"], KINDS])
def test_only_the_offsets_may_be_learned(kinds):
    pairs = listed(torch.rand(2, 1, 30, 30) < 0.3)
    offsets, inputs = offset_by(kinds, pairs, 4, 2), drawn(2, 4, 2, (30, 30), (8, 8))
    every = with_gradients(edges(*inputs, pairs, scale=0.4, offsets=offsets)[0], [*inputs, *tables(offsets)])
    frozen = [x.detach() for x in inputs]
    got = with_gradients(edges(*frozen, pairs, scale=0.4, offsets=offsets)[0], tables(offsets))
    assert all(torch.equal(a, b) for a, b in zip(got[1:], every[4:], strict=True))


def test_a_row_offset_by_minus_infinity_sees_nothing():
    visible = torch.ones(1, 1, 20, 20, dtype=torch.bool).tril()
    dense = torch.randn(1, 2, 20, 20)
    dense[..., 5, :] = dense[..., 9, :5] = -math.inf
    inputs, given = drawn(1, 2, 2, (20, 20), (8, 8), torch.float32), Offsets(dense=dense.requires_grad_())
    out = edges(*inputs, listed(visible), scale=0.3, offsets=given)[0]
    torch.testing.assert_close(out, reference(*inputs, visible, dense, scale=0.3)[0])
    assert (out[:, :, 5] == 0).all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(out.sum(), [*inputs, dense]))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_is_not_finite_is_felt_as_without_offsets(poison):
    visible = torch.rand(2, 1, 20, 20) < 0.2
    pairs = listed(visible)
    offsets = offset_by(KINDS, pairs, 2, 2)
    inputs = [x.detach() for x in drawn(2, 2, 2, (20, 20), (8, 8))]
    inputs[0][0, 1, 4, 0] = inputs[1][0, 1, 9, 2] = poison
    sources = [*(x.requires_grad_() for x in inputs), *tables(offsets)]
    got = with_gradients(edges(*inputs, pairs, scale=0.3, offsets=offsets)[0], sources)
    expected = with_gradients(reference(*inputs, visible, offset_scores(offsets, pairs), scale=0.3)[0], sources)
    assert got[0].isnan().any() and all(x.isfinite().all() for x in got[1:])
    for mine, other in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, other, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_each_time_with_offsets(threads):
    pairs = listed(torch.rand(1, 1, 200, 200) < 0.2)
    inputs, offsets = drawn(2, 4, 2, (200, 200), (8, 8), torch.float32), offset_by(KINDS, pairs, 4, dtype=torch.float32)

    def once():
        torch.manual_seed(3)
        out = edges(*inputs, pairs, scale=0.2, dropout_p=0.2, offsets=offsets)[0]
        return with_gradients(out, [*inputs, *tables(offsets)])

    torch.set_num_threads(threads)
    try:
        first = once()
        assert all(torch.equal(a, b) for _ in range(2) for a, b in zip(first, once(), strict=True))
    finally:
        torch.set_num_threads(1)


def test_compiles_in_one_piece_with_offsets():
    pairs = listed(torch.rand(1, 1, 20, 20) < 0.5)
    offsets = offset_by(KINDS, pairs, 2, dtype=torch.float32)
    code, stored = offsets.code, offsets.stored

    def step(q, k, v, by_code, by_index, dense):
        given = Offsets(CodeTerm(code.q_code, code.k_code, by_code * 2), ListedTerm(stored.index, by_index), dense)
        return edges(q * 2, k, v, pairs, scale=0.3, offsets=given)[0] + 1

    sources = [*drawn(2, 2, 1, (20, 20), (8, 8), torch.float32), *tables(offsets)]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for mine, other in zip(
        with_gradients(compiled(*sources), sources), with_gradients(step(*sources), sources), strict=True
    ):
        torch.testing.assert_close(mine, other)
    arguments = (pairs.group, pairs.start, pairs.key, code.q_code, code.k_code, code.table)
    arguments = (*sources[:3], *arguments, stored.index, None, stored.table, offsets.dense)
    results = torch.library.opcheck(
        torch.ops.maskzoo.edges.default, (*arguments, torch.zeros(()).long(), 0.5, 2.0, 0.0)
    )
    assert set(results.values()) == {"SUCCESS"}
