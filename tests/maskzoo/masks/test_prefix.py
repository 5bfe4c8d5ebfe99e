from maskzoo import Positions, plan


def test_prefix_is_read_both_ways_and_the_rest_is_causal() -> None:
    visible = plan("prefix(3)", Positions.tokens(6)).visible[0, 0].int().tolist()
    assert visible == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1],
    ]


def test_prefix_is_causal_or_sinks() -> None:
    at = Positions.packed([9, 4, 1])
    assert plan("prefix(3)", at).visible.equal(plan("causal | sinks(3)", at).visible)
    assert plan("prefix(0)", at).visible.equal(plan("causal", at).visible)
