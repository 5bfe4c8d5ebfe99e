"""Worked rows of `dilated`, `strided` and `block`, and where they meet other rules."""

from maskzoo import Positions, plan

AT = Positions.tokens(12)


def seen(rule: str, query: int) -> list[int]:
    return plan(rule, AT).visible[0, 0, query].nonzero().flatten().tolist()


def test_dilated_takes_every_step_th_key_back() -> None:
    assert seen("dilated(3, 4)", 10) == [2, 6, 10]
    assert seen("dilated(3, 4)", 5) == [1, 5]


def test_strided_takes_near_keys_and_every_step_th_beyond() -> None:
    assert seen("strided(4)", 11) == [3, 7, 8, 9, 10, 11]


def test_block_sees_its_own_block_whole() -> None:
    assert seen("block(5)", 6) == list(range(10))
    assert seen("block(5)", 4) == list(range(5))


def test_degenerate_parameters_are_known_rules() -> None:
    causal = plan("causal", AT).visible
    assert plan("strided(1)", AT).visible.equal(causal)
    assert plan("block(1)", AT).visible.equal(causal)
    assert plan("dilated(5, 1)", AT).visible.equal(plan("window(5)", AT).visible)


def test_sinks_do_not_imply_causal() -> None:
    assert seen("sinks(4)", 0) == [0, 1, 2, 3]
    assert seen("causal & sinks(4)", 0) == [0]
