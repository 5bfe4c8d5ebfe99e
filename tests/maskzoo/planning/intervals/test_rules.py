"""Every interval rule against the operation of torch that it stands for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.planning.intervals import LARGEST, Bounds, NoIntervalRule, Trace, Value
from maskzoo.planning.intervals.bounds import RULES
from maskzoo.planning.intervals.tables import Extremes

TABLE = torch.randint(-50, 50, (101,), generator=torch.Generator().manual_seed(1))
FLAGS = TABLE % 3 == 0
SQUARE = torch.randint(-9, 9, (11, 11), generator=torch.Generator().manual_seed(2))


def place(x, size):
    return x.abs() % size


# Operations of two integer operands a, b.
INTEGERS = {
    "a + b": lambda a, b: a + b,
    "a + 7": lambda a, b: a + 7,
    "3 + a": lambda a, b: 3 + a,
    "add, alpha": lambda a, b: torch.add(a, b, alpha=-3),
    "a - b": lambda a, b: a - b,
    "5 - a": lambda a, b: 5 - a,
    "sub, alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "rsub": lambda a, b: torch.rsub(a, b),
    "rsub, alpha": lambda a, b: torch.rsub(a, 4, alpha=3),
    "a - a": lambda a, b: a - a,
    "a * b": lambda a, b: a * b,
    "a * -3": lambda a, b: a * -3,
    "0 * a": lambda a, b: 0 * a,
    "-a": lambda a, b: -a,
    "abs": lambda a, b: (a - b).abs(),
    "a // 7": lambda a, b: a // 7,
    "a // -7": lambda a, b: a // -7,
    "div, floor": lambda a, b: torch.div(a, 5, rounding_mode="floor"),
    "div, trunc": lambda a, b: torch.div(a, 5, rounding_mode="trunc"),
    "div, trunc, negative": lambda a, b: torch.div(a, -5, rounding_mode="trunc"),
    "a % 7": lambda a, b: a % 7,
    "a % -7": lambda a, b: a % -7,
    "a % 1": lambda a, b: a % 1,
    "a << 3": lambda a, b: a << 3,
    "left shift": lambda a, b: torch.bitwise_left_shift(a, 2),
    "a >> 2": lambda a, b: a >> 2,
    "right shift": lambda a, b: torch.bitwise_right_shift(a, 1),
    "minimum": lambda a, b: torch.minimum(a, b),
    "min": lambda a, b: torch.min(a, b),
    "maximum": lambda a, b: torch.maximum(a, b),
    "max": lambda a, b: torch.max(a, b),
    "clamp": lambda a, b: a.clamp(-3, 10),
    "clamp, crossed": lambda a, b: a.clamp(10, -3),
    "clamp, below": lambda a, b: a.clamp(min=2),
    "clamp, above": lambda a, b: a.clamp(max=2),
    "clamp by tensors": lambda a, b: torch.clamp(a, min=b, max=b + 9),
    "clamp_min": lambda a, b: torch.clamp_min(a, 4),
    "clamp_max": lambda a, b: torch.clamp_max(a, 4),
    "clip": lambda a, b: torch.clip(a, 0, 5),
    "a & 7": lambda a, b: a & 7,
    "a & b, one side not negative": lambda a, b: a & b.abs(),
    "a | b": lambda a, b: a.abs() | b.abs(),
    "a ^ b": lambda a, b: a.abs() ^ b.abs(),
    "~a": lambda a, b: ~a,
    "where": lambda a, b: torch.where(a > b, a - 3, b * 2),
    "where, on an integer": lambda a, b: torch.where((a % 3).bool(), a, 4),
    "truth as a number": lambda a, b: (a > b).long() * 5 + (b > 3).to(torch.int64),
    "truth times number": lambda a, b: (a > b) * a,
    "truth plus number": lambda a, b: (a > b) + a,
    "ones_like": lambda a, b: torch.ones_like(a) + b,
    "zeros_like": lambda a, b: torch.zeros_like(a) + b,
    "clone": lambda a, b: a.clone() + b,
    "detach": lambda a, b: a.detach() + b,
    "table[a]": lambda a, b: TABLE[place(a, 101)] + b,
    "take": lambda a, b: torch.take(TABLE, place(a, 101)),
    "square[a, b]": lambda a, b: SQUARE[place(a, 11), place(b, 11)],
    "square[a, 3]": lambda a, b: SQUARE[place(a, 11), torch.zeros_like(b)],
}
TRUTHS = {
    "a >= b": lambda a, b: a >= b,
    "a > b": lambda a, b: a > b,
    "a <= b": lambda a, b: a <= b,
    "a < b": lambda a, b: a < b,
    "a == b": lambda a, b: a == b,
    "a != b": lambda a, b: a != b,
    "a == 3": lambda a, b: a == 3,
    "3 != a": lambda a, b: a != 3,
    "a >= 2.5": lambda a, b: a >= 2.5,
    "a > inf": lambda a, b: a > float("inf"),
    "a == nan": lambda a, b: a == float("nan"),
    "and": lambda a, b: (a > 3) & (b < 2),
    "or": lambda a, b: (a > 3) | (b < 2),
    "xor": lambda a, b: (a > 3) ^ (b < 2),
    "xor of one": lambda a, b: (a > b) ^ (a > b),
    "not": lambda a, b: ~(a > b),
    "and True": lambda a, b: (a > b) & True,
    "logical_and": lambda a, b: torch.logical_and(a, b),
    "logical_or": lambda a, b: torch.logical_or(a, b > 2),
    "logical_xor": lambda a, b: torch.logical_xor(a, b),
    "logical_not": lambda a, b: torch.logical_not(a),
    "bool of a number": lambda a, b: a.bool() & (b > 1),
    "truth equal truth": lambda a, b: (a > 3) == (b > 3),
    "truth less than truth": lambda a, b: (a > 3) < (b > 3),
    "truth plus truth": lambda a, b: ((a > 3) + (b > 3)) == 2,
    "truth times truth": lambda a, b: (~((a > 3) * (b > 3))) == 1,
    "truth minimum truth": lambda a, b: torch.minimum(a > 3, b > 3),
    "truth & number": lambda a, b: ((a > 3) & 3) == 1,
    "where of truths": lambda a, b: torch.where(a > 2, b > 2, b < -2),
    "flags[a]": lambda a, b: FLAGS[place(a, 101)] & (b > 0),
    "ones_like, truth": lambda a, b: torch.ones_like(a, dtype=torch.bool) & (b > 0),
    "zeros_like, truth": lambda a, b: torch.zeros_like(a > 3) | (b > 0),
}


def operand(name, low, high, trace=None):
    form = (((name, "index"), 1),)
    value = Value(low[:, None, None], high[:, None, None], form, frozenset([form]))
    return Bounds(value, trace or Trace())


def intervals(count, generator, reach=40):
    """Wide, narrow and single-valued ones."""
    middle = torch.randint(-reach, reach + 1, (count,), generator=generator)
    width = torch.randint(0, reach, (count,), generator=generator) * torch.randint(0, 2, (count,), generator=generator)
    width = torch.where(torch.arange(count) % 3 == 0, width.clamp(max=2), width)
    return middle, middle + width


def every_element(low, high):
    """All values of intervals, int64 [P, n]; the last stands again where an interval is shorter."""
    return torch.minimum(low[:, None] + torch.arange(int((high - low).max()) + 1), high[:, None])


def both(function, a, b):
    """What bounds say and what is true, of two operands given as intervals (low, high)."""
    said = function(operand("q", *a), operand("k", *b)).value
    real = function(every_element(*a)[:, :, None], every_element(*b)[:, None, :])
    return said, torch.broadcast_to(real, (len(a[0]), real.shape[1], real.shape[2])).flatten(1)


@pytest.mark.parametrize("name", [*INTEGERS, *TRUTHS])
def test_every_value_lies_within_the_bounds(name):
    generator = torch.Generator().manual_seed(len(name))
    function = {**INTEGERS, **TRUTHS}[name]
    said, real = both(function, intervals(300, generator), intervals(300, generator))
    assert said.low.dtype == said.high.dtype == real.dtype
    assert bool((said.low.flatten() <= real.amin(1)).all())
    assert bool((said.high.flatten() >= real.amax(1)).all())


EXACT = [
    *("a + b", "a + 7", "a - b", "5 - a", "a * b", "a * -3", "-a", "abs", "a // 7", "a // -7", "div, trunc", "~a"),
    *("minimum", "maximum", "clamp", "a << 3", "a >> 2", "take"),
    *("a >= b", "a > b", "a <= b", "a < b", "a == b", "a != b", "a == 3", "and", "or", "xor", "not"),
]


@pytest.mark.parametrize("name", EXACT)
def test_bounds_are_reached(name):
    generator = torch.Generator().manual_seed(len(name))
    function = {**INTEGERS, **TRUTHS}[name]
    if name == "take":
        function = lambda a, b: torch.take(TABLE, a + 50)  # noqa: E731
    said, real = both(function, intervals(300, generator, 25), intervals(300, generator, 25))
    assert said.low.flatten().tolist() == real.amin(1).tolist()
    assert said.high.flatten().tolist() == real.amax(1).tolist()


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 64, -1, -5])
def test_remainders_are_exact_within_one_turn_and_sound_beyond(divisor):
    low, high = (x.flatten() for x in torch.meshgrid(torch.arange(-15, 16), torch.arange(-15, 16), indexing="ij"))
    low, high = low[low <= high], high[low <= high]
    said, real = both(lambda a, b: a % divisor, (low, high), (low, low))
    assert bool((said.low.flatten() <= real.amin(1)).all() & (said.high.flatten() >= real.amax(1)).all())
    one_turn = low.div(divisor, rounding_mode="floor") == high.div(divisor, rounding_mode="floor")
    assert said.low.flatten()[one_turn].tolist() == real.amin(1)[one_turn].tolist()
    assert said.high.flatten()[one_turn].tolist() == real.amax(1)[one_turn].tolist()


ARGUMENTS = [
    lambda a, b: ((a,), {}),
    lambda a, b: ((a, b), {}),
    lambda a, b: ((a, 3), {}),
    lambda a, b: ((a, -5), {}),
    lambda a, b: ((3, a), {}),
    lambda a, b: ((a > 3, b > 3), {}),
    lambda a, b: ((a > 3,), {}),
    lambda a, b: ((a > b, b), {}),
    lambda a, b: ((a, b > 3), {}),
    lambda a, b: ((a.abs(), b.abs()), {}),
    lambda a, b: ((a, -2, 5), {}),
    lambda a, b: ((a,), {"min": -2}),
    lambda a, b: ((a,), {"max": 5}),
    lambda a, b: ((a,), {"min": b, "max": b + 3}),
    lambda a, b: ((a > b, a, b), {}),
    lambda a, b: ((a, a > b, b), {}),
    lambda a, b: ((a > b, a > 1, 0), {}),
    lambda a, b: ((a, b), {"alpha": -3}),
    lambda a, b: ((a, 4), {"alpha": 2}),
    lambda a, b: ((a, 4), {"rounding_mode": "floor"}),
    lambda a, b: ((a, -4), {"rounding_mode": "trunc"}),
    lambda a, b: ((a, torch.int64), {}),
    lambda a, b: ((a, torch.bool), {}),
    lambda a, b: ((a > b, torch.int64), {}),
    lambda a, b: ((a,), {"dtype": torch.bool}),
    lambda a, b: ((a > 2,), {"dtype": torch.int64}),
    lambda a, b: ((TABLE, place(a, 101)), {}),
    lambda a, b: ((FLAGS, place(a, 101)), {}),
    lambda a, b: ((SQUARE, (place(a, 11), place(b, 11))), {}),
]


@pytest.mark.filterwarnings("ignore:This overload of add is deprecated")
@pytest.mark.parametrize("name", RULES)
def test_a_function_or_method_of_this_name_does_what_its_rule_says(name):
    generator = torch.Generator().manual_seed(len(name))
    ends = intervals(200, generator), intervals(200, generator)
    agreed = 0
    for owner in (torch, torch.Tensor):
        function = getattr(owner, name, None)
        for arguments in ARGUMENTS if function is not None else ():

            def call(a, b, function=function, arguments=arguments):
                places, options = arguments(a, b)
                return function(*places, **options)

            try:
                said, real = both(call, *ends)
            except Exception:  # arguments that are none of this function, or that have no rule
                continue
            assert said.low.dtype == real.dtype
            assert bool((said.low.flatten() <= real.amin(1)).all() & (said.high.flatten() >= real.amax(1)).all())
            agreed += 1
    assert agreed


UNKNOWN = {
    "gcd": lambda a, b: torch.gcd(a, b),
    "sum": lambda a, b: a.sum(1, keepdim=True),
    "float": lambda a, b: a.float().sqrt() > 2,
    "true division": lambda a, b: a / 2,
    "division by what varies": lambda a, b: a // b,
    "remainder of what varies": lambda a, b: 5 % a,
    "division by 0": lambda a, b: a // 0,
    "shift by what varies": lambda a, b: 1 << a,
    "shift by less than 0": lambda a, b: a << -1,
    "bits of negative numbers": lambda a, b: a & b,
    "or of negative numbers": lambda a, b: a | b,
    "a float": lambda a, b: a + 0.5,
    "an array": lambda a, b: a + torch.arange(3),
    "an array of one": lambda a, b: a + torch.ones(1, dtype=torch.int64),
    "int32": lambda a, b: a.int(),
    "an index from the end": lambda a, b: TABLE[a - 1000],
    "an index beyond": lambda a, b: TABLE[a + 1000],
    "part of a table": lambda a, b: SQUARE[a.abs() % 11],
    "a table of floats": lambda a, b: TABLE.float()[a.abs() % 11],
    "item": lambda a, b: a.sum().item(),
    "if": lambda a, b: a if (a > 3).any() else b,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_has_no_rule_says_so_instead_of_guessing(name):
    ends = torch.tensor([-20, -5]), torch.tensor([-1, 30])
    with pytest.raises(NoIntervalRule):
        UNKNOWN[name](operand("q", *ends), operand("k", *ends))


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a * 2**23,
        lambda a: a + a,
        lambda a: a * a,
        lambda a: a * a * a,
        lambda a: (a << 30) << 10,
        lambda a: -a * 2**60,
        lambda a: (a // 3) * 2**62,
        lambda a: torch.where(a > 3, a * 2**40, a),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_that_leave_the_range_are_an_error_when_asked(function, sign):
    end = torch.tensor([sign * 2**62])
    low, high = torch.minimum(end, torch.tensor(0)), torch.maximum(end, torch.tensor(0))
    with pytest.raises(OverflowError):
        function(operand("q", low, high, Trace(exact=True)))
    assert isinstance(function(operand("q", low, high)), Bounds)


def test_sums_that_just_leave_the_range_are_an_error():
    ends = torch.tensor([-(2**62)]), torch.tensor([2**62])
    for function in (
        lambda a: a + LARGEST,
        lambda a: a - LARGEST,
        lambda a: a - (-a),
        lambda a: torch.sub(a, a, alpha=3),
    ):
        with pytest.raises(OverflowError):
            function(operand("q", *ends, Trace(exact=True)))
    half = operand("q", ends[0] // 2 + 1, ends[1] // 2 - 1, Trace(exact=True))
    assert int((half + half).value.high) == 2**62 - 2


def test_two_linear_forms_compare_as_their_difference():
    a, b = (operand(name, torch.tensor([0]), torch.tensor([9])) for name in "qk")
    apart = [frozenset([((("k", "index"), -sign), (("q", "index"), sign))]) for sign in (1, -1)]
    for made in (a - b < 3, a < b + 3, a + 5 >= b - 7, (a - b).abs() < 4, (a - b) % 4 == 0):
        assert made.value.forms in apart
    assert (2 * a - b >= 3).value.forms == frozenset([((("k", "index"), -1), (("q", "index"), 2))])
    assert (a - a + 1 == b - b + 1).value.forms == frozenset()
    assert (a // 2 == b // 2).value.forms == frozenset([((("q", "index"), 1),), ((("k", "index"), 1),)])
    assert len((a * b > 2).value.forms) == 2


@settings(deadline=None, max_examples=60)
@given(
    table=st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=70),
    places=st.lists(st.tuples(st.integers(0, 69), st.integers(0, 69)), min_size=1, max_size=20),
)
def test_extremes_of_a_range_are_those_of_its_entries(table, places):
    first = torch.tensor([min(pair) % len(table) for pair in places])
    last = torch.maximum(first, torch.tensor([max(pair) % len(table) for pair in places]))
    low, high = Extremes(torch.tensor(table)).between(first, last)
    for n, (start, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        assert (int(low[n]), int(high[n])) == (min(table[start : stop + 1]), max(table[start : stop + 1]))


def test_bounds_print_what_they_are():
    assert repr(operand("q", torch.tensor([1, 2]), torch.tensor([3, 4]))) == "Bounds([1, 2], [3, 4])"
