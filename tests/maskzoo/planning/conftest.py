"""What the tests of planning share: rules made of a function, and plans made in the one way or the other."""

from collections.abc import Callable
from dataclasses import make_dataclass

import pytest
import torch
from torch import Tensor

import maskzoo as mz
from maskzoo.planning import choosing, kept, making


@pytest.fixture(autouse=True)
def nothing_kept():
    """No test reads a plan that another one made."""
    kept.forget()


@pytest.fixture(scope="session")
def mask_of() -> Callable[..., mz.Mask]:
    """A mask of a function of q and k."""

    def made(function: Callable[..., Tensor], name: str = "Rule", **attributes: object) -> mz.Mask:
        namespace = {"visible": lambda self, q, k: function(q, k), **attributes}
        return make_dataclass(name, [], bases=(mz.Mask,), namespace=namespace, frozen=True)()

    return made


@pytest.fixture(scope="session")
def read_short() -> Callable[..., mz.Plan]:
    """`mz.plan`, with every pair read by itself (True) or by tiles and lists (False), whatever the lengths."""

    def made(short: bool, *args: object, **options: object) -> mz.Plan:
        with pytest.MonkeyPatch.context() as patch:
            for module in (making, choosing):
                patch.setattr(module, "is_short", lambda queries, keys: short)
            kept.forget()
            plan = mz.plan(*args, **options)
            kept.forget()
        return plan

    return made


@pytest.fixture(scope="session")
def assert_read_alike(read_short: Callable[..., mz.Plan]) -> Callable[..., mz.Plan]:
    """A plan read by tiles or lists holds the same pairs as one read pair by pair; returns the first."""

    def check(*args: object, **options: object) -> mz.Plan:
        dense, other = (read_short(short, *args, **options) for short in (True, False))
        assert dense.visible.shape == other.visible.shape
        assert torch.equal(dense.visible, other.visible), f"{int((dense.visible != other.visible).sum())} pairs differ"
        return other

    return check
