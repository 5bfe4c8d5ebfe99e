"""Rules read by blocks hold exactly the pairs that they hold one by one."""

import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import maskzoo as mz
from maskzoo.kernels import tiles as tiles_of
from maskzoo.planning import reading
from maskzoo.planning.assembling import assembled
from maskzoo.planning.effective import effective
from maskzoo.planning.reading import Reader

NUMBERS = torch.randint(-9, 10, (64,), generator=torch.Generator().manual_seed(1))
FLAGS = torch.randint(0, 2, (64,), generator=torch.Generator().manual_seed(2)).bool()
KINDS = torch.randint(0, 3, (5, 5), generator=torch.Generator().manual_seed(3))
ALLOWED = torch.randint(0, 2, (5, 5), generator=torch.Generator().manual_seed(4)).bool()
NAMES = ("index", "segment", "slot", "row", "col", "kind", "far", "below", "sequence")
SCOPE = {"torch": torch, "numbers": NUMBERS, "flags": FLAGS, "kinds": KINDS, "allowed": ALLOWED}

SMALL = st.integers(-9, 70)
DIVISOR = st.sampled_from([1, 2, 3, 5, 8, 16, 64, -1, -3])
APART = ["(q.index - k.index)", "(q.slot - k.slot)", "(q.row - k.row)", "(2 * q.index - k.slot)", "(q.far - k.far)"]
NUMBER_FORMS = [
    *("({a} + {b})", "({a} + {n})", "({a} - {b})", "({n} - {a})", "({a} * {few})", "({a} // {by})", "({a} % {by})"),
    *("torch.div({a}, {by}, rounding_mode='trunc')", "({a}).abs()", "-({a})", "~({a})", "({a}).clamp({n}, {m})"),
    *(
        "torch.minimum({a}, {b})",
        "torch.maximum({a}, {b})",
        "torch.where({t}, {a}, {b})",
        "({t}).long()",
        "(({t}) * {a})",
    ),
    *("(({a}).abs() & {bits})", "(({a}).abs() | {bits})", "(({a}).abs() ^ {bits})", "(({a}).abs() & {b})"),
    *("(({a}).abs() | ({b}).abs())", "(({a}).abs() ^ ({b}).abs())", "(({a}) << {shift})", "(({a}) >> {shift})"),
    *("numbers[({a}).abs() % 64]", "torch.take(numbers, ({a}) % 64)", "kinds[q.kind, k.kind]", "(({t}) + {a})"),
]
TRUTH_FORMS = [
    *("({a} < {b})", "({a} <= {b})", "({a} > {n})", "({a} >= {b})", "({a} == {b})", "({a} != {n})", "({a} < {n})"),
    *("flags[({a}).abs() % 64]", "allowed[q.kind, k.kind]", "allowed[k.kind, q.kind]", "({a} % {by} == 0)"),
    *("({t} & {u})", "({t} & {u})", "({t} | {u})", "({t} ^ {u})", "~({t})", "torch.where({t}, {u}, {t})"),
    *("({t} == {u})", "(({t}) + ({u}))", "(({t}) * ({u}))", "torch.logical_xor({a}, {t})"),
]


@st.composite
def number(draw, depth):
    """An expression whose value is an integer, as text."""
    if depth <= 0:
        return draw(st.sampled_from([*APART, *(f"{side}.{name}" for side in "qk" for name in NAMES)]))
    return filled(draw, draw(st.sampled_from(NUMBER_FORMS)), depth)


@st.composite
def truth(draw, depth):
    """An expression whose value is a truth value, as text."""
    flat = [form for form in TRUTH_FORMS if "{t}" not in form]
    return filled(draw, draw(st.sampled_from(flat if depth <= 0 else TRUTH_FORMS)), depth)


def filled(draw, form, depth):
    """A form with fresh expressions in its places."""
    makers = {
        **{"a": number(depth - 1), "b": number(depth - 1), "t": truth(depth - 1), "u": truth(depth - 1)},
        **{"n": SMALL, "m": SMALL, "few": st.integers(-4, 4), "by": DIVISOR},
        **{"bits": st.integers(0, 70), "shift": st.integers(0, 4)},
    }
    return form.format(**{name: draw(maker) for name, maker in makers.items() if f"{{{name}}}" in form})


def predicate(text):
    return eval(f"lambda q, k: {text}", SCOPE)


