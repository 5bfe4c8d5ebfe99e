import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are fresh for each test function and the same in each run."""
    torch.manual_seed(0)
