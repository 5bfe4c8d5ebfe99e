"""Positions that were moved to a device are planned where they came from: nothing is read back."""

import pytest
import torch

import maskzoo as mz
from maskzoo.planning.kept import forget

# A device that holds no numbers: reading any of them raises.
NOWHERE = torch.device("meta")


@pytest.fixture(autouse=True)
def planned_anew():
    forget()


@pytest.mark.parametrize("rule", ["causal", "causal & window(20)", "random(0.1)", "prefix(7) & ~dilated(9, 3)", "full"])
@pytest.mark.parametrize("lengths", [[[400]], [[100, 300], [250, 150]], [[50], [60]]])
def test_nothing_is_read_from_the_device(rule, lengths):
    at = mz.Positions.packed(lengths)
    here, there = mz.plan(rule, at), mz.plan(rule, at.to(NOWHERE))
    assert there.device == NOWHERE and here.device.type == "cpu"
    assert (there.rule, there.form, there.batch) == (here.rule, here.form, here.batch)
    assert there.visibility.shape == here.visibility.shape
    if here.kernel == "tiled":
        assert there.tiles.rows.first.shape == here.tiles.rows.first.shape
    if isinstance(there.empty, torch.Tensor):
        assert there.empty.device == NOWHERE


def test_a_list_of_pairs_and_the_gpu_kernels_schedule_move(monkeypatch):
    for module in ("maskzoo.costs", "maskzoo.planning.choosing"):
        monkeypatch.setattr(f"{module}.is_at_hand", lambda device: device == NOWHERE)
    at = mz.Positions.tokens(600).to(NOWHERE)
    plan = mz.plan("causal & window(20)", at)
    assert plan.kernel == "triton"
    assert {array.device for array in plan.schedule.as_list()} == {NOWHERE}
    assert mz.plan("causal & window(20)", mz.Positions.tokens(600)).kernel != "triton", "another device, another plan"


def test_decoding_against_keys_on_the_device():
    at = mz.Positions.tokens(500)
    last = at.last(1).to(NOWHERE)
    plan = mz.plan("causal & window(30)", last, k_at=at.to(NOWHERE))
    assert plan.device == NOWHERE and (plan.query_length, plan.key_length) == (1, 500)


def test_what_is_moved_remembers_where_it_came_from():
    at = mz.Positions.tokens([3, 5])
    there = at.to(NOWHERE)
    assert there.origin is at
    assert at.origin is None
    assert there.narrow(0, 2).origin is None, "other positions, which were never on the processor"
