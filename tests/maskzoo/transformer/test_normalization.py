import torch
from torch.testing import assert_close

from maskzoo.transformer.normalization import normalization


def test_layernorm_centres_and_scales():
    x = 3 + 2 * torch.randn(4, 64, dtype=torch.float64)
    y = normalization("layernorm", 64).double()(x)
    assert_close(y.mean(-1), torch.zeros(4, dtype=torch.float64), atol=1e-9, rtol=0)
    assert_close(y.var(-1, unbiased=False), torch.ones(4, dtype=torch.float64), atol=1e-4, rtol=0)


def test_rmsnorm_scales_and_does_not_centre():
    x = 3 + 2 * torch.randn(4, 64, dtype=torch.float64)
    y = normalization("rmsnorm", 64).double()(x)
    assert_close(y, x / x.square().mean(-1, keepdim=True).sqrt(), atol=1e-5, rtol=1e-5)