def field_values(kind, batch, length, generator):
    """[B, T] that rises, repeats, stands still or jumps."""
    slot = torch.arange(length).expand(batch, -1)
    noise = torch.randint(-9, 10, (batch, length), generator=generator)
    return {
        "still": torch.full((batch, length), 3),
        "rising": slot - 5,
        "falling": 7 - 2 * slot,
        "repeating": slot % 10,
        "steps": slot // 9,
        "noise": noise,
        "blocks": noise[:, slot[0] // 16],
        "huge": noise * 2**37 + slot,
    }[kind]


@st.composite
def positions(draw, batch=None):
    """Positions of every make, with custom fields, negative and large ones among them."""
    batch = draw(st.integers(1, 3)) if batch is None else batch
    make = draw(st.sampled_from(["tokens", "left", "packed", "grid", "stated"]))
    length = draw(st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 40, 63, 64, 65, 90]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    lengths = torch.randint(0, length + 1, (batch, 3), generator=generator).tolist()
    if make in ("tokens", "left"):
        side = "left" if make == "left" else "right"
        at = mz.Positions.tokens([row[0] for row in lengths], padded_to=length, side=side)
    elif make == "packed":
        at = mz.Positions.packed([[one // 4 for one in row] + [1] for row in lengths], padded_to=length + 2)
    elif make == "grid":
        at = mz.Positions.grid(-(-length // 8), min(8, length), batch=batch)
    else:
        at = mz.Positions(
            index=field_values(draw(st.sampled_from(["noise", "falling", "blocks"])), batch, length, generator)
        )
    kinds = st.sampled_from(["still", "rising", "falling", "repeating", "steps", "noise", "blocks"])
    fields = {
        name: field_values(draw(kinds), at.batch, at.length, generator)
        for name in ("row", "col")
        if name not in at.fields
    }
    return at.with_fields(
        **fields,
        kind=field_values(draw(kinds), at.batch, at.length, generator) % 5,
        far=field_values("huge", at.batch, at.length, generator),
        below=field_values(draw(kinds), at.batch, at.length, generator) - 100,
    )


def tiles_read(reader):
    group = torch.arange(reader.batch)[:, None]
    return assembled([reader.decided()], group, reader.batch, reader.tile, reader.queries, reader.keys)


def assert_same_pairs(reader):
    tiles = tiles_read(reader)
    dense = reader.dense()
    assert torch.equal(tiles_of.visible(tiles)[:, 0], dense)
    return tiles


OFTEN = settings(
    deadline=None,
    max_examples=120,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


@OFTEN
@given(
    text=truth(3),
    data=st.data(),
    tile=st.sampled_from([8, 8, 16, 64]),
    first_blocks=st.sampled_from([1, 4, 2**12]),
    at_once=st.sampled_from([64, 2**18]),
    with_segments=st.booleans(),
)
def test_any_rule_read_by_blocks_is_the_rule(mask_of, text, data, tile, first_blocks, at_once, with_segments):
    q_at = data.draw(positions())
    k_at = q_at if data.draw(st.booleans()) else data.draw(positions(q_at.batch))
    mask = mask_of(predicate(text), needs_sequence=True)
    mask = effective(mask) if with_segments else mask
    batch = max(q_at.batch, k_at.batch)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(reading, "FIRST_BLOCKS", first_blocks)
        patch.setattr(reading, "BLOCKS_AT_ONCE", at_once)
        patch.setattr(reading, "TILES_AT_ONCE", at_once)
        patch.setattr(reading, "PAIRS_AT_ONCE", max(at_once, tile**2))
        patch.setattr(reading, "_said", set())
        reader = Reader(mask, text, q_at, k_at, batch, tile)
        try:
            reader.check()
        except ValueError as error:
            assert "2⁶²" in str(error)
            return
        # What a table may be asked for is not always known, and says so.
        warnings.filterwarnings("ignore", message=".*index|.*negative")
        assert_same_pairs(reader)


LENGTHS = st.sampled_from([1, 2, 63, 64, 65, 127, 128, 129, 257])


@settings(OFTEN, max_examples=60)
@given(
    text=truth(2),
    lengths=st.lists(LENGTHS, min_size=1, max_size=3),
    keys=st.one_of(st.none(), LENGTHS),
    seed=st.integers(0, 99),
)
def test_any_rule_planned_by_tiles_is_the_rule(mask_of, assert_read_alike, text, lengths, keys, seed):
    generator = torch.Generator().manual_seed(seed)

    def with_all_fields(at):
        kinds = ["rising", "steps", "repeating", "noise"]
        names = ("row", "col", "kind", "far", "below")
        chosen = {name: kinds[int(torch.randint(0, 4, (), generator=generator))] for name in names} | {"far": "huge"}
        fields = {name: field_values(kind, at.batch, at.length, generator) for name, kind in chosen.items()}
        return at.with_fields(**{**fields, "kind": fields["kind"] % 5})

    q_at = with_all_fields(mz.Positions.tokens(lengths, side="left" if seed % 2 else "right"))
    k_at = None if keys is None else with_all_fields(mz.Positions.tokens([keys] * len(lengths)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plan = assert_read_alike(mask_of(predicate(text), needs_sequence=True), q_at, k_at=k_at)
        except ValueError as error:
            assert "2⁶²" in str(error)
            return
    rows, pairs = plan.visible.sum(-1), plan.pairs
    assert torch.equal(plan.visibility.seen, rows) and pairs.start.diff().view(-1, plan.query_length)[
        pairs.group
    ].equal(rows)


def test_blocks_of_every_level_are_decided_as_their_pairs_are(mask_of):
    rule = mask_of(lambda q, k: ((q.index - k.index) % 40 < 30) & (k.index // 64 != 3) | (q.index < 70))
    at = mz.Positions.tokens([600, 413])
    reader = Reader(effective(rule), "rule", at, at, 2, 8)
    dense = reader.dense()
    for level in range(4):
        size = 8**level * 8
        count = -(-600 // size)
        blocks = torch.cartesian_prod(torch.arange(2), torch.arange(count), torch.arange(count)).T
        full, undecided = reader._sorted_out(level, [blocks])
        said = torch.zeros(2, count, count, dtype=torch.int64)
        said[tuple(full[1:])], said[tuple(undecided)] = 2, 1
        for (sequence, i, j), one in zip(blocks.T.tolist(), said.flatten().tolist(), strict=True):
            block = dense[sequence, i * size : (i + 1) * size, j * size : (j + 1) * size]
            assert one == 1 or bool((block == (one == 2)).all())
        assert level > 1 or (bool((said == 2).any()) and bool((said == 0).any()))
