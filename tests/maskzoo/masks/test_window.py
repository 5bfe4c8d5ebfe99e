from maskzoo import Positions, plan
from maskzoo.masks import Window


def test_size_counts_the_query_itself() -> None:  # case B12
    visible = plan("window(3)", Positions.tokens(8)).visible[0, 0]
    assert visible.sum(1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3]
    assert visible.diagonal().all()


def test_both_sides_reach_as_far_ahead_as_back() -> None:
    visible = plan("window(3, both_sides=True)", Positions.tokens(8)).visible[0, 0]
    assert visible.sum(1).tolist() == [3, 4, 5, 5, 5, 5, 4, 3]
    assert (visible == visible.T).all()


def test_booleans_are_written_by_name() -> None:
    assert repr(Window(3, True)) == "window(3, both_sides=True)"
    assert repr(Window(3, both_sides=False)) == "window(3)"
