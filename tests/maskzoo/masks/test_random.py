import pytest
import torch

from maskzoo import Positions, plan

LENGTH = 768


def pairs(probability: float, seed: int = 0) -> torch.Tensor:
    return plan(f"random({probability}, {seed})", Positions.tokens(LENGTH)).visible[0, 0]


@pytest.mark.parametrize("probability", [0.01, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_rate_of_the_whole_of_rows_and_of_columns(probability: float, seed: int) -> None:
    visible = pairs(probability, seed).double()
    deviation = (probability * (1 - probability)) ** 0.5
    assert abs(visible.mean().item() - probability) < 5 * deviation / LENGTH
    for rates in (visible.mean(0), visible.mean(1)):
        # The spread of row and column rates is that of independent draws.
        assert rates.std().item() == pytest.approx(deviation / LENGTH**0.5, rel=0.15)
        assert (rates - probability).abs().max() < 6 * deviation / LENGTH**0.5


def test_probability_zero_and_one() -> None:
    assert not pairs(0).any()
    assert pairs(1).all()


@pytest.mark.parametrize("other", ["seed", "transposed", "next query", "next key", "next pair"])
def test_neighbours_seeds_and_directions_are_independent(other: str) -> None:
    one = pairs(0.3, 7).double()
    first, second = {
        "seed": (one, pairs(0.3, 8).double()),
        "transposed": (one.tril(-1), one.T.tril(-1)),
        "next query": (one[1:], one[:-1]),
        "next key": (one[:, 1:], one[:, :-1]),
        "next pair": (one[1:, 1:], one[:-1, :-1]),
    }[other]
    where = torch.ones_like(first).tril(-1).bool() if other == "transposed" else torch.ones_like(first).bool()
    correlation = torch.corrcoef(torch.stack([first[where], second[where]]))[0, 1].item()
    assert abs(correlation) < 5 / where.sum().item() ** 0.5


def test_a_pair_is_the_same_alone_packed_longer_and_when_decoding() -> None:
    alone = plan("random(0.4, 3)", Positions.tokens(20)).visible[0, 0]
    packed = plan("random(0.4, 3)", Positions.packed([7, 20, 5])).visible[0, 0]
    assert packed[7:27, 7:27].equal(alone)
    at = Positions.tokens(50)
    assert plan("random(0.4, 3)", at).visible[0, 0, :20, :20].equal(alone)
    assert (
        plan("random(0.4, 3)", at.last(1), k_at=at).visible[0, 0].equal(plan("random(0.4, 3)", at).visible[0, 0, -1:])
    )


def test_torch_random_state_is_neither_read_nor_moved() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = pairs(0.5, 4)
    assert torch.get_rng_state().equal(state)
    torch.manual_seed(6)
    assert plan("random(0.5, 4)", Positions.tokens(LENGTH - 1)).visible[0, 0].equal(first[:-1, :-1])


def test_large_indices_do_not_overflow() -> None:
    at = Positions(index=torch.arange(400) + 2**32 - 200)
    assert 0.4 < plan("random(0.5)", at).visible.double().mean().item() < 0.6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_chooses_the_same_pairs() -> None:
    at = Positions.tokens(LENGTH)
    assert plan("random(0.3, 5)", at.to("cuda")).visible.cpu().equal(plan("random(0.3, 5)", at).visible)
