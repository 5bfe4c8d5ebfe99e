import pytest
import torch

torch.set_num_threads(1)  # the tensors of these tests are too small for more


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are fresh for each test function and the same in each run."""
    torch.manual_seed(0)
