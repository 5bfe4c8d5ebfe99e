"""Offsets in `tiled` against the dense form of the same offsets in `reference`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.kernels.offsets import CodeTerm, Offsets, StoredTerm, code_scores
from maskzoo.kernels.reference import reference
from maskzoo.kernels.tiled import code_term as code_term_of
from maskzoo.kernels.tiled import tiled
from maskzoo.kernels.tiles import from_visible, unfolded

LENGTHS = [1, 2, 127, 128, 129, 257]
KINDS = ["code", "stored", "dense"]


def positions(lengths, batch=1, kind="regular"):
    """Codes of both sides [batch, T], and how many differences there are."""
    at = [torch.arange(length).repeat(batch, 1) for length in lengths]
    at[0] = at[0] + max(0, lengths[1] - lengths[0])
    if kind == "packed":
        at = [x % (37 + torch.arange(batch)[:, None]) for x in at]
    elif kind == "grid":
        at = [x // 7 * 23 + x % 7 for x in at]
    elif kind == "random":
        at = [torch.randint(0, 40, x.shape) for x in at]
    q, k = at[0], at[1]
    q = q - (q.amin(1) - k.amax(1)).min()
    return q, k, int((q.amax(1) - k.amin(1)).max()) + 1


def code_term(lengths, heads, batch=1, kind="regular", dtype=torch.float64):
    q, k, entries = positions(lengths, batch, kind)
    return CodeTerm(q, k, torch.randn(heads, entries).to(dtype).requires_grad_())


def stored_term(tiles, heads, entries=5, dtype=torch.float64, number=torch.uint8):
    """A term with an own random index for some of the visible tiles."""
    visible = len(unfolded(tiles.rows)[0])
    distinct = max(1, visible // 2)
    index = torch.randint(0, entries, (distinct, tiles.size, tiles.size)).to(number)
    place = torch.randint(0, distinct, (visible,), dtype=torch.int32)
    return StoredTerm(index, place, torch.randn(heads, entries).to(dtype).requires_grad_())


def stored_scores(term, tiles):
    """[B or 1, H, Tq, Tk], differentiable in the table; 0 in tiles that are not visible."""
    _, line, tile = unfolded(tiles.rows)
    index = torch.zeros(tiles.groups * tiles.query_tiles, tiles.key_tiles, tiles.size, tiles.size, dtype=torch.int64)
    index[line, tile] = term.index[term.place.long()].long()
    index = index.unflatten(0, (tiles.groups, -1)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
    index = index[:, : tiles.queries, : tiles.keys]  # [G, Tq, Tk]
    group = tiles.group.expand(-1, len(term.table))
    return torch.stack([term.table[head][index[group[:, head]]] for head in range(len(term.table))], 1)


def scores(offsets, tiles):
    """The dense form of all terms."""
    total = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    if offsets.code is not None:
        total = total + code_scores(offsets.code)
    if offsets.stored is not None:
        total = total + stored_scores(offsets.stored, tiles)
    return total if offsets.dense is None else total + offsets.dense


def tables(offsets):
    terms = offsets.code, offsets.stored
    return [term.table for term in terms if term is not None] + ([] if offsets.dense is None else [offsets.dense])


def inputs(batch, heads, lengths, widths=(6, 5), dtype=torch.float64):
    """q, k, v for (H, Hkv), (Tq, Tk) and (D, Dv)."""
    shapes = [(heads[0], lengths[0], widths[0]), (heads[1], lengths[1], widths[0]), (heads[1], lengths[1], widths[1])]
    return [torch.randn(batch, *shape).to(dtype).requires_grad_() for shape in shapes]


def made(kinds, visible, size, heads, lengths, batch=1, codes="regular", dense=None, dtype=torch.float64):
    """Tiles and offsets of some kinds."""
    tiles = from_visible(visible, size)
    shape = dense or (batch, heads, *lengths)
    return tiles, Offsets(
        code_term(lengths, heads, batch if codes in ("packed", "random") else 1, codes, dtype)
        if "code" in kinds
        else None,
        stored_term(tiles, heads, dtype=dtype) if "stored" in kinds else None,
        torch.randn(shape).to(dtype).requires_grad_() if "dense" in kinds else None,
    )


def assert_equals_reference(sources, visible, tiles, offsets, tolerance=1e-9):
    """Values and all gradients."""
    with_gradient = [*sources, *tables(offsets)]
    expected = reference(*(x.double() for x in sources), visible, scores(offsets, tiles), scale=0.3)[0]
    out = tiled(*sources, tiles, scale=0.3, offsets=offsets)[0]
    assert out.dtype == sources[0].dtype
    weight = torch.randn_like(expected)
    wanted = [expected, *torch.autograd.grad(expected, with_gradient, weight)]
    got = [out, *torch.autograd.grad(out, with_gradient, weight.to(out.dtype))]
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=tolerance, rtol=tolerance)


def causal(length):
    return torch.ones(1, 1, length, length, dtype=torch.bool).tril()


def window(length, width=40):
    return causal(length) & ~torch.ones(length, length, dtype=torch.bool).tril(-width)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rule", [causal, window])
@pytest.mark.parametrize("kinds", [["code"], ["stored"], ["dense"], KINDS])
def test_equals_reference_at_all_lengths(length, rule, kinds):
    visible = rule(length)
    tiles, offsets = made(kinds, visible, 16, 2, (length, length))
    assert_equals_reference(inputs(1, (2, 2), (length, length)), visible, tiles, offsets)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 2), (4, 1)]),
    batch=st.integers(1, 3),
    shared=st.tuples(st.booleans(), st.booleans()),
    density=st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]),
    kinds=st.sets(st.sampled_from(KINDS), min_size=1),
    codes=st.sampled_from(["regular", "packed", "grid", "random"]),
)
def test_equals_reference_whoever_shares_the_tiles(seed, lengths, heads, batch, shared, density, kinds, codes):
    torch.manual_seed(seed)
    own = 1 if shared[0] else batch, 1 if shared[1] else heads[0]
    visible = torch.rand(*own, *lengths) < density
    tiles, offsets = made(kinds, visible, 8, heads[0], lengths, batch, codes)
    assert_equals_reference(inputs(batch, heads, lengths), visible, tiles, offsets)


def test_equals_reference_where_groups_are_shared_in_any_order():
    rules, group = torch.rand(3, 40, 40) > 0.5, torch.tensor([[0, 1, 0, 2], [1, 1, 0, 0], [2, 2, 2, 2]])
    tiles = from_visible(rules[None], 8)
    tiles = type(tiles)(**{**vars(tiles), "group": group})
    for kv_heads in (2, 4):
        offsets = Offsets(code_term((40, 40), 4), stored_term(tiles, 4), torch.randn(3, 4, 40, 40).double())
        offsets.dense.requires_grad_()
        assert_equals_reference(inputs(3, (4, kv_heads), (40, 40)), rules[group], tiles, offsets)


@pytest.mark.parametrize(
    "shape", [(1,), (40,), (1, 1, 40, 1), (1, 4, 1, 1), (2, 1, 1, 40), (2, 1, 40, 40), (4, 40, 40), (1, 4, 1, 40)]
)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_dense_tensor_broadcasts_and_its_gradient_is_summed(shape, kv_heads):
    visible = torch.rand(1, 1, 40, 40) < 0.3
    tiles, offsets = made(["dense"], visible, 8, 4, (40, 40), 2, dense=shape)
    assert offsets.dense.shape == shape
    assert_equals_reference(inputs(2, (4, kv_heads), (40, 40)), visible, tiles, offsets)


@pytest.mark.parametrize("queries", [1, 2, 5])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_decoding(queries, kv_heads):
    lengths = (queries, 150)
    i, j = torch.arange(queries)[:, None] + 150 - queries, torch.arange(150)
    visible = (i >= j)[None, None]
    tiles, offsets = made(KINDS, visible, 64, 4, lengths, 2)
    assert_equals_reference(inputs(2, (4, kv_heads), lengths), visible, tiles, offsets)


def test_large_blocks_equal_reference():
    """Long enough for products one head at a time and for several chunks of keys."""
    lengths = (700, 1500)
    i, j = torch.arange(700)[:, None], torch.arange(1500)
    visible = (i + 800 >= j)[None, None]
    tiles, offsets = made(KINDS, visible, 64, 2, lengths, dtype=torch.float32)
    assert_equals_reference(inputs(1, (2, 2), lengths, (64, 64), torch.float32), visible, tiles, offsets, 2e-4)


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("number", [torch.uint8, torch.int16, torch.int32])
def test_half_precision_keeps_offsets_in_float32(kv_heads, number):
    visible = window(129)
    tiles, offsets = made(KINDS, visible, 16, 4, (129, 129), dtype=torch.float32)
    offsets = Offsets(offsets.code, stored_term(tiles, 4, 100, torch.float32, number), offsets.dense)
    sources = inputs(1, (4, kv_heads), (129, 129), dtype=torch.bfloat16)
    assert_equals_reference(sources, visible, tiles, offsets, 4e-2)
    gradients = torch.autograd.grad(tiled(*sources, tiles, scale=0.3, offsets=offsets)[0].sum(), tables(offsets))
    assert {gradient.dtype for gradient in gradients} == {torch.float32}


@pytest.mark.parametrize("kinds", [["code"], ["stored"], ["dense"]])
def test_gradients_in_float64(kinds):
    visible = causal(11).clone()
    visible[..., 4, :] = False
    tiles, offsets = made(kinds, visible, 8, 2, (11, 11))
    sources, (table,) = inputs(1, (2, 1), (11, 11), (3, 4)), tables(offsets)

    def once(q, k, v, values):
        code, stored = offsets.code, offsets.stored
        given = Offsets(
            code and CodeTerm(code.q_code, code.k_code, values),
            stored and StoredTerm(stored.index, stored.place, values),
            None if code or stored else values,
        )
        torch.manual_seed(1)
        return tiled(q, k, v, tiles, scale=0.5, dropout_p=0.3, offsets=given)[0]

    assert torch.autograd.gradcheck(once, [*sources, table])


@pytest.mark.parametrize("kinds", [["code"], ["stored"], ["dense"], KINDS])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_only_the_offsets_may_be_learned(kinds, kv_heads):
    visible = window(100)
    tiles, offsets = made(kinds, visible, 16, 4, (100, 100))
    sources = inputs(2, (4, kv_heads), (100, 100))
    every = torch.autograd.grad(
        tiled(*sources, tiles, scale=0.5, offsets=offsets)[0].sin().sum(), [*sources, *tables(offsets)]
    )
    frozen = [x.detach() for x in sources]
    got = torch.autograd.grad(tiled(*frozen, tiles, scale=0.5, offsets=offsets)[0].sin().sum(), tables(offsets))
    assert all(torch.equal(one, other) for one, other in zip(got, every[3:], strict=True))
    fixed = Offsets(
        offsets.code and CodeTerm(offsets.code.q_code, offsets.code.k_code, offsets.code.table.detach()),
        offsets.stored and StoredTerm(offsets.stored.index, offsets.stored.place, offsets.stored.table.detach()),
        None if offsets.dense is None else offsets.dense.detach(),
    )
    got = torch.autograd.grad(tiled(*sources, tiles, scale=0.5, offsets=fixed)[0].sin().sum(), sources)
    assert all(torch.equal(one, other) for one, other in zip(got, every[:3], strict=True))


@pytest.mark.parametrize("value", [1e30, -1e30, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("length", [60, 400])
def test_what_hidden_pairs_are_offset_by_changes_no_bit(value, length):
    """Later keys are hidden: entries of negative differences, and the dense tensor there."""
    visible = causal(length)
    tiles, offsets = made(["code", "dense"], visible, 16, 2, (length, length), dtype=torch.float32)
    sources = inputs(1, (2, 2), (length, length), dtype=torch.float32)
    results = []
    for spoil in (False, True):
        table, dense = (x.detach().clone() for x in tables(offsets))
        if spoil:
            table[:, : length - 1] = value
            dense.masked_fill_(~visible, value)
        table.requires_grad_(), dense.requires_grad_()
        given = Offsets(CodeTerm(offsets.code.q_code, offsets.code.k_code, table), None, dense)
        out = tiled(*sources, tiles, scale=0.3, offsets=given)[0]
        results.append([out, *torch.autograd.grad(out.sin().sum(), [*sources, table, dense])])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    *_, by_table, by_place = results[1]
    assert (by_table[:, : length - 1] == 0).all()
    assert (by_place[~visible.expand(1, 2, -1, -1)] == 0).all()


def test_a_row_offset_by_minus_infinity_sees_nothing():
    visible = causal(40)
    sources = inputs(1, (2, 2), (40, 40), dtype=torch.float32)
    dense = torch.randn(1, 2, 40, 40)
    dense[..., 5, :] = dense[..., 9, :5] = -math.inf
    tiles, given = from_visible(visible, 8), Offsets(dense=dense.requires_grad_())
    out = tiled(*sources, tiles, scale=0.3, offsets=given)[0]
    torch.testing.assert_close(out, reference(*sources, visible, dense, scale=0.3)[0])
    gradients = torch.autograd.grad(out.sum(), [*sources, dense])
    assert (out[:, :, 5] == 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[3][..., 5, :] == 0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_felt_as_without_offsets(value):
    visible = torch.rand(2, 1, 50, 50) < 0.1
    visible[:, :, 7] = False
    tiles, offsets = made(KINDS, visible, 8, 4, (50, 50), 2)
    sources = [x.detach() for x in inputs(2, (4, 2), (50, 50))]
    sources[0][0, 1, 4, 0] = sources[1][0, 1, 9, 2] = sources[2][1, 0, 30, 1] = value
    sources = [x.requires_grad_() for x in sources]
    assert_equals = torch.testing.assert_close
    expected = reference(*sources, visible, scores(offsets, tiles), scale=0.3)[0]
    out = tiled(*sources, tiles, scale=0.3, offsets=offsets)[0]
    assert out.isnan().any()
    assert_equals(out, expected, equal_nan=True)
    weight = torch.randn_like(out)
    wanted = torch.autograd.grad(expected, tables(offsets), weight)
    got = torch.autograd.grad(out, [*sources, *tables(offsets)], weight)
    assert all(gradient.isfinite().all() for gradient in got)
    for one, other in zip(got[3:], wanted, strict=True):
        assert_equals(one, other)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_two_runs_give_the_same_bits(threads, kv_heads):
    visible = window(300)
    tiles, offsets = made(KINDS, visible, 16, 4, (300, 300), 2, "packed", dtype=torch.float32)
    sources, runs = inputs(2, (4, kv_heads), (300, 300), dtype=torch.float32), []
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            torch.manual_seed(3)
            out = tiled(*sources, tiles, scale=0.3, dropout_p=0.2, offsets=offsets)[0]
            runs.append([out, *torch.autograd.grad(out.sin().sum(), [*sources, *tables(offsets)])])
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one, other) for run in runs[1:] for one, other in zip(runs[0], run, strict=True))


@pytest.mark.parametrize("most", [1, 200, 2**22])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_diagonal_blocks_by_few_lines_at_a_time(monkeypatch, most, kv_heads):
    """Each sequence's queries lie elsewhere, so that all differences occur."""
    monkeypatch.setattr(code_term_of, "MOST_MOVED", most)
    visible = torch.ones(1, 1, 43, 50, dtype=torch.bool)
    q = torch.arange(43) + 49 + 5 * torch.arange(7)[:, None]
    term = CodeTerm(q, torch.arange(50)[None], torch.randn(4, int(q.max()) + 1).double().requires_grad_())
    sources = inputs(7, (4, kv_heads), (43, 50))
    assert_equals_reference(sources, visible, from_visible(visible, 8), Offsets(term))


