import torch

from maskzoo.kernels.gradients import at_places, or_nothing, without_data


def test_gradients_stand_where_their_arguments_do():
    found = [torch.ones(2), torch.empty(0), torch.zeros(3)]
    gradients = at_places(found, [True, False, True], (0, 2, 5), 7)
    assert [gradient is None for gradient in gradients] == [False, True, True, True, True, False, True]
    assert gradients[0] is found[0] and gradients[5] is found[2]


def test_what_is_not_wanted_is_empty():
    like, source = torch.ones(4), torch.ones(2, 3, dtype=torch.bfloat16)
    traced = without_data([source, source, None], [True, False, False], like)
    assert [tuple(x.shape) for x in traced] == [(2, 3), (0,), (0,)]
    made = or_nothing([torch.ones(2, 3), None, None], [source, source, None], like)
    assert [tuple(x.shape) for x in made] == [(2, 3), (0,), (0,)]
    assert made[0].dtype == traced[0].dtype == torch.bfloat16
