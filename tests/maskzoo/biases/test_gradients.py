"""Every provider under the sparse kernels: outputs and gradients of all its parameters are those of the oracle."""

import pytest
import torch

import maskzoo as mz
from maskzoo.kernels.edges import edges
from maskzoo.kernels.reference import reference
from maskzoo.kernels.tiled import tiled

LENGTH, HEADS = 100, 4

PROVIDERS = {
    "relative": lambda: mz.biases.Relative(8, 20, heads=HEADS),
    "relative both ways": lambda: mz.biases.Relative(8, 20, True, heads=HEADS),
    "clipped_relative": lambda: mz.biases.ClippedRelative(5, heads=HEADS),
    "offset": lambda: mz.biases.Offset(6, 2, heads=HEADS),
    "grid_offset": lambda: mz.biases.GridOffset(4, 3, heads=HEADS),
    "grid_offset in time": lambda: mz.biases.GridOffset(4, 3, 2, heads=HEADS),
    "distance": lambda: mz.biases.Distance("log", ("row", "col"), learned=True, heads=HEADS),
    "segment_pair": lambda: mz.biases.SegmentPair(3, heads=HEADS),
    "table": lambda: mz.biases.Table(torch.randint(0, 30, (2, LENGTH, LENGTH)), heads=HEADS),
    "all in one": lambda: (
        mz.biases.Relative(8, 20, heads=HEADS)
        + 0.5 * mz.biases.Alibi(heads=HEADS)
        + 2 * (mz.biases.Table(torch.randint(0, 30, (LENGTH, LENGTH)), heads=HEADS) + mz.biases.Offset(3, heads=HEADS))
    ),
}


@pytest.mark.parametrize("kernel", [tiled, edges])
@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_are_the_oracles(kernel, name, frozen):
    torch.manual_seed(0)
    at = mz.Positions.packed([[30, 70], [100]]).with_fields(
        **{field: torch.randint(0, 3, (2, LENGTH)) for field in ("row", "col", "time", "kind")}
    )
    bias = PROVIDERS[name]().double()
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    plan = mz.plan("causal", at, bias=bias)
    q = torch.randn(2, HEADS, LENGTH, 8, dtype=torch.float64, requires_grad=not frozen)
    k, v = (torch.randn(2, HEADS // 2, LENGTH, 8, dtype=torch.float64, requires_grad=not frozen) for _ in range(2))
    weight = torch.randn(2, HEADS, LENGTH, 8, dtype=torch.float64)
    wanted = [*bias.parameters()] if frozen else [q, k, v, *bias.parameters()]
    form, pairs = ("tiled", plan.tiles) if kernel is tiled else ("edges", plan.pairs)
    out, _ = kernel(q, k, v, pairs, scale=0.3, offsets=plan.offsets(form))
    expected, *_ = reference(q, k, v, plan.visible, plan.scores(), scale=0.3)
    torch.testing.assert_close(out, expected)
    grads, oracle = (torch.autograd.grad((x * weight).sum(), wanted) for x in (out, expected))
    for got, true in zip(grads, oracle, strict=True):
        torch.testing.assert_close(got, true)
        assert true.abs().max() > 1e-4