def test_compiles_in_one_piece():
    visible = causal(40)
    tiles, offsets = made(KINDS, visible, 8, 2, (40, 40), dtype=torch.float32)
    code, stored = offsets.code, offsets.stored

    def step(q, k, v, by_code, by_index, dense):
        given = Offsets(
            CodeTerm(code.q_code, code.k_code, by_code * 2), StoredTerm(stored.index, stored.place, by_index), dense
        )
        return tiled(q * 2, k, v, tiles, scale=0.5, offsets=given)[0].square().sum()

    arguments = [*inputs(1, (2, 1), (40, 40), dtype=torch.float32), *tables(offsets)]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(*arguments), arguments)
    wanted = torch.autograd.grad(step(*arguments), arguments)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_the_operator_keeps_what_it_tells_torch():
    visible = torch.rand(2, 1, 20, 30) < 0.5
    tiles, offsets = made(KINDS, visible, 8, 4, (20, 30), 2, dtype=torch.float32)
    code, stored = offsets.code, offsets.stored
    q, k, v = inputs(2, (4, 2), (20, 30), dtype=torch.float32)
    arguments = (q, k, v, tiles.group, *tiles.rows, tiles.patterns, code.q_code, code.k_code, code.table)
    arguments = (*arguments, stored.index, stored.place, stored.table, offsets.dense, 0.5, 2.0, 0.0, None)
    checks = torch.library.opcheck(torch.ops.maskzoo.tiled.default, arguments)
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.parametrize("rule", [causal, window])
@pytest.mark.parametrize("codes", ["regular", "grid"])
def test_nothing_of_queries_by_keys_is_made(rule, codes):
    length = 2048
    visible = rule(length)
    tiles, offsets = made(["code"], visible, 64, 1, (length, length), codes=codes, dtype=torch.float32)
    sources = inputs(1, (1, 1), (length, length), (4, 4), torch.float32)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        out = tiled(*sources, tiles, scale=0.5, offsets=offsets)[0]
        gradients = torch.autograd.grad(out.sum(), [*sources, offsets.code.table])
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert 4 * length < largest <= length * length
    assert gradients[3].shape == offsets.code.table.shape
