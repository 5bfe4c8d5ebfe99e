"""The feed-forward sublayer: timm's, with one activation more."""

from torch import Tensor, nn

ACTIVATIONS = ("gelu", "relu", "swiglu", "relu2")


class SquaredReLU(nn.Module):
    """max(x, 0) squared (So et al. 2021, Primer, section 4.1)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


def feedforward(activation: str, width: int, hidden: int, bias: bool) -> nn.Module:
    """Linear, activation, linear: [..., width] to [..., width]. The last linear layer is called `fc2`.

    swiglu is (silu(x G) * x V) W, three matrices instead of two (Shazeer 2020, "GLU Variants Improve Transformer").
    """
    from timm.layers import Mlp, SwiGLU  # takes seconds to import, so only where a model is built

    assert activation in ACTIVATIONS, activation
    if activation == "swiglu":
        return SwiGLU(width, hidden, bias=bias)
    kinds: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "relu2": SquaredReLU}
    return Mlp(width, hidden, act_layer=kinds[activation], bias=bias)
