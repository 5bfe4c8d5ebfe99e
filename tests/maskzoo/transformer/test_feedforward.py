import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from maskzoo.transformer.feedforward import ACTIVATIONS, feedforward


@pytest.mark.parametrize(
    ("name", "function"), [("gelu", F.gelu), ("relu", F.relu), ("relu2", lambda x: F.relu(x) ** 2)]
)
def test_two_matrix_forms(name, function):
    layer = feedforward(name, 6, 10, bias=True)
    x = torch.randn(2, 3, 6)
    hidden = function(F.linear(x, layer.fc1.weight, layer.fc1.bias))
    assert_close(layer(x), F.linear(hidden, layer.fc2.weight, layer.fc2.bias))


def test_swiglu_is_a_gated_product():
    layer = feedforward("swiglu", 6, 10, bias=False)
    x = torch.randn(2, 3, 6)
    hidden = F.silu(F.linear(x, layer.fc1_g.weight)) * F.linear(x, layer.fc1_x.weight)
    assert_close(layer(x), F.linear(hidden, layer.fc2.weight))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_biases_are_optional(name):
    assert not [key for key, _ in feedforward(name, 4, 8, bias=False).named_parameters() if key.endswith("bias")]
