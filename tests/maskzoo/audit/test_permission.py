"""What rules permit over the depth of a model."""

import pytest
import torch

import maskzoo as mz
from maskzoo.audit import closed
from maskzoo.audit.permission import permission
from maskzoo.audit.subject import Subject

T = 8
BACK = torch.arange(T)[:, None] - torch.arange(T)
SUBJECT = Subject(lambda x: x, torch.rand(2, T, 3))


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_a_window_reaches_further_with_each_layer(layers):  # case A11, first part
    found = permission("window(3)", SUBJECT, layers).permitted
    assert torch.equal(found[0], (BACK >= 0) & (2 * layers >= BACK))
    assert torch.equal(found, closed(permission("window(3)", SUBJECT).single, layers))


def test_dilated_steps_leave_holes():  # case A11
    first, second = ((BACK == 0) | (step == BACK) for step in (1, 4))
    both = (second.float() @ first.float()) > 0
    assert [back for back in range(T) if both[-1, T - 1 - back]] == [0, 1, 4, 5]
    assert torch.equal(closed(both, 1), both)


def test_any_depth_is_the_transitive_closure():
    chain = BACK == 1
    assert torch.equal(closed(chain), BACK >= 0)
    assert torch.equal(closed(chain, 2), (BACK >= 0) & (BACK <= 2))


@pytest.mark.parametrize(
    "permits",
    [
        pytest.param("causal", id="text"),
        pytest.param(mz.masks.Causal(), id="mask"),
        pytest.param(BACK >= 0, id="matrix"),
        pytest.param((BACK >= 0).expand(2, T, T), id="by row"),
        pytest.param((BACK >= 0).expand(1, 4, T, T), id="by head"),
        pytest.param(lambda q, k: k <= q, id="function"),
    ],
)
def test_every_form_of_a_rule(permits):
    found = permission(permits, SUBJECT, 2)
    assert torch.equal(found.permitted.expand(2, T, T), (BACK >= 0).expand(2, T, T))
    assert found.rule


def test_rules_of_heads_are_taken_together():
    assert torch.equal(
        permission("stack(window(2), block(4))", SUBJECT, 1).permitted[0],
        ((BACK >= 0) & (BACK < 2)) | (torch.arange(T)[:, None] // 4 >= torch.arange(T) // 4),
    )


def test_segments_and_padding_come_with_the_positions():
    at = mz.Positions.packed([3, 4], padded_to=T)
    found = permission("causal", SUBJECT, 2, at).permitted[0]
    assert not found[3, 2] and found[3, 3] and not found[7, 6]


def test_a_rule_between_two_lengths_is_not_closed():
    subject = Subject(lambda x: x[:, :3], torch.rand(2, T, 3))
    found = permission("wait_k(2)", subject).permitted
    assert torch.equal(found[0], torch.arange(T)[None] < torch.arange(3)[:, None] + 2)
    pooled = Subject(lambda x: x.mean(1), torch.rand(2, T, 3), axis=(1, None))
    assert permission("all", pooled).permitted.shape == (1, 1, T)


@pytest.mark.parametrize(
    ("permits", "message"),
    [
        (torch.ones(T, T), "permits must be boolean"),
        (torch.ones(3, 3, dtype=torch.bool), r"permits has shape \[1, 3, 3\], but there are 8 outputs and 8 inputs"),
        (5, "permits must be a rule as text"),
        ("casual", "Did you mean 'causal'"),
    ],
)
def test_what_is_no_rule(permits, message):
    with pytest.raises(ValueError, match=message):
        permission(permits, SUBJECT)
