from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from maskzoo.transformer import LanguageModel, TransformerConfig, generate
from maskzoo.transformer.generation import Choice

SMALL = TransformerConfig(layers=2, width=32, heads=4, context=64)
VOCABULARY = 17


def lively(config=SMALL, mask="causal", vocabulary=VOCABULARY):
    """A model whose next token depends on what it has read."""
    model = LanguageModel(config, vocabulary, mask=mask).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return model


def texts(model, prompts, **options):
    """What each prompt is continued with."""
    steps = list(generate(model, prompts, **options))
    return [[step[row] for step in steps if step[row] is not None] for row in range(len(prompts))]


@torch.no_grad()
def greedy(model, prompt, count):
    """The likeliest continuation, reading everything again at each token."""
    model.eval()
    text = list(prompt)
    for _ in range(count):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("rule", ["causal", "window(3)", "causal & (window(4) | sinks(2))"])
@pytest.mark.parametrize("position", ["rotary", "learned", "sinusoidal", "none"])
def test_the_likeliest_text_is_that_of_reading_everything_again(rule, position):
    model = lively(replace(SMALL, position=position), rule)
    prompts = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5]]
    written = texts(model, prompts, max_new_tokens=12, temperature=0)
    assert written == [greedy(model, prompt, 12) for prompt in prompts]
    assert len({tuple(text) for text in written}) == 3


