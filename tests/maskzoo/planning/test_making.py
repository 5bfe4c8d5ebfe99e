"""Plans of every built-in rule, of rules that cannot be read by intervals, and of rules that are wrong."""

import copy
import math
import pickle
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch

import maskzoo as mz
from maskzoo.kernels.tiles import Tiles, codes, unpacked, visible
from maskzoo.masks import Dense, Pairs, stack
from maskzoo.planning import making, reading

LENGTHS = [1, 2, 63, 64, 65, 127, 128, 129, 257]
BUILT_IN = [
    "causal",
    "full",
    "window(70)",
    "window(3, both_sides=True)",
    "padding",
    "same_segment",
    "across_segments",
    "block(50)",
    "dilated(9, 8)",
    "strided(64)",
    "prefix(65)",
    "sinks(4)",
    "random(0.3)",
    "random(0)",
    "random(1, 7)",
    "cross",
    "wait_k(5)",
    "causal & (window(64) | sinks(4))",
    "~causal",
    "~(window(30) | block(65)) & causal",
    "across_segments & window(100, both_sides=True)",
    "stack(causal, window(64) & causal, causal)",
    "stack(full, ~full)",
    "stack(causal & across_segments, causal)",
]
POSITIONS = {
    "tokens": mz.Positions.tokens(300),
    "right": mz.Positions.tokens([300, 64, 65, 300, 1], padded_to=300),
    "left": mz.Positions.tokens([129, 300], side="left"),
    "packed": mz.Positions.packed([[64, 64, 100], [1, 200, 0, 30], [228]]),
    "grid": mz.Positions.grid(17, 16, batch=2),
    "shuffled": mz.Positions(index=torch.randperm(270, generator=torch.Generator().manual_seed(0)) - 99),
}


def assert_sound(plan):
    """Both sides of the tiles agree, no pattern stands twice, and the pairs are those of the array."""
    tiles, dense = plan.tiles, plan.visible
    turned = Tiles(tiles.size, tiles.keys, tiles.queries, tiles.group, tiles.columns, tiles.rows, tiles.patterns)
    assert torch.equal(codes(turned).mT, codes(tiles))
    assert torch.equal(visible(tiles), dense)
    assert len(torch.unique(tiles.patterns.flatten(1), dim=0)) == len(tiles.patterns)
    pairs = torch.zeros(plan.pairs.groups, plan.query_length, plan.key_length, dtype=torch.bool)
    pairs.flatten(0, 1)[plan.pairs.row, plan.pairs.key.long()] = True
    assert torch.equal(pairs[plan.pairs.group], dense)
    assert plan.density == pytest.approx(dense.double().mean().item())
    assert (plan.empty is None) == bool(dense.any(-1).all())
    assert plan.empty is None or torch.equal(plan.empty.expand(dense.shape[:3]), ~dense.any(-1))
    whole = bool(dense.all())
    triangle = dense.shape[2] == dense.shape[3] and bool((dense == torch.ones_like(dense).tril()).all())
    assert plan.form == ("full" if whole else "causal" if triangle else "any")


@pytest.mark.parametrize("rule", BUILT_IN)
@pytest.mark.parametrize("at", POSITIONS)
def test_every_built_in_rule_is_read_alike_by_tiles_and_by_pairs(assert_read_alike, rule, at):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_sound(assert_read_alike(rule, POSITIONS[at]))


@pytest.mark.parametrize(
    "rule", ["causal & window(64)", "~window(3) | block(64)", "random(0.5)", "stack(causal, full)"]
)
@pytest.mark.parametrize("queries", LENGTHS)
def test_lengths_around_a_tile(assert_read_alike, rule, queries):
    for keys in (queries, 64, 129, 300):
        assert_sound(assert_read_alike(rule, mz.Positions.tokens(queries), k_at=mz.Positions.tokens(keys)))


