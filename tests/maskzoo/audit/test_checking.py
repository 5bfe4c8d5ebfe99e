"""The course of an audit: what is asked for is done or refused, and nothing is left changed."""

import copy

import pytest
import torch
from torch import nn

import maskzoo as mz
from maskzoo.audit import KINDS, Finding, LeakError, assert_sound, check
from maskzoo.transformer import LanguageModel, TransformerConfig

IDS = torch.randint(0, 11, (2, 10), generator=torch.Generator().manual_seed(0))


def language_model(mask="causal"):
    torch.manual_seed(0)
    return LanguageModel(TransformerConfig(layers=2, width=16, heads=2, context=32), 11, mask=mask)


class Ahead(nn.Module):
    """Each output also sees the next input."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)

    def forward(self, ids):
        x = self.embedding(ids)
        return x + torch.cat([x[:, 1:], x[:, :1] * 0], dim=1)


def test_a_model_that_states_its_rule_needs_none():
    report = check(language_model("window(3)"), IDS)
    assert report.ok and report.rule == "window(3)"
    back = torch.arange(10)[:, None] - torch.arange(10)
    assert torch.equal(report.permission, (back >= 0) & (back <= 4))
    assert "decoding in steps" in report.checks


def test_a_model_without_a_rule_is_refused():
    with pytest.raises(ValueError, match="permits= is missing"):
        check(Ahead(), IDS)


def test_for_tests():
    assert assert_sound(language_model(), IDS, "causal").ok
    with pytest.raises(LeakError, match="leak: output"):
        assert_sound(Ahead(), IDS, "causal")


def test_nothing_is_left_changed():
    model = language_model().train()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    check(model, IDS)
    assert torch.equal(torch.rand(2), expected)
    assert model.training and all(not module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("method", ["exact", "quick"])
def test_what_is_asked_for_is_checked_by_either_method(method):
    report = check(language_model(), IDS, targets=IDS, symmetric=True, lengths=(4,), method=method)
    assert report.method == method
    assert {"target misalignment", "broken symmetry"} <= {finding.kind for finding in report.findings}
    assert "with 4 positions" in report.checks


@pytest.mark.parametrize("method", ["exact", "quick"])
def test_what_is_asked_for_and_cannot_be_checked_is_an_error(method):
    model = language_model()
    with pytest.raises(ValueError, match="do not follow the inputs by one shift"):
        check(model, IDS, targets=torch.randint(20, 99, IDS.shape), method=method)
    with pytest.raises(ValueError, match="decoding gives outputs of shape"):
        check(model, IDS, decode=lambda ids: model(ids)[:, :, :3], method=method)


def test_what_cannot_be_run_is_listed_with_its_reason():
    class Fixed(Ahead):
        def forward(self, ids):
            if ids.shape[1] != 10:
                raise RuntimeError("I take ten")
            if self.embedding.weight.dtype == torch.bfloat16:
                raise TypeError("not in bfloat16")
            return self.embedding(ids)

    report = check(Fixed(), IDS, "causal", layers=1, blind_spots=False)
    assert not report.findings
    skipped = " ".join(report.skipped)
    assert "with 9 positions: RuntimeError: I take ten" in skipped
    assert "in bfloat16: TypeError: not in bfloat16" in skipped


def test_outputs_in_padding_are_not_judged():
    model, at = language_model(), mz.Positions.tokens([10, 6])

    def everything_in_padding(ids):
        out = model(ids, at)
        mixed = torch.cat([out[:, :6], out[:, 6:] + out.mean(1, keepdim=True)], dim=1)
        return torch.where((at.segment >= 0)[..., None], out, mixed)

    assert not check(everything_in_padding, IDS, "causal", at=at, blind_spots=False).leaks


def test_a_finding_in_words():
    assert set(KINDS) == {
        "leak", "blind spot", "target misalignment", "companion dependence", "decode mismatch", "broken symmetry",
        "dead query", "batch coupling",
    }  # fmt: skip
    finding = Finding("leak", "output 1 moves with input 2", "many", 0.5, pairs=3, layer="blocks.0", head=1)
    assert str(finding) == (
        "leak: output 1 moves with input 2 (size 0.5; 3 in all; first in blocks.0, head 1). Usual causes: many"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"method": "fast"}, "method must be one of auto, exact, quick, got 'fast'"), ({"permits": "casual"}, "causal")],
)
def test_mistakes(options, message):
    with pytest.raises(ValueError, match=message):
        check(language_model(), IDS, **options)
