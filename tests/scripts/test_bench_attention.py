"""What the benchmark compares is the same rule everywhere, and its measurements say what they claim."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

import maskzoo

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmarks import contestants, kernels, measuring, patterns, plan_building

HEADS = 4
EVERY = {**patterns.PATTERNS, **plan_building.PATTERNS}


@pytest.mark.parametrize("name", EVERY)
def test_mask_mod_and_rule_show_the_same_pairs(name: str) -> None:
    case = EVERY[name](300, HEADS)
    pairs = case.visible(HEADS)
    theirs = create_mask(case.mask_mod, 1, HEADS, 300, 300, device="cpu")
    assert pairs.shape == (1, HEADS if case.per_head else 1, 300, 300)
    assert torch.equal(pairs.expand(1, HEADS, 300, 300), theirs)
    assert torch.equal(maskzoo.plan(case.rule, case.at).visible, pairs)


def test_ratio_is_of_medians_with_the_spread_of_rounds() -> None:
    found = measuring.ratio([4.0, 8.0, 6.0], [2.0, 2.0, 3.0])
    assert (found.of_medians, found.low, found.high) == (3.0, 2.0, 4.0)


def test_contestants_take_turns_and_begin_alternately() -> None:
    seen: list[str] = []
    calls = {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(measuring, "SHORTEST_TURN", 0.0)
        times = measuring.in_turns(calls, rounds=4, seconds=60)
    assert seen == [*"ab", *"ab", *"ba", *"ab", *"ba"]
    assert all(len(each) == 4 and min(each) > 0 for each in times.values())


@pytest.mark.parametrize("pattern", ["window", "documents", "causal"])
@pytest.mark.parametrize("bias", ["relative", "alibi + 0.5 * relative(8, 20) + offset(3)"])
def test_a_gathered_bias_and_ours_have_the_same_result_and_gradients(pattern: str, bias: str) -> None:
    settings = contestants.Settings(batch=2, heads=HEADS, width=8, dtype=torch.float32, gibibytes=1, bias=bias)
    names = ["auto", *contestants.THEIRS_BIASED]
    title, rows = kernels.measured(pattern, 700, names, settings, rounds=1, seconds=0)
    assert bias in title and [row.contestant for row in rows] == names
    for row in rows:
        assert row.times and row.direction == "forward + backward" and row.bias == bias
        assert not row.wrong and row.error is not None and row.error < 1e-3
    case = patterns.PATTERNS[pattern](700, HEADS)
    ready = contestants.prepare("auto", case, settings)
    gradients = kernels._call(ready, *settings.inputs(700))()[4:]
    assert len(gradients) == len(ready.tables) > 0 and all(each.abs().max() > 1e-3 for each in gradients)


def test_a_bias_that_has_no_dense_contestant_is_measured_alone() -> None:
    settings = contestants.Settings(1, HEADS, 8, torch.float32, 1, "distance")
    _, rows = kernels.measured("causal", 300, ["auto", "sdpa_gather"], settings, rounds=1, seconds=0)
    assert rows[0].times and rows[0].error is None
    assert not rows[1].times and "only written for alibi" in rows[1].skipped
