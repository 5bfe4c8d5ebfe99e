"""Folded biases say of every visible pair what the providers say of it, one by one, with the same gradients."""

import copy
import gc
import pickle
import weakref
from functools import reduce
from itertools import chain
from operator import add

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import maskzoo as mz
from maskzoo.biases import Bias, OffsetBias
from maskzoo.kernels.offsets import code_scores
from maskzoo.kernels.tiles import codes
from maskzoo.planning import indexing
from maskzoo.planning.folding import Folded
from maskzoo.planning.numbering import JointNumbers, distinct

HEADS = 2


class Parity(Bias):
    """A stored index: twice whether the slots differ by an odd number, and whether the key comes later."""

    def __init__(self, *, heads):
        super().__init__(heads)
        self.weight = torch.nn.Parameter(torch.zeros(heads, 4))

    def index(self, q, k):
        return (q.slot - k.slot) % 2 * 2 + (k.index > q.index)

    def table(self, entries):
        return self.weight


class Features(Bias):
    """Sequences that differ, and a table that a linear layer computes."""

    @property
    def needs_sequence(self):
        return True

    def __init__(self, *, heads):
        super().__init__(heads)
        self.linear = torch.nn.Linear(3, heads)
        self.scale = torch.nn.Parameter(torch.tensor(0.5))

    def index(self, q, k):
        return (q.sequence + k.segment.clamp(min=0)) % 3 + 0 * q.slot

    def table(self, entries):
        return self.scale * self.linear(torch.eye(3, dtype=self.scale.dtype)).T


TERMS = [
    "relative(8)",
    "alibi",
    "grid_offset(3, 4)",
    "segment_pair(3)",
    "distance(fields=['row', 'col'])",
    "offset(3, 2)",
    "clipped_relative(4)",
    "distance('linear', fields=['row', 'col', 'far'], metric='chebyshev', learned=True)",
    "parity",
    "features",
    "dense",
    "table",
]


def expression(terms, relation):
    """A sum of terms (number in the list, factor) in float64, with tables drawn at random."""
    own = {
        "parity": lambda: Parity(heads=HEADS),
        "features": lambda: Features(heads=HEADS),
        "dense": lambda: mz.biases.Dense(torch.randn(HEADS, 1, 1).double(), heads=HEADS),
        "table": lambda: mz.biases.Table(relation, heads=HEADS),
    }
    found = []
    for number, factor in terms:
        name = TERMS[number]
        found.append(factor * (own[name]() if name in own else mz.biases.parse(name, heads=HEADS)))
    made = reduce(add, found).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def positions(kind, draw_seed, length, batch):
    random = torch.Generator().manual_seed(draw_seed)
    draw = lambda high: torch.randint(0, high, (batch, length), generator=random)  # noqa: E731
    fields = {"row": draw(5), "col": draw(6), "kind": draw(3), "far": draw(2) * 10**9}
    if kind == "padded":
        lengths = torch.randint(0, length + 1, (batch,), generator=random).tolist()
        return mz.Positions.tokens(lengths, padded_to=length).with_fields(**fields)
    if kind == "packed":
        first = int(torch.randint(1, length, (), generator=random))
        return mz.Positions.packed([[first, length - first]] * batch).with_fields(**fields)
    return mz.Positions(index=draw(3 * length), **fields)


def written_out(offsets, plan, form):
    """Offsets of all pairs [B, H, Tq, Tk]; 0 where hidden."""
    batch = max([plan.batch, *(len(x) for x in (offsets.dense,) if x is not None)])
    if offsets.code is not None:
        batch = max(batch, len(offsets.code.q_code), len(offsets.code.k_code))
    shape = batch, HEADS, plan.query_length, plan.key_length
    total = torch.zeros(shape, dtype=torch.float64)
    if offsets.code is not None:
        term = offsets.code
        difference = term.q_code[:, :, None] - term.k_code[:, None]
        assert difference.min() >= 0 and difference.max() < term.table.shape[1]
        total = total + code_scores(term)
    if offsets.dense is not None:
        total = total + offsets.dense
    if offsets.stored is not None and form == "tiled":
        tiles, term, size = plan.tiles, offsets.stored, plan.tiles.size
        index = torch.zeros(tiles.groups, tiles.query_tiles, size, tiles.key_tiles, size, dtype=torch.int64)
        places = codes(tiles).nonzero()
        assert len(places) == len(term.place) and term.place.dtype == torch.int32
        for (group, query, key), place in zip(places.tolist(), term.place.tolist(), strict=True):
            index[group, query, :, key] = term.index[place].long()
        index = index.flatten(3).flatten(1, 2)[:, : tiles.queries, : tiles.keys][tiles.group]  # [B, H or 1, Tq, Tk]
        assert int(index.max()) < term.table.shape[1]
        total = total + torch.stack([term.table[h][index[:, h % index.shape[1]]] for h in range(HEADS)], dim=1)
    if offsets.stored is not None and form == "edges":
        pairs, term = plan.pairs, offsets.stored
        index = torch.zeros(pairs.groups * pairs.queries, pairs.keys, dtype=torch.int64)
        index[pairs.row, pairs.key.long()] = term.index.long()
        index = index.view(pairs.groups, pairs.queries, pairs.keys)[pairs.group]
        total = total + torch.stack([term.table[h][index[:, h % index.shape[1]]] for h in range(HEADS)], dim=1)
    return total * plan.visible


