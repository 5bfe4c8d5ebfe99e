"""Both ways to a product give the product."""

import pytest
import torch

from maskzoo.kernels.tiled import products


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("lying", ["rows", "columns", "part of rows", "part of columns"])
def test_equals_matmul(count, large, lying, monkeypatch):
    monkeypatch.setattr(products, "LARGE", 0 if large else 2**60)
    a = torch.randn(count, 70, 33)
    b = {
        "rows": lambda: torch.randn(count, 33, 50),
        "columns": lambda: torch.randn(count, 50, 33).mT,
        "part of rows": lambda: torch.randn(count, 40, 50)[:, :33],
        "part of columns": lambda: torch.randn(count, 40, 80).mT[:, 9:59, :33].mT,
    }[lying]()
    got = products.product(a, b)
    torch.testing.assert_close(got.double(), a.double() @ b.double(), atol=1e-4, rtol=1e-4)


def test_only_float32_on_a_cpu_goes_another_way():
    assert not products.has_fast_product(torch.device("cpu"), torch.float64)
    assert not products.has_fast_product(torch.device("cuda"), torch.float32)


def test_without_the_library_all_is_batched(monkeypatch):
    monkeypatch.setattr(products, "_FOUND", False)
    monkeypatch.setattr(products, "LARGE", 0)
    a, b = torch.randn(1, 20, 30), torch.randn(1, 30, 40)
    assert torch.equal(products.product(a, b), torch.bmm(a, b))
