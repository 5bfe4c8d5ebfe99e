import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo import Mask
from maskzoo.masks import Sinks, Window, parse


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("causal", "causal"),
        ("causal()", "causal"),
        ("  causal\n", "causal"),
        ("causal & window(256)", "causal & window(256)"),
        ("causal&(window(size=256)|sinks(4))", "causal & (window(256) | sinks(4))"),
        ("~causal | window(2)", "~causal | window(2)"),
        ("~(causal | full)", "~(causal | full)"),
        ("(causal & full) | full", "causal & full | full"),
        ("causal & (full & window(2))", "causal & full & window(2)"),
        ("random(1e-3, seed=2)", "random(0.001, 2)"),
        ("stack(causal, ~full)", "stack(causal, ~full)"),
    ],
)
def test_text_is_written_back_in_one_form(text: str, written: str) -> None:
    assert repr(parse(text)) == written
    assert parse(written) == parse(text)


def test_a_mask_is_its_own_text_form() -> None:
    mask = Window(3) & Sinks(1)
    assert parse(mask) is mask


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a rule such as"),
        ("  ", "must be a rule such as"),
        ("casual", "Did you mean 'causal'"),
        ("causal & windw(3)", "Did you mean 'window'"),
        ("window(sise=3)", "no parameter 'sise'. Did you mean 'size'"),
        ("window", "window: missing a required argument: 'size'. It is written window(size, both_sides)"),
        ("window(1, 2, 3)", "too many positional arguments"),
        ("window(3, size=3)", "multiple values"),
        ("causal(3)", "It is written causal()"),
        ("causal &", "cannot be read"),
        ("causal window(3)", "cannot be read"),
        ("(causal", "cannot be read"),
        ("causal and window(3)", "combine masks with &, | and ~"),
        ("not causal", "combine masks with &, | and ~"),
        ("causal + full", "a mask is written like"),
        ("causal ^ full", "is no rule"),
        ("causal if full else full", "is no rule"),
        ("3", "is no rule"),
        ("'causal'", "is no rule"),
        ("[causal]", "is no rule"),
        ("-causal", "is no rule"),
        ("causal == full", "is no rule"),
        ("stack()", "at least one rule"),
        ("stack(rules=causal)", "no keywords"),
        ("stack(*[causal])", "is no rule"),
        ("window(**{'size': 3})", "** is not read"),
        ("window(*[3])", "is no literal"),
        ("window(2 ** 3)", "is no literal"),
        ("window(causal)", "is no literal"),
        ("window(None)", "is no literal"),
        ("window(f'{3}')", "is no literal"),
    ],
)
def test_what_is_no_rule_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("given", [None, 3, b"causal", ["causal"], {"mask": "causal"}])
def test_what_is_no_text_is_named(given: object) -> None:
    with pytest.raises(ValueError, match="must be a rule such as"):
        parse(given)


HOSTILE = [
    "__import__('pathlib').Path({path!r}).touch()",
    "open({path!r}, 'w')",
    "exec(\"open({path!r}, 'w')\")",
    "window(open({path!r}, 'w'))",
    "window(size=__import__('os').system('touch ' + {path!r}))",
    "causal.__class__.__init__.__globals__['__builtins__']['open']({path!r}, 'w')",
    "causal & (lambda: open({path!r}, 'w'))()",
    "[open({path!r}, 'w') for _ in (1,)]",
    "(x := open({path!r}, 'w'))",
    "window(f\"{{open({path!r}, 'w')}}\")",
    "stack(open({path!r}, 'w'))",
    "causal[open({path!r}, 'w')]",
    "window(9 ** 9 ** 9)",
    "window('x' * 10 ** 10)",
    "import os",
    "causal; import os",
    "await causal",
    "yield causal",
    "causal\x00",
    "\ud800",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_never_executed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "written"
    with pytest.raises(ValueError):
        parse(text.format(path=str(path)))
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    [
        "~" * 4000 + "causal",
        "~" * 1500 + "causal",
        "(" * 1000 + "causal" + ")" * 1000,
        "~(" * 190 + "causal" + ")" * 190,
        "causal & (" * 350 + "full" + ")" * 350,
        "causal & (full | (" * 150 + "full" + "))" * 150,
        "causal" + ".x" * 2000,
        "causal" + "()" * 2000,
        "stack(" * 500 + "causal" + ")" * 500,
        "window(" + "[" * 1500 + "]" * 1500 + ")",
        "window(" + "-" * 4000 + "1)",
        "window(" + "9" * 4000 + ")",
        "causal & " * 450 + "causal",
        "causal + " * 450 + "causal",
        "(" * 190 + "causal" + " & full) | full)" * 95,
        "(" * 40 + "causal" + " & full) | full)" * 20,
        "|".join(["causal"] * 10_000),
        "&".join(["~causal", "full"] * 5_000),
    ],
)
def test_deep_and_long_text_gives_a_rule_or_a_clear_error(text: str) -> None:
    depth = sys.getrecursionlimit()
    try:
        mask = parse(text)
    except ValueError as error:
        assert 0 < len(str(error)) < 5000
    else:
        assert isinstance(mask, Mask) and parse(repr(mask)) == mask
    assert sys.getrecursionlimit() == depth


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="causl window(3)&|~,=*[]'\"._:\n\tλ", max_size=40))
def test_any_text_gives_a_rule_or_a_value_error(text: str) -> None:
    try:
        assert isinstance(parse(text), Mask)
    except ValueError as error:
        assert str(error)
