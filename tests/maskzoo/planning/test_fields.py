"""Fields cut into blocks."""

import pytest
import torch

from maskzoo.planning.fields import BRANCH, Field


def random_values(length, batch=2):
    return torch.randint(-(2**62), 2**62, (batch, length))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 63, 64, 65, 511, 512, 513, 600])
def test_bounds_of_every_level_are_those_of_the_values(length):
    values = random_values(length)
    field = Field(values, 8)
    for level in (2, 0, 1, 3):
        low, high = field.bounds(level)
        step = 8 * BRANCH**level
        parts = values.split(step, dim=1)
        assert low.tolist() == torch.stack([part.amin(1) for part in parts], 1).tolist()
        assert high.tolist() == torch.stack([part.amax(1) for part in parts], 1).tolist()


def test_origins_are_the_first_values():
    values = random_values(20)
    assert torch.equal(Field(values, 8).origin, values[:, [0, 8, 16]])


@pytest.mark.parametrize("length", [8, 24, 27, 64])
def test_shapes_are_equal_exactly_where_values_rise_alike(length):
    generator = torch.Generator().manual_seed(length)
    kinds = torch.stack([torch.arange(8), torch.zeros(8).long(), 3 - 2 * torch.arange(8), torch.arange(8) ** 2])
    chosen = torch.randint(0, 4, (3, 8), generator=generator)
    values = (kinds[chosen] + torch.randint(-(2**40), 2**40, (3, 8, 1), generator=generator)).flatten(1)[:, :length]
    field = Field(values, 8)
    filled = torch.cat([values, values[:, -1:].expand(-1, -length % 8)], 1).unflatten(1, (-1, 8))
    rising = (filled - filled[..., :1]).flatten(0, 1)
    same = (rising[:, None] == rising[None]).all(-1)
    shape = field.shape.flatten()
    assert field.shape.shape == (3, -(-length // 8))
    assert torch.equal(shape[:, None] == shape[None], same)


def test_a_single_value_in_the_last_tile_is_a_flat_tile():
    shape = Field(torch.tensor([[*range(8), 5]]), 8).shape
    assert shape[0, 0] != shape[0, 1]
    assert Field(torch.tensor([[4] * 9]), 8).shape.unique().numel() == 1