@settings(max_examples=80, deadline=None)
@given(
    terms=st.lists(
        st.tuples(st.integers(0, len(TERMS) - 1), st.sampled_from([1, -0.5, 3])),
        min_size=1,
        max_size=4,
        unique_by=lambda term: term[0],
    ),
    kind=st.sampled_from(["padded", "packed", "scattered"]),
    mask=st.sampled_from(["causal", "full", "window(5)", "stack(causal, window(3, both_sides=True))", "block(7)"]),
    length=st.sampled_from([2, 9, 64, 65, 130]),
    batch=st.integers(1, 3),
    last=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_every_form_says_what_the_scores_say(terms, kind, mask, length, batch, last, seed):
    torch.manual_seed(seed)
    at = positions(kind, seed, length, batch)
    queries = at.last(max(1, length // 2)) if last else at
    values, shape = (400, ()) if last else (5, (batch,))
    bias = expression(terms, torch.randint(0, values, (*shape, queries.length, length)))
    plan = mz.plan(mask, queries, bias=bias, k_at=at)
    weight = torch.randn(batch, HEADS, plan.query_length, plan.key_length, dtype=torch.float64)
    results = []
    for form in ("dense", "tiled", "edges"):
        offsets = plan.scores() * plan.visible if form == "dense" else written_out(plan.offsets(form), plan, form)
        loss = (offsets * weight).sum()
        results.append([offsets, *(torch.autograd.grad(loss, list(bias.parameters())) if loss.requires_grad else ())])
    for result in results[1:]:
        for got, expected in zip(result, results[0], strict=True):
            torch.testing.assert_close(got, expected)


def alone(bias, q_at, k_at, b, i, j):
    """What the providers say of one pair: float [H], without folding."""

    class One:
        def __init__(self, at, place, sides):
            self.at, self.place, self.shape, self.slots = at, place, sides, at.length

        def __getattr__(self, name):
            row = {"slot": torch.arange(self.at.length)[None], "sequence": torch.tensor([[b]])}.get(name)
            row = self.at.fields[name] if row is None else row
            value = row[min(b, len(row) - 1), 0 if name == "sequence" else self.place]
            return value.view(self.shape)

    total = torch.zeros(HEADS, dtype=torch.float64)
    for factor, leaf in bias.leaves():
        if isinstance(leaf, OffsetBias):
            q, k = leaf.q_code(One(q_at, i, (1, 1))), leaf.k_code(One(k_at, j, (1, 1)))
            total = total + factor * leaf.table((q - k)[0])[:, 0]
        elif isinstance(leaf, mz.biases.Dense):
            total = total + factor * leaf.values.expand(HEADS, 1, 1)[:, 0, 0]
        else:
            index = int(leaf.index(One(q_at, i, (1, 1, 1)), One(k_at, j, (1, 1, 1))))
            total = total + factor * leaf.table(index + 1)[:, index]
    return total


@pytest.mark.parametrize("number", range(len(TERMS)))
def test_scores_are_what_the_providers_say_of_each_pair(number):
    torch.manual_seed(number)
    at = positions("packed", number, 12, 2)
    bias = expression([(number, -0.5), ((number + 5) % len(TERMS), 2), (1, 1)], torch.randint(0, 5, (2, 12, 12)))
    scores = mz.plan("full & across_segments", at, bias=bias).scores().expand(2, HEADS, 12, 12)
    for b, i, j in [(0, 0, 0), (1, 3, 7), (0, 11, 2), (1, 11, 0), (0, 5, 6)]:
        torch.testing.assert_close(scores[b, :, i, j], alone(bias, at, at, b, i, j))


def test_few_terms_are_left():
    at = mz.Positions.grid(16, 16).with_fields(kind=torch.arange(256) % 3)
    for text, differences in (("alibi + relative(8) + offset(3)", 511), ("alibi + segment_pair(3)", 511 * 9)):
        offsets = mz.plan("causal", at, bias=text, heads=2).offsets("tiled")
        assert offsets.code.table.shape == (2, differences) and offsets.stored is offsets.dense is None
    # Index by row and column takes more than a table may have: the narrower is stored.
    far = mz.Positions.grid(16, 16).with_fields(index=torch.arange(256) * 400)
    offsets = mz.plan("causal", far, bias="alibi + grid_offset(16, 16)", heads=2).offsets("tiled")
    assert offsets.code.table.shape == (2, 255 * 400 * 2 + 1)
    assert offsets.stored.index.dtype == torch.int16 and offsets.stored.table.shape[1] <= 31 * 31


def test_equal_index_tiles_are_stored_once():
    at = mz.Positions.tokens(1024)
    offsets = mz.plan("causal & window(64)", at, bias=Parity(heads=2)).offsets("tiled")
    assert offsets.stored.index.dtype == torch.uint8
    assert offsets.stored.index.shape == (2, 64, 64)  # on the diagonal, and before it
    assert sorted(offsets.stored.place.unique().tolist()) == [0, 1] and len(offsets.stored.place) == 16 + 15


class Outputs(TorchDispatchMode):
    """The bytes of the largest result of any operation."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.largest = max([self.largest, *sizes])
        return result


@pytest.mark.parametrize("mask", ["causal", "causal & window(256)"])
@pytest.mark.parametrize(
    "text", ["alibi + relative + 0.5 * clipped_relative(32)", "distance(learned=True) + segment_pair(2)"]
)
def test_nothing_of_the_size_of_all_pairs_is_allocated(mask, text):
    length, heads = 4096, 8
    at = mz.Positions.tokens(length).with_fields(kind=torch.arange(length) % 2)
    visibility = mz.plan(mask, at).visibility
    bias = mz.biases.parse(text, heads=heads)
    for form in ("tiled", "edges") if "window" in mask else ("tiled",):
        with Outputs() as outputs:
            offsets = Folded(bias, at, at).offsets(bias, visibility, form)
            offsets.code.table.sum().backward()
        assert outputs.largest < length * length  # of one byte each
        assert offsets.stored is None


def test_stored_indices_of_a_window_stay_small():
    length = 4096
    at, bias = mz.Positions.tokens(length), Parity(heads=2)
    visibility = mz.plan("causal & window(256)", at).visibility
    with Outputs() as outputs:
        offsets = Folded(bias, at, at).offsets(bias, visibility, "tiled")
    assert outputs.largest < length * length
    assert offsets.stored.index.nbytes < 2**16


def test_positions_that_no_batch_changes_are_folded_once():
    at, bias = mz.Positions.tokens(70), Parity(heads=2)
    first, again = mz.plan("causal", at, bias=bias), mz.plan("causal", at, bias=bias)
    other = mz.plan("causal", at, bias=Parity(heads=2))
    assert first.folded is again.folded and first.folded is not other.folded
    gone = weakref.ref(other.folded)
    del other
    gc.collect()
    assert gone() is None


def test_tables_change_and_the_folded_indices_serve_all_of_them():
    at, bias, other = mz.Positions.tokens(70), Parity(heads=2), Parity(heads=2)
    plan = mz.plan("causal", at, bias=bias)
    torch.nn.init.ones_(other.weight)
    assert plan.offsets("tiled").stored.table.abs().sum() == 0
    assert (plan.with_bias(other).offsets("tiled").stored.table == 1).all()
    torch.nn.init.ones_(bias.weight)
    assert (plan.offsets("tiled").stored.table == 1).all() and (plan.scores() == 1).all()
    with pytest.raises(ValueError, match="not of the same terms"):
        plan.with_bias(2 * other)
    with pytest.raises(ValueError, match="None"):
        mz.plan("causal", at).with_bias(other)


def test_folded_plans_travel():
    at = positions("packed", 3, 66, 2)
    bias = expression([(11, -1), (3, 1), (2, 0.5)], torch.randint(0, 5, (2, 66, 66)))
    plan = mz.plan("causal", at, bias=bias)
    expected = [plan.scores(), *(plan.offsets(form).stored.table for form in ("tiled", "edges"))]
    for other in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan), plan.to("cpu")):
        got = [other.scores(), *(other.offsets(form).stored.table for form in ("tiled", "edges"))]
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        assert other.folded.bytes == plan.folded.bytes > 0 and plan.bytes > plan.folded.bytes
    moved = plan.folded.to("meta")
    assert moved.stored(bias, plan.visibility, "tiled").index.is_meta


def test_no_visible_pair_at_all():
    at = mz.Positions(segment=[[0] * 70], index=[list(range(70))])
    plan = mz.plan("causal & ~causal", at, bias=Parity(heads=2))
    for form in ("tiled", "edges"):
        stored = plan.offsets(form).stored
        assert stored.index.numel() == 0 and stored.table.shape == (2, 1)


def test_gradients_are_the_same_in_every_run():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    at = mz.Positions.tokens(512)
    bias = mz.biases.parse("relative(8) + alibi", heads=4) + Parity(heads=4)
    weight = torch.randn(4, 512, 512)
    grads = []
    for _ in range(3):
        loss = (mz.plan("causal", at, bias=bias).scores() * weight).sum()
        grads.append(torch.autograd.grad(loss, list(bias.parameters())))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in grads[1:] for a, b in zip(grads[0], other, strict=True))


class Given(Bias):
    """Whatever a test gives."""

    def __init__(self, index=None, table=None):
        super().__init__(2)
        self.given = index, table

    def index(self, q, k):
        return (q.index - k.index).abs() if self.given[0] is None else self.given[0](q, k)

    def table(self, entries):
        return torch.zeros(2, entries) if self.given[1] is None else self.given[1](entries)

    def text(self):
        return "given"


class GivenOffsets(OffsetBias):
    def __init__(self, code=None, table=None):
        super().__init__(2)
        self.given = code, table

    def code(self, at):
        return at.index if self.given[0] is None else self.given[0](at)

    def table(self, differences):
        return torch.zeros(2, len(differences)) if self.given[1] is None else self.given[1](differences)

    def text(self):
        return "given"


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (
            Given(lambda q, k: (q.index - k.index).float()),
            "given: index must return a tensor of int64, got torch.float32",
        ),
        (Given(lambda q, k: q.index >= k.index), "int64, got torch.bool"),
        (Given(lambda q, k: 3), "int64, got int"),
        (Given(lambda q, k: q.index - k.index), "given: index must lie from 0 to 2147483647, but reaches from -4 to 4"),
        (
            Given(lambda q, k: torch.zeros(4, 3, dtype=torch.int64)),
            r"broadcast to \[B, Tq, Tk\] = \[1, 5, 5\], got \[4, 3\]",
        ),
        (Given(lambda q, k: q.roww), r"given reads the field 'roww'.*add it by"),
        (Given(lambda q, k: q.index @ k.index.float()), "given: index raised RuntimeError"),
        (
            Given(lambda q, k: q.index.amax() - q.index + 0 * k.index),
            "query 0 and key 4 of sequence 0 depends on which",
        ),
        (Given(lambda q, k: k.index - k.index.amin(2, keepdim=True)), "given is not a function of the pair alone"),
        (Given(table=lambda entries: torch.zeros(3, entries)), r"\[heads, entries\] = \[2, 5\] or wider, got \[3, 5\]"),
        (Given(table=lambda entries: torch.zeros(2, 4)), r"\[2, 5\] or wider, got \[2, 4\]"),
        (Given(table=lambda entries: torch.zeros(2, entries, dtype=torch.int64)), "float tensor.*got torch.int64"),
        (Given(table=lambda entries: torch.full((2, entries), torch.inf)), "given: table must be finite"),
        (GivenOffsets(lambda at: at.index[0]), r"code must have shape \[B, T\] = \[1, 5\].*got \[5\]"),
        (GivenOffsets(lambda at: at.index + 2**61), "code must lie within ±2⁶¹, but reaches from 2305843009213693952"),
        (GivenOffsets(lambda at: at.index[..., None][..., :0]), r"for C integers each, got \[1, 5, 0\]"),
        (GivenOffsets(lambda at: at.index.double()), "code must return a tensor of int64, got torch.float64"),
        (GivenOffsets(lambda at: at.index[:, :3]), r"got \[1, 3\]"),
        (
            GivenOffsets(lambda at: at.index - at.index.amin(1, keepdim=True)),
            "position 1 of sequence 0 depends on which",
        ),
        (GivenOffsets(lambda at: at.index.cumsum(1)), "given is not a function of the position alone"),
        (GivenOffsets(lambda at: torch.arange(5)[None]), "given is not a function of the position alone"),
        (GivenOffsets(table=lambda d: torch.zeros(2, len(d) + 1)), r"\[2, 9\], got \[2, 10\]"),
        (GivenOffsets(table=lambda d: d * torch.full((2, 1), torch.nan)), "table must be finite"),
    ],
)
def test_what_a_provider_may_not_give(bias, message):
    with pytest.raises(ValueError, match=message):
        mz.plan("full", mz.Positions.tokens(5), bias=bias)


def test_codes_of_both_sides_are_alike():
    class Uneven(GivenOffsets):
        def k_code(self, k):
            return k.index[..., None]

    with pytest.raises(ValueError, match=r"as many integers, got \[1, 5\] and \[1, 5, 1\]"):
        mz.plan("full", mz.Positions.tokens(5), bias=Uneven())


@pytest.mark.parametrize("form", ["dense", "tiled", "edges"])
def test_no_more_indices_are_stored_than_allowed(form, monkeypatch):
    at, bias = mz.Positions.tokens(130), Parity(heads=2)
    visibility = mz.plan("causal", at).visibility
    monkeypatch.setattr(indexing, "MOST_STORED", 2**12)
    with pytest.raises(ValueError, match=r"the bias Parity would take [\d,]+ bytes.*at most 4,096"):
        Folded(bias, at, at).stored(bias, visibility, form)


def test_providers_without_their_parts_say_so():
    at = mz.Positions.tokens(5)
    for base, message in ((Bias, r"write its index\(self, q, k\)"), (OffsetBias, r"write its code\(self, at\)")):
        with pytest.raises(TypeError, match=message):
            mz.plan("full", at, bias=type("Mine", (base,), {})(2))


def test_a_batch_of_another_size_is_refused():
    bias = mz.biases.Table(torch.zeros(3, 4, 4, dtype=torch.int64), heads=2)
    with pytest.raises(ValueError, match="made for a batch of 3, but the positions have 2"):
        mz.plan("full", mz.Positions.tokens([4, 3]), bias=bias)
    assert mz.plan("full", mz.Positions.tokens(4), bias=bias).batch == 3
    dense = mz.plan("full", mz.Positions.tokens(4), bias=torch.zeros(3, 1, 4, 4), heads=2)
    with pytest.raises(ValueError, match="the plan is for a batch of 3"):
        mz.attend(*[torch.zeros(2, 2, 4, 8)] * 3, dense)


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(st.lists(st.tuples(st.integers(-(2**61), 2**61), st.integers(0, 3)), min_size=1), min_size=1))
def test_joint_numbers_come_back(parts):
    joint, numbers = JointNumbers(2, torch.device("cpu")), []
    for part in parts:
        numbers.append(joint.of([torch.tensor(column) for column in zip(*part, strict=True)]))
    rows = joint.values[torch.cat(numbers)]
    assert rows.tolist() == [list(pair) for part in parts for pair in part]
    assert joint.values[0].tolist() == [0, 0] and joint.count == len({(0, 0), *chain(*parts)})


def test_distinct_tiles_are_told_apart():
    tiles = torch.randint(0, 2, (500, 5), dtype=torch.uint8)
    which, sample = distinct(tiles)
    assert torch.equal(tiles[sample][which], tiles) and len(sample) == len(torch.unique(tiles, dim=0))


def test_a_mask_and_a_bias_are_made_for_the_same_batch():
    at, mask = mz.Positions.tokens(4), mz.masks.Dense(torch.ones(2, 4, 4, dtype=torch.bool))
    table = mz.biases.Table(torch.zeros(3, 4, 4, dtype=torch.int64), heads=2)
    with pytest.raises(ValueError, match=r"the bias table\(.*made for a batch of 3, but the mask dense.* for one of 2"):
        mz.plan(mask, at, bias=table)
    with pytest.raises(ValueError, match=r"the bias dense\[2, .* batch of 2, but the bias table\(.* for one of 3"):
        mz.plan("causal", at, bias=table + mz.biases.Dense(torch.zeros(2, 1, 4, 4), heads=2))
    assert mz.plan(mask, at, bias=mz.biases.Dense(torch.zeros(2, 1, 4, 4), heads=2)).batch == 2