@pytest.mark.parametrize("queries", [1, 2, 3, 5])
@pytest.mark.parametrize("rule", ["causal", "causal & (window(100) | sinks(4))", "strided(9)", "random(0.4) & causal"])
def test_new_queries_against_a_cache_see_what_they_see_in_the_whole(assert_read_alike, rule, queries):
    at = mz.Positions.tokens([700, 513, 1], side="left")
    whole = mz.plan(rule, at).visible
    plan = assert_read_alike(rule, at.last(queries), k_at=at)
    assert torch.equal(plan.visible, whole[:, :, -queries:])
    assert_sound(plan)


@pytest.mark.parametrize("dims", [2, 3])
def test_an_array_of_pairs_is_read_alike(assert_read_alike, dims):
    values = torch.rand(*(3, 150, 200)[-dims:]) < 0.3
    values[..., 64:128, 64:128] = True
    q_at, k_at = mz.Positions.tokens([150, 90, 150]), mz.Positions.tokens([200, 200, 70])
    real = q_at.real[:, :, None] & k_at.real[:, None]
    plan = assert_read_alike(Dense(values), q_at, k_at=k_at)
    assert torch.equal(plan.visible[:, 0], values.expand(3, -1, -1) & real)
    both = assert_read_alike(stack(Dense(values) & mz.masks.Causal(), ~Dense(values)), q_at, k_at=k_at)
    assert torch.equal(both.visible[:, 1], ~values.expand(3, -1, -1) & real)
    assert_sound(plan)
    assert_sound(both)


def test_arrays_that_are_one_wide_serve_any_width(assert_read_alike):
    row, column = torch.rand(1, 200) < 0.5, torch.rand(2, 150, 1) < 0.5
    q_at, k_at = mz.Positions.tokens([150, 150]), mz.Positions.tokens([200, 200])
    plan = assert_read_alike(Dense(row) & Dense(column), q_at, k_at=k_at)
    assert torch.equal(plan.visible[:, 0], row & column)


def test_an_array_for_equal_sequences_may_tell_them_apart(assert_read_alike):
    values = torch.rand(2, 150, 150) < 0.3
    plan = assert_read_alike(Dense(values), mz.Positions.tokens([150, 150]))
    assert torch.equal(plan.visible[:, 0], values)


@pytest.mark.parametrize("rows", [2, 3])
def test_a_list_of_pairs_is_read_alike(assert_read_alike, rows):
    places = torch.stack([torch.randint(0, n, (3000,)) for n in (2, 300, 300)])[-rows:]
    at = mz.Positions.tokens([300, 200])
    plan = assert_read_alike(Pairs(places), at)
    assert_sound(plan)
    for rule in (~Pairs(places), Pairs(places) & mz.masks.Causal(), Pairs(places) | mz.masks.Window(9)):
        assert_sound(assert_read_alike(rule, at))
    assert_sound(assert_read_alike(stack(Pairs(places), mz.masks.Causal()), at))


