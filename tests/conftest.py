import os
from collections.abc import Iterator

# Before anything imports Triton: its kernels then run on the processor, which is all that a test can count on.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

torch.set_num_threads(1)  # the tensors of these tests are too small for more


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are fresh for each test function and the same in each run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from, or left in, the cache folder of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASKZOO_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True, scope="session")
def same_choice_everywhere() -> Iterator[None]:
    """Kernels are chosen by the constants in the code: nothing is timed in a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maskzoo.costs.MEASURED_FROM", float("inf"))
        yield