def test_prompts_do_not_depend_on_their_companions():
    model = lively()
    generator = torch.Generator().manual_seed(1)
    lengths = [31, 32, 33, 1]
    prompts = [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    options = {"max_new_tokens": 60, "temperature": 0.8, "top_p": 0.9, "seed": 7}  # far enough to outgrow the context
    together = texts(model, prompts, **options)
    assert together == [texts(model, [prompt], **options)[0] for prompt in prompts]
    assert all(len(text) == 60 for text in together)


def test_a_companion_that_stops_early_changes_nothing():
    """The longest row leaves the cache full long before the others reach the context."""
    model = lively(vocabulary=400)
    prompts = [[1, 2, 3] * 15, [4], [5, 6]]
    options = {"max_new_tokens": 80, "temperature": 5.0, "seed": 3}
    free = texts(model, prompts, **options)
    stop = free[0][2]
    together = texts(model, prompts, **options, stop=stop)
    for stopped, text in zip(together, free, strict=True):
        assert stopped == (text[: text.index(stop)] if stop in text else text)
    assert len(together[0]) <= 2
    assert max(len(text) for text in together) > 40


def test_a_stopped_prompt_yields_none_until_all_have_stopped():
    model = lively()
    prompts = [[1], [2, 3]]
    free = texts(model, prompts, max_new_tokens=20, seed=3)
    stop = next(token for token in free[0] if free[0].index(token) != (free[1] + [token]).index(token))
    steps = list(generate(model, prompts, max_new_tokens=20, seed=3, stop=stop))
    for row in range(2):
        column = [step[row] for step in steps]
        done = column.index(None) if None in column else len(column)
        assert all(token is None for token in column[done:])
        assert stop not in column
    assert all(any(token is not None for token in step) for step in steps)


def test_a_text_that_outgrows_the_context_is_read_from_its_last_half():
    model = lively(replace(SMALL, context=8, position="learned"))
    prompt = [3, 1, 4, 1, 5]
    written = texts(model, [prompt], max_new_tokens=9, temperature=0)[0]
    model.eval()
    text, read = list(prompt), 5
    for token in written:
        if read > 8:
            read = 4
        with torch.no_grad():
            logits = model(torch.tensor([text[-read:]]))
        assert token == int(logits[0, -1].argmax())
        text.append(token)
        read += 1


def test_a_prompt_beyond_the_context_is_read_from_its_end():
    model = lively(replace(SMALL, context=8))
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert texts(model, [prompt], max_new_tokens=3, temperature=0) == texts(
        model, [prompt[-4:]], max_new_tokens=3, temperature=0
    )


def test_a_context_of_one_token_still_writes():
    model = lively(replace(SMALL, context=1))
    assert len(texts(model, [[1], [2, 3]], max_new_tokens=4, seed=0)[0]) == 4


def test_seeds():
    model = lively()
    first, again, other = (texts(model, [[1]], max_new_tokens=20, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    torch.manual_seed(5)
    unseeded = texts(model, [[1]], max_new_tokens=20)
    assert unseeded != texts(model, [[1]], max_new_tokens=20)
    torch.manual_seed(5)
    assert unseeded == texts(model, [[1]], max_new_tokens=20)


def test_the_same_prompt_twice_gives_two_texts():
    first, second = texts(lively(), [[1], [1]], max_new_tokens=20, seed=1)
    assert first != second


def test_dropout_is_off_and_the_mode_is_put_back():
    model = lively(replace(SMALL, dropout=0.5, attention_dropout=0.5)).train()
    stream = generate(model, [[1, 2]], max_new_tokens=8, temperature=0)
    first = next(stream)
    assert model.training
    rest = [step[0] for step in stream]
    assert model.training
    assert [first[0], *rest] == greedy(model, [1, 2], 8)


def test_no_gradient_is_recorded():
    model = lively()
    list(generate(model, [[1]], max_new_tokens=3, seed=0))
    assert torch.is_grad_enabled()
    assert all(p.grad is None for p in model.parameters())


LOGITS = torch.tensor([1.0, 4.0, 2.0, 3.0]).log()


def test_top_k_keeps_the_likeliest():
    assert_close(Choice(top_k=2).probabilities(LOGITS), torch.tensor([0, 4 / 7, 0, 3 / 7]))
    assert_close(Choice(top_k=9).probabilities(LOGITS), torch.tensor([0.1, 0.4, 0.2, 0.3]))


def test_top_p_keeps_the_fewest_that_reach_the_mass():
    assert_close(Choice(top_p=0.65).probabilities(LOGITS), torch.tensor([0, 4 / 7, 0, 3 / 7]))
    assert_close(Choice(top_p=0.75).probabilities(LOGITS), torch.tensor([0, 4 / 9, 2 / 9, 3 / 9]))
    assert_close(Choice(top_p=0.01).probabilities(LOGITS), torch.tensor([0.0, 1, 0, 0]))
    assert_close(Choice(top_p=1.0).probabilities(LOGITS), torch.tensor([0.1, 0.4, 0.2, 0.3]))


def test_top_p_counts_what_top_k_has_left():
    """Of 4/7 and 3/7 the first alone has half."""
    assert_close(Choice(top_k=2, top_p=0.5).probabilities(LOGITS), torch.tensor([0.0, 1, 0, 0]))


def test_temperature_divides_the_logits():
    assert_close(Choice(temperature=0.5).probabilities(LOGITS), torch.tensor([1, 16, 4, 9]) / 30)


def test_draws_follow_the_probabilities():
    generator = torch.Generator().manual_seed(0)
    choice = Choice()
    counts = torch.bincount(torch.tensor([choice(LOGITS, generator) for _ in range(4000)]), minlength=4) / 4000
    assert_close(counts, torch.tensor([0.1, 0.4, 0.2, 0.3]), atol=0.03, rtol=0)


def test_a_prefix_inside_every_prompt_can_be_decoded():
    model = lively(mask="prefix(3)")
    prompts = [[3, 1, 4], [1, 5, 9, 2]]
    assert texts(model, prompts, max_new_tokens=5, temperature=0) == [greedy(model, p, 5) for p in prompts]


@pytest.mark.parametrize(
    "rule", ["full", "prefix(3)", "window(4, both_sides=True)", "stack(causal, causal, causal, full)"]
)
def test_rules_that_look_ahead_are_refused(rule):
    model = lively(mask=rule)
    with pytest.raises(
        ValueError, match=r"cannot be decoded step by step: position 0 sees position 2.*later than the 2 tokens"
    ):
        generate(model, [[1, 2], [1, 2, 3, 4]], max_new_tokens=4)


def test_one_new_token_needs_no_step():
    model = lively(mask="full")
    assert texts(model, [[1, 2]], max_new_tokens=1, temperature=0) == [greedy(model, [1, 2], 1)]


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "no prompt given"),
        ([[1], []], {}, r"prompt 1 is empty: start from .*\(BOS\)"),
        ([[1, 17]], {}, "token id 17 at place 1 of prompt 0.*0 to 16"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ([[1]], {"temperature": -1.0}, "temperature must be 0 .*got -1.0"),
        ([[1]], {"temperature": float("nan")}, "temperature must be 0"),
        ([[1]], {"top_k": 0}, "top_k must be at least 1, got 0"),
        ([[1]], {"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ([[1]], {"top_p": 1.5}, "top_p must be above 0"),
        ([[1]], {"stop": 99}, "stop token 99 is outside the vocabulary"),
    ],
)
def test_bad_arguments_are_named_at_once(prompts, options, message):
    with pytest.raises(ValueError, match=message):
        generate(lively(), prompts, **{"max_new_tokens": 2, **options})
