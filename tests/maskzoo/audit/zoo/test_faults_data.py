"""Faults planted in the making of inputs and targets."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 23


class Causal(nn.Module):
    """A sound causal model over ids [B, T]."""

    def __init__(self):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(VOCABULARY, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, ids):
        return self.head(self.rnn(self.embedding(ids))[0])


class BothWays(Causal):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(16, 8, batch_first=True, bidirectional=True)


TEXT = list(torch.randperm(VOCABULARY - 2).tolist()[:12])
DOCUMENTS = [TEXT, TEXT[::-1]]


def unshifted(text):
    """A16: the answer is fed at its own position."""
    ids = torch.tensor([text])
    return ids, ids


def shifted_the_wrong_way(text):
    ids = torch.tensor([text])
    return ids[:, 1:], ids[:, :-1]


def rolled_within_the_row(text):
    """The last target is the first input, which the last output sees."""
    ids = torch.tensor([text])
    return ids, ids.roll(-1, dims=1)


def answer_among_the_features(text):
    """Every position holds its own answer beside its input."""
    ids = torch.tensor([text])
    return F.one_hot(torch.stack([ids[:, :-1], ids[:, 1:]]).sum(0) % VOCABULARY, VOCABULARY).float(), ids[:, 1:]


def rolled_across_rows_the_wrong_way(documents):
    ids = torch.tensor(documents)
    return ids, ids.flatten().roll(1).view_as(ids)


def off_by_one_in_one_row(documents):
    ids = torch.tensor(documents)
    targets = torch.stack([ids[0, 1:], ids[1, :-1]])
    return ids[:, :-1], targets


def masked_tokens_not_masked(text):
    """A model of blanks whose blanks are never put in."""
    ids = torch.tensor([text])
    targets = torch.full_like(ids, -100)
    targets[:, ::3] = ids[:, ::3]
    return ids, targets


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(VOCABULARY, 16, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


EXAMPLE_FAULTS = {
    unshifted: (Causal, TEXT),
    shifted_the_wrong_way: (Causal, TEXT),
    rolled_within_the_row: (Causal, TEXT),
    answer_among_the_features: (Features, TEXT),
    rolled_across_rows_the_wrong_way: (Causal, DOCUMENTS),
    off_by_one_in_one_row: (Causal, DOCUMENTS),
    masked_tokens_not_masked: (BothWays, TEXT),
}


@pytest.mark.parametrize("batch_of", EXAMPLE_FAULTS, ids=lambda batch_of: batch_of.__name__)
def test_planted_misalignment_is_found_from_the_raw_example(batch_of):
    from maskzoo.audit.checks import target_alignment

    torch.manual_seed(0)
    model, example = EXAMPLE_FAULTS[batch_of]
    findings = target_alignment(model(), example, batch_of, values=range(VOCABULARY - 2))
    assert [finding.kind for finding in findings] == ["target misalignment"]
    assert findings[0].severity == "error"
    assert findings[0].query is not None


def case(targets_of, model=Causal):
    ids = torch.stack([torch.randperm(VOCABULARY)[:12] for _ in range(2)])
    return {"model": model(), "inputs": ids, "permits": "causal", "targets": targets_of(ids)}


def tensor_unshifted():
    return case(lambda ids: ids)


def tensor_shifted_the_wrong_way():
    return case(lambda ids: F.pad(ids[:, :-1], (1, 0), value=-100))


def tensor_with_a_model_that_looks_ahead():
    return {**case(lambda ids: F.pad(ids[:, 1:], (0, 1), value=-100), BothWays), "permits": "all"}


FAULTS = {
    tensor_unshifted: ("target misalignment", {}),
    tensor_shifted_the_wrong_way: ("target misalignment", {}),
    tensor_with_a_model_that_looks_ahead: ("target misalignment", {}),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_misalignment_is_found_from_targets(fault, found):
    assert found(fault, FAULTS[fault][0]).errors


def shifted(text):
    ids = torch.tensor([text])
    return ids[:, :-1], ids[:, 1:]


def started(text):
    """A4: the decoder reads BOS and the text, and the last answer is EOS."""
    ids = torch.tensor([text])
    return F.pad(ids, (1, 0), value=VOCABULARY - 1), F.pad(ids, (0, 1), value=VOCABULARY - 2)


def two_ahead(text):
    ids = torch.tensor([text])
    return ids[:, :-2], ids[:, 2:]


def blanks(text):
    ids = torch.tensor([text])
    hidden = torch.arange(ids.shape[1]) % 3 == 0
    return ids.masked_fill(hidden, VOCABULARY - 1), ids.masked_fill(~hidden, -100)


def rows(documents):
    ids = torch.tensor(documents)
    return ids[:, :-1], ids[:, 1:]


def rolled_across_rows(documents):
    """The last answer of a row is the first of the next, which its outputs never see."""
    ids = torch.tensor(documents)
    return ids, ids.flatten().roll(-1).view_as(ids)


SOUND_EXAMPLES = {
    shifted: (Causal, TEXT),
    started: (Causal, TEXT),
    two_ahead: (Causal, TEXT),
    blanks: (BothWays, TEXT),
    rows: (Causal, DOCUMENTS),
    rolled_across_rows: (Causal, DOCUMENTS),
}


@pytest.mark.parametrize("batch_of", SOUND_EXAMPLES, ids=lambda batch_of: batch_of.__name__)
def test_sound_targets_give_no_finding(batch_of):
    from maskzoo.audit.checks import target_alignment

    torch.manual_seed(0)
    model, example = SOUND_EXAMPLES[batch_of]
    assert target_alignment(model(), example, batch_of, values=range(VOCABULARY - 2)) == []


def tensor_shifted():
    return case(lambda ids: F.pad(ids[:, 1:], (0, 1), value=-100))


def tensor_rolled_but_ignored():
    return case(lambda ids: torch.cat([ids[:, 1:], torch.full((2, 1), -100)], dim=1))


SOUND = (tensor_shifted, tensor_rolled_but_ignored)


@pytest.mark.parametrize("specimen", SOUND, ids=lambda specimen: specimen.__name__)
def test_sound_targets_as_a_tensor_give_no_finding(specimen, clean):
    assert clean(specimen).ok