def test_a_rule_that_tells_sequences_apart_does_so_when_their_positions_are_equal(assert_read_alike, mask_of):
    rule = mask_of(lambda q, k: (q.sequence % 2 == 1) & (k.index <= q.index), needs_sequence=True)
    for lengths in ([300, 300, 300], [300, 200, 300]):
        seen = assert_read_alike(rule, mz.Positions.tokens(lengths)).visible.sum((1, 2, 3)).tolist()
        assert seen == [0, lengths[1] * (lengths[1] + 1) // 2, 0]


def test_a_rule_that_does_not_say_so_cannot_tell_sequences_apart(mask_of):
    rule = mask_of(lambda q, k: (q.sequence == 1) & (k.index <= q.index))
    for lengths in ([300, 300], [3, 3], [3, 2]):
        try:
            plan = mz.plan(rule, mz.Positions.tokens(lengths))
        except ValueError as error:
            assert "Rule" in str(error) and "sequence" in str(error)
        else:
            assert plan.visible.expand(2, 1, max(lengths), max(lengths)).any(-1).any(-1).flatten().tolist() == [0, 1]


def test_how_many_tiles_and_patterns_there_are():
    causal = mz.plan("causal", mz.Positions.tokens(4096)).tiles
    assert len(causal.patterns) == 1 and len(causal.rows.first) == 64 + 63
    window = mz.plan("window(256)", mz.Positions.tokens(4096)).tiles
    assert len(window.patterns) == 2 and bool((window.rows.start.diff() <= 3).all())
    documents = mz.plan("full", mz.Positions.packed([512] * 8)).tiles
    assert len(documents.patterns) == 0 and documents.rows.count.tolist() == [8] * 64
    assert len(mz.plan("full", mz.Positions.tokens(4096)).tiles.rows.first) == 64


def test_equal_sequences_of_a_batch_share_their_tiles():
    at = mz.Positions.tokens([500, 300, 500, 300, 500])
    tiles = mz.plan("stack(causal, window(9), causal)", at).tiles
    assert tiles.groups == 4
    group = tiles.group.tolist()
    assert group[0] == group[2] == group[4] != group[1] == group[3]
    assert all(row[0] == row[2] != row[1] for row in group)


def counted(function, mask_of):
    """A rule that also adds up for how many pairs it was asked by elements, and the sum."""
    asked = []

    def read(q, k):
        result = function(q, k)
        if type(result) is torch.Tensor:
            asked.append(math.prod(torch.broadcast_shapes(q.index.shape, k.index.shape)))
        return result

    return mask_of(read), asked


def test_only_the_edge_of_a_rule_is_read_by_elements(mask_of):
    rule, asked = counted(lambda q, k: (q.index >= k.index) & (q.index - k.index < 64), mask_of)
    plan = mz.plan(rule, mz.Positions.tokens(65_536))
    assert len(plan.tiles.patterns) == 2
    assert sum(asked) < 65_536  # of 65,536 · 64 visible pairs


def test_documents_are_read_where_they_begin_and_end(mask_of):
    rule, asked = counted(lambda q, k: q.index >= k.index, mask_of)
    plan = mz.plan(rule, mz.Positions.packed([512] * 64))
    assert len(plan.tiles.patterns) == 1 and sum(asked) < 65_536


WITHOUT_RULE = {
    "gcd": lambda q, k: torch.gcd(q.index - k.index, torch.full_like(q.index, 6)) == 1,
    "float": lambda q, k: (q.index - k.index).abs().float().sqrt() % 2 < 1,
    "true_divide or div": lambda q, k: (q.index / 3).floor() >= k.index / 3,
    "pow": lambda q, k: (q.index - k.index) ** 2 % 7 < 3,
}


@pytest.mark.parametrize("name", WITHOUT_RULE)
def test_an_operation_without_an_interval_rule_gives_the_same_plan_and_says_so_once(
    monkeypatch, mask_of, read_short, name
):
    monkeypatch.setattr(reading, "_said", set())
    rule, asked = counted(WITHOUT_RULE[name], mask_of)
    whole = rule & mz.masks.Causal() & mz.masks.Window(64)
    at = mz.Positions.tokens(2000)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        plan = read_short(False, whole, at)
        read_short(False, whole, mz.Positions.tokens(1999))
    said = [str(one.message) for one in said if "cannot be read by intervals" in str(one.message)]
    assert len(said) == 1 and "Rule" in said[0]
    assert any(word in said[0] for word in ("gcd", "full_like", "float", "division", "div", "pow"))
    assert sum(asked) < 2 * 64 * 64 * 2 * (2000 // 64 + 1) + 2000
    assert torch.equal(plan.visible, read_short(True, whole, at).visible)


def test_a_random_choice_of_a_window_reads_that_window():
    plan = mz.plan("random(0.5) & causal & window(64)", mz.Positions.tokens(20_000))
    assert plan.density == pytest.approx(0.5 * 64 / 20_000, rel=0.02)


@pytest.mark.parametrize("length", [5, 300])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda q, k: q.index - k.index, r"Rule: visible must return a boolean tensor.*torch.int64"),
        (lambda q, k: (q.index - k.index).float(), r"Rule.*boolean tensor.*torch.float32"),
        (lambda q, k: None, "Rule.*boolean tensor.*NoneType"),
        (lambda q, k: True, "Rule.*boolean tensor.*bool"),
        (lambda q, k: torch.ones(2, 2, dtype=torch.bool), r"Rule.*broadcast.*\[2, 2\]"),
        (lambda q, k: (q.index >= k.index)[..., None], r"Rule.*broadcast"),
        (lambda q, k: q.index >= 1 // 0, "Rule.*ZeroDivisionError"),
        (lambda q, k: q.index // 0 > 2, "Rule.*RuntimeError"),
        (lambda q, k: q.index.nothing, "Rule.*AttributeError"),
        (lambda q, k: [][3], "Rule.*IndexError"),
        (lambda q, k: torch.zeros(3)[q.index + 900] > 0, "Rule.*IndexError"),
        (lambda q, k: math.sqrt(-1) + q.index > 0, "Rule.*math domain|Rule.*nonnegative"),
        (lambda q, k: q.speaker == k.speaker, "Rule reads the field 'speaker'.*segment, index"),
        (lambda q, k: (q.index >= k.index) & (q.speaker == k.speaker), "Rule reads the field 'speaker'"),
        (lambda q, k: (torch.gcd(q.index, k.index) > 1) & (q.speaker == k.speaker), "Rule reads the field 'speaker'"),
    ],
)
def test_a_predicate_that_is_none_is_named_whatever_the_length(mask_of, length, function, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        mz.plan(mask_of(function), mz.Positions.tokens(length))
    with pytest.raises(ValueError, match=f"(?s){message}"):
        mz.plan(mz.masks.Causal() | ~mask_of(function), mz.Positions.tokens(length))


COUNTER = iter(range(10**9))
IMPURE = {
    "random": lambda q, k: torch.rand(torch.broadcast_shapes(q.index.shape, k.index.shape)) < 0.5,
    "one random number": lambda q, k: (q.index >= k.index) & (torch.rand(()) < 0.5),
    "places counted anew": lambda q, k: torch.arange(q.index.shape[1])[:, None] >= torch.arange(k.index.shape[2]),
    "counts the keys it is asked for": lambda q, k: q.index - k.index < k.index.shape[2],
    "looks at the whole": lambda q, k: k.index > q.index.max() - 3,
    "the first is not the rest": lambda q, k: q.index[:1] >= k.index[:1],
    "a running sum": lambda q, k: (k.index % 2).cumsum(-1) % 2 == q.index % 2,
    "a counter": lambda q, k: (q.index >= k.index) & (next(COUNTER) % 2 == 0),
    "keys sorted": lambda q, k: k.index.flip(-1) > q.index,
}


@pytest.mark.parametrize("length", [12, 300])
@pytest.mark.parametrize("name", IMPURE)
def test_a_predicate_that_is_no_function_of_the_pair_is_found_out(mask_of, length, name):
    with warnings.catch_warnings(), pytest.raises(ValueError, match=r"Rule.*(function of the pair|broadcast|sequence)"):
        warnings.simplefilter("ignore")
        mz.plan(mz.masks.Causal() & mask_of(IMPURE[name]), mz.Positions.tokens([length, length - 2]))


LARGE = 2**62
OVERFLOWING = {
    "times": (lambda q, k: q.index * 2**40 > k.big, LARGE // 2),
    "sum": (lambda q, k: q.big + k.big > 0, LARGE - 1),
    "sum of three": (lambda q, k: q.big + k.big + q.big + k.big >= 0, LARGE // 2),
    "difference": (lambda q, k: q.big - (-k.big) > 0, LARGE - 1),
    "product": (lambda q, k: q.big * k.big > 0, 2**32),
    "shift": (lambda q, k: q.big << 20 > 0, 2**50),
    "negative": (lambda q, k: -5 * q.big < k.big, -LARGE // 2),
    "in one branch": (lambda q, k: torch.where(q.index > 3, q.big * 4, 0) > 0, LARGE // 2),
    "only compared": (lambda q, k: q.big >= k.big, 2**63 - 1),
    "only compared, below": (lambda q, k: q.big >= k.big, -(2**63)),
    "a huge factor": (lambda q, k: q.index * 2**70 > k.index, 1),
}


@pytest.mark.parametrize("name", OVERFLOWING)
@pytest.mark.parametrize("length", [3, 300])
def test_numbers_that_do_not_fit_are_an_error_and_never_wrap(mask_of, name, length):
    function, largest = OVERFLOWING[name]
    index = torch.arange(length) * (2**30 if name == "times" else 1)
    at = mz.Positions(index=index, big=[*[0] * (length - 1), largest])
    with pytest.raises(ValueError, match="Rule"):
        mz.plan(mask_of(function), at)


@pytest.mark.parametrize("rule", ["window(3)", "dilated(3, 2)", "strided(5)", "wait_k(2)", "random(0.5)", "causal"])
@pytest.mark.parametrize("index", [-(2**63), 2**63 - 1, 2**62])
def test_built_in_rules_do_not_wrap_either(rule, index):
    for length in (3, 300):
        at = mz.Positions(index=[index, *range(length - 1)])
        with pytest.raises(ValueError, match="2⁶²"):
            mz.plan(rule, at)


@pytest.mark.parametrize("index", [2**31, -(2**40), 2**61, -(2**61)])
@pytest.mark.parametrize(
    "rule", ["causal", "window(3)", "dilated(3, 2)", "strided(5)", "block(7)", "prefix(4)", "full"]
)
def test_built_in_rules_read_large_indices_as_small_ones(read_short, rule, index):
    small, large = mz.Positions(index=torch.arange(300)), mz.Positions(index=torch.arange(300) + index // 7 * 7)
    plan = read_short(False, rule, large)
    assert torch.equal(plan.visible, read_short(True, rule, large).visible)
    if rule != "prefix(4)":
        assert torch.equal(plan.visible, read_short(True, rule, small).visible)


@pytest.mark.parametrize("largest", [2**40, -(2**40), 2**61, -(2**61)])
def test_large_numbers_that_fit_are_computed_exactly(assert_read_alike, mask_of, largest):
    big = largest + torch.arange(300) * 3
    at = mz.Positions(index=torch.arange(300) - 2**33, big=big)
    plan = assert_read_alike(mask_of(lambda q, k: q.big - k.big > 2 * (q.index - k.index) + 9), at)
    expected = (big[:, None] - big) > 2 * (torch.arange(300)[:, None] - torch.arange(300)) + 9
    assert torch.equal(plan.visible[0, 0], expected)


def test_masks_for_another_batch_are_named():
    with pytest.raises(ValueError, match=r"dense\(\[3, 4, 4\]\).*batch of 3.*have 2"):
        mz.plan(Dense(torch.ones(3, 4, 4).bool()), mz.Positions.tokens([4, 3]))
    with pytest.raises(ValueError, match=r"dense\(\[5, 4\]\).*5 queries and 4 keys"):
        mz.plan(Dense(torch.ones(5, 4).bool()), mz.Positions.tokens(4))
    with pytest.raises(ValueError, match=r"batch 2 and key positions batch 3"):
        mz.plan("causal", mz.Positions.tokens([4, 3]), k_at=mz.Positions.tokens([4, 3, 2]))


def test_plans_that_no_batch_changes_are_made_once(mask_of):
    at = mz.Positions.tokens(5000)
    plan = mz.plan("causal & window(64)", at)
    assert mz.plan("causal & window(64)", mz.Positions.tokens([5000, 5000])) is plan
    assert mz.plan(mz.masks.Causal() & mz.masks.Window(64), mz.Positions.tokens(5000), heads=4) is plan
    assert mz.plan("causal & window(65)", at) is not plan
    assert mz.plan("causal & window(64)", at, k_at=mz.Positions.tokens(5000), align="start") is not plan
    rules = [mask_of(lambda q, k: q.index >= k.index), mask_of(lambda q, k: q.index > k.index)]
    assert [int(mz.plan(rule, at).empty is None) for rule in rules] == [1, 0]


@pytest.mark.parametrize(
    ("rule", "at"),
    [
        ("causal & window(256)", mz.Positions.tokens(2500)),
        ("stack(causal, window(64))", mz.Positions.packed([[500, 900], [1400]])),
        (Pairs(torch.randint(0, 2000, (2, 3000))), mz.Positions.tokens(2000)),
    ],
)
def test_plans_travel_in_small_files(rule, at):
    plan = mz.plan(rule, at)
    written = pickle.dumps(plan)
    assert len(written) < 2**18
    assert not plan.visible.all()
    assert len(pickle.dumps(plan)) < 2**18
    for other in (pickle.loads(written), copy.deepcopy(plan), plan.to("cpu")):
        assert torch.equal(other.visible, plan.visible)
        assert torch.equal(codes(other.tiles), codes(plan.tiles)) and torch.equal(other.pairs.key, plan.pairs.key)
        assert (other.rule, other.form, other.kernel, other.density) == (
            plan.rule,
            plan.form,
            plan.kernel,
            plan.density,
        )
        assert "kernel" in other.explain()


def run_limited(code):
    """Code in a process that may take 1 GiB of memory beyond what the imports take; what it prints."""
    start = """
        import resource
        import torch
        import maskzoo as mz
        torch.set_num_threads(1)
        mz.plan("causal & window(2)", mz.Positions.tokens(300)), torch.unique(torch.zeros(2, 2), dim=0)

        def used():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

        before = used()
    """
    end = """
        assert used() - before < 1024, f"{used() - before} MiB"
    """
    program = "".join(textwrap.dedent(part) for part in (start, code, end))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_long_window_and_many_documents_fit_in_a_gibibyte():  # case B15
    printed = run_limited("""
        window = mz.plan("causal & window(256)", mz.Positions.tokens(96_000))
        print(len(window.tiles.patterns), int(window.visibility.seen.sum()))
        lengths = [1 + n * 7919 % 799 for n in range(2000)]
        packed = mz.plan("causal", mz.Positions.packed(lengths))
        print(packed.query_length, int(packed.visibility.seen.sum()) == sum(n * (n + 1) // 2 for n in lengths))
        chosen = mz.plan("random(0.5)", mz.Positions.tokens(4096))
        print(len(chosen.tiles.patterns), round(chosen.density, 2))
    """)
    length = sum(1 + n * 7919 % 799 for n in range(2000))
    assert length > 790_000
    assert printed.split() == ["2", str(96_000 * 256 - 255 * 128), str(length), "True", "4096", "0.5"]


def test_a_rule_with_too_many_edges_says_so_before_memory_is_gone():
    rules = ["random(0.5)", "causal & random(0.01)", "dilated(100_000, 9)"]
    printed = run_limited(f"""
        for rule in {rules}:
            try:
                mz.plan(rule, mz.Positions.tokens(2**20))
            except ValueError as error:
                print(error)
    """)
    for rule, line in zip(rules, printed.splitlines(), strict=True):
        assert line.startswith(f"the rule {mz.masks.parse(rule)!r} & padding") and "partly visible" in line


def test_each_bit_of_a_pattern_stands_for_a_pair():
    patterns = unpacked(mz.plan("causal", mz.Positions.tokens(512)).tiles.patterns)
    assert torch.equal(patterns, torch.ones(1, 64, 64, dtype=torch.bool).tril())
    assert making.TILE == 64


def test_a_rule_that_changes_what_it_reads_changes_nothing_else(mask_of):
    at = mz.Positions.tokens(5)
    meddling = mask_of(lambda q, k: q.slot.add_(3) + q.index.mul_(0) >= k.slot + 3)
    assert torch.equal(mz.plan(meddling & mz.masks.Causal(), at).visible, mz.plan("causal", at).visible)
    assert at.index.tolist() == [[0, 1, 2, 3, 4]]
