import math

import pytest
import torch
from torch.testing import assert_close

from maskzoo import Positions
from maskzoo.transformer.positional import LearnedPositions, RotaryPositions, SinusoidalPositions, rotate

INDEX = torch.tensor([[0, 1, 2, 7, 100, 3]])


def test_sinusoidal_values_are_those_of_the_paper():  # case A7
    width = 6
    encoded = SinusoidalPositions(width)(INDEX, torch.float64)
    for place, t in enumerate(INDEX[0].tolist()):
        for r in range(width // 2):
            angle = t / 10000 ** (2 * r / width)
            assert encoded[0, place, 2 * r].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert encoded[0, place, 2 * r + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_sinusoidal_single_precision_stays_close_to_double():
    encode = SinusoidalPositions(64)
    index = torch.arange(1000)[None]
    assert_close(encode(index).double(), encode(index, torch.float64), atol=2e-4, rtol=0)


def test_sinusoidal_positions_stay_in_place_when_rows_move():  # case A7
    x = torch.randn(1, 6, 8)
    encoded = SinusoidalPositions(8)(torch.arange(6)[None])
    order = torch.tensor([3, 0, 1, 5, 4, 2])
    assert (x[:, order] + encoded - (x + encoded)[:, order]).abs().max() > 0.1


def test_sinusoidal_needs_an_even_width():
    with pytest.raises(ValueError, match="even width, got 7"):
        SinusoidalPositions(7)


def test_every_packed_document_starts_at_index_0():
    encode = SinusoidalPositions(8)
    packed = encode(Positions.packed([5, 3]).index)
    assert_close(packed[:, 5:], encode(torch.arange(3)[None]), atol=0, rtol=0)


def test_learned_positions_are_rows_of_the_table():
    encode = LearnedPositions(8, 4)
    assert_close(encode(torch.tensor([[7, 0]]))[0], encode.table.weight[[7, 0]], atol=0, rtol=0)


@pytest.mark.parametrize("wrong", [8, -1])
def test_learned_positions_end_at_the_context(wrong):
    with pytest.raises(ValueError, match=rf"index {wrong} has no learned position.*0 to 7 \(context=8\)"):
        LearnedPositions(8, 4)(torch.tensor([[0, wrong]]))


def test_rotary_scores_depend_on_the_difference_of_indices_only():
    positions = RotaryPositions(16)
    q, k = torch.randn(1, 1, 1, 16, dtype=torch.float64), torch.randn(1, 1, 1, 16, dtype=torch.float64)

    def score(i, j):
        turned = [rotate(x, positions(torch.tensor([[t]]), torch.float64)) for x, t in ((q, i), (k, j))]
        return (turned[0] * turned[1]).sum().item()

    assert score(5, 2) == pytest.approx(score(1003, 1000), abs=1e-10)
    assert score(0, 0) == pytest.approx((q * k).sum().item(), abs=1e-10)
    assert score(-3, 4) == pytest.approx(score(0, 7), abs=1e-10)
    assert abs(score(5, 2) - score(2, 5)) > 1e-3


def test_rotary_turns_the_first_pair_by_one_radian_a_step():
    x = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    x[..., 0] = 1.0
    turned = rotate(x, RotaryPositions(4)(torch.tensor([[1]]), torch.float64))
    assert_close(turned.flatten(), torch.tensor([math.cos(1), 0, math.sin(1), 0], dtype=torch.float64))


def test_rotary_base_sets_the_slowest_wavelength():
    cosine, sine = RotaryPositions(4, base=100.0)(torch.tensor([[1]]), torch.float64)
    assert_close(torch.atan2(sine, cosine).flatten(), torch.tensor([1.0, 0.1], dtype=torch.float64))
