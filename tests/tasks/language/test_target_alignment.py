"""The answer at a position must not be among its inputs."""

import numpy as np
import pytest
import torch

from maskzoo.tasks.language.batch import TokenBatch
from maskzoo.tasks.language.documents import Documents
from maskzoo.tasks.language.packing import PackedRows, PaddedRows, StreamRows
from maskzoo.tasks.language.tokenizers import ByteTokenizer
from maskzoo.transformer.language_model import LanguageModel
from maskzoo.transformer.transformer import TransformerConfig

TOKENIZER = ByteTokenizer()
TEXT = b"some text to predict, long enough for rows"


def shifted(text: bytes, batching: str) -> TokenBatch:
    ids = TOKENIZER.encode(text)
    if batching == "stream":
        rows = StreamRows(ids, context=8)
    else:
        make = PackedRows if batching == "packed" else PaddedRows
        rows = make(Documents.joined([ids[:5], ids[5:16], ids[16:]], np.uint16), 8, TOKENIZER.bos, TOKENIZER.eos)
    return TokenBatch.from_block(rows.block(np.arange(len(rows))), TOKENIZER.byte_lengths)


def unshifted(text: bytes, batching: str) -> TokenBatch:
    """The mistake: the answer is fed at its own position."""
    batch = shifted(text, batching)
    tokens = torch.where(batch.targets >= 0, batch.targets, batch.tokens)
    return TokenBatch(tokens, batch.targets, batch.at, batch.target_count, batch.target_bytes)


def answers_leak(make_batch, batching: str) -> bool:
    """Whether some position's logits move when its own answer in the raw text is changed."""
    torch.manual_seed(1)
    config = TransformerConfig(layers=2, width=16, heads=2, context=8)
    model = LanguageModel(config, TOKENIZER.vocabulary, "causal").double().eval()
    before = make_batch(TEXT, batching)
    with torch.no_grad():
        logits = model(before.tokens, before.at)
        for place in range(len(TEXT)):
            changed = make_batch(TEXT[:place] + b"~" + TEXT[place + 1 :], batching)
            own = changed.targets != before.targets
            if own.any() and (model(changed.tokens, changed.at) - logits)[own].abs().max() > 0:
                return True
    return False


@pytest.mark.parametrize("batching", ["packed", "padded", "stream"])
def test_shifted_targets_are_never_among_the_inputs(batching):  # case A16
    assert not answers_leak(shifted, batching)


@pytest.mark.parametrize("batching", ["packed", "padded", "stream"])
def test_an_answer_fed_at_its_own_position_is_found_out(batching):  # case A16
    assert answers_leak(unshifted, batching)
