"""Text, token by token."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maskzoo.planning import plan
from maskzoo.positions import Positions
from maskzoo.transformer.cache import Cache
from maskzoo.transformer.language_model import LanguageModel, evaluating


def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: int | None = None,
) -> Iterator[list[int | None]]:
    """Continue several prompts at once. Each step yields one token id per prompt, None for a prompt that has stopped.

    Prompts may differ in length. What follows one prompt does not depend on the others: rows are padded on the left,
    padding is invisible, and each prompt draws from a random generator of its own (a prompt given twice gets two
    different ones). A text that outgrows config.context is read afresh from its last context // 2 tokens, which then
    count from index 0.

    Args:
        model: the model; it runs in evaluation mode.
        prompts: token ids, at least one each.
        max_new_tokens: the most tokens added to each prompt.
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: draw from the k likeliest tokens only.
        top_p: draw from the fewest tokens that have at least this much probability together (Holtzman et al. 2020).
        seed: the same seed gives the same text; None takes one from torch's global generator.
        stop: a prompt is done when it would add this token, which is not yielded.

    Raises:
        ValueError: an argument out of range, an empty prompt, a token outside the vocabulary, or a rule under which a
            position read earlier would see a later one, so that what the cache holds would be wrong.
    """
    texts = [list(map(int, prompt)) for prompt in prompts]
    _check_arguments(model, texts, max_new_tokens, temperature, top_k, top_p, stop)
    _check_rule(model, texts, max_new_tokens)
    choice = Choice(temperature, top_k, top_p)
    generators = _generators(texts, seed)
    return _stream(model, texts, max_new_tokens, choice, generators, stop)


@dataclass(frozen=True)
class Choice:
    """How the next token is drawn from the logits."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __call__(self, logits: Tensor, generator: torch.Generator) -> int:
        """logits: [vocabulary]. Draws on the CPU, so that a seed means the same on every device."""
        logits = logits.double().cpu()
        if self.temperature == 0:
            return int(logits.argmax())
        return int(torch.multinomial(self.probabilities(logits), 1, generator=generator))

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution [vocabulary] that is drawn from at a temperature above 0."""
        kept, order = (logits / self.temperature).softmax(dim=-1).sort(descending=True, stable=True)
        if self.top_k is not None:
            kept[self.top_k :] = 0
        if self.top_p is not None:
            before = kept.cumsum(dim=-1) - kept
            kept[before >= self.top_p * kept.sum()] = 0
        return torch.zeros_like(kept).scatter_(0, order, kept / kept.sum())


@torch.no_grad()
def _stream(
    model: LanguageModel,
    texts: list[list[int]],
    max_new_tokens: int,
    choice: Choice,
    generators: list[torch.Generator],
    stop: int | None,
) -> Iterator[list[int | None]]:
    context = model.config.context
    # How many last tokens of each live text are read.
    reading = {row: _window(text, context) for row, text in enumerate(texts)}
    with evaluating(model):
        logits, cache, slots = _read(model, texts, reading, max_new_tokens)
    for remaining in range(max_new_tokens - 1, -1, -1):
        chosen: list[int | None] = [None] * len(texts)
        for row in list(reading):
            token = choice(logits[slots[row]], generators[row])
            if token == stop:
                del reading[row]
            else:
                chosen[row] = token
                texts[row].append(token)
        if not reading:
            return
        yield chosen
        if remaining == 0:
            return
        with evaluating(model):
            if cache.length == cache.capacity or context in reading.values():
                reading = {row: _window(texts[row], context, count + 1) for row, count in reading.items()}
                logits, cache, slots = _read(model, texts, reading, remaining)
            else:
                logits = _step(model, texts, reading, cache, slots)
                reading = {row: count + 1 for row, count in reading.items()}


def _window(text: list[int], context: int, wanted: int | None = None) -> int:
    """How many last tokens to read: all that are wanted, or context // 2 once they are more than the context."""
    wanted = len(text) if wanted is None else wanted
    return wanted if wanted <= context else max(1, context // 2)


def _read(
    model: LanguageModel, texts: list[list[int]], reading: dict[int, int], remaining: int
) -> tuple[Tensor, Cache, dict[int, int]]:
    """Read the live texts into a new cache. Returns the last logits, the cache and each text's row in both."""
    device = model.embedding.weight.device
    longest = max(reading.values())
    at = Positions.tokens(list(reading.values()), padded_to=longest, side="left").to(device)
    rows = [[0] * (longest - count) + texts[row][-count:] for row, count in reading.items()]
    cache = model.new_cache(len(rows), min(model.config.context, longest + remaining))
    logits = model(torch.tensor(rows, device=device), at, cache)[:, -1]
    return logits, cache, {row: slot for slot, row in enumerate(reading)}


def _step(
    model: LanguageModel, texts: list[list[int]], reading: dict[int, int], cache: Cache, slots: dict[int, int]
) -> Tensor:
    """Read the newest token of every live text; a text that has stopped gets padding."""
    device = model.embedding.weight.device
    tokens = torch.zeros(cache.batch, 1, dtype=torch.int64)
    index, segment = torch.zeros_like(tokens), torch.full_like(tokens, -1)
    for row, count in reading.items():
        tokens[slots[row]], index[slots[row]], segment[slots[row]] = texts[row][-1], count, 0
    at = Positions(index=index, segment=segment).to(device)
    return model(tokens.to(device), at, cache)[:, -1]


def _generators(texts: list[list[int]], seed: int | None) -> list[torch.Generator]:
    """One for each text, seeded by the seed, the text, and how often the same text came before."""
    seed = int(torch.randint(2**48, ())) if seed is None else seed
    generators = []
    for number, text in enumerate(texts):
        code = hashlib.blake2b(repr((seed, text, texts[:number].count(text))).encode(), digest_size=6)
        generators.append(torch.Generator().manual_seed(int.from_bytes(code.digest(), "big")))
    return generators


def _check_arguments(
    model: LanguageModel,
    texts: list[list[int]],
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    stop: int | None,
) -> None:
    if not texts:
        raise ValueError("no prompt given")
    for number, text in enumerate(texts):
        if not text:
            raise ValueError(f"prompt {number} is empty: start from the beginning-of-text token (BOS) of the tokenizer")
        for place, token in enumerate(text):
            if not 0 <= token < model.vocabulary:
                raise ValueError(
                    f"token id {token} at place {place} of prompt {number} is outside the vocabulary: "
                    f"ids reach from 0 to {model.vocabulary - 1}"
                )
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be 0 (likeliest token) or above, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    if stop is not None and not 0 <= stop < model.vocabulary:
        raise ValueError(f"stop token {stop} is outside the vocabulary: ids reach from 0 to {model.vocabulary - 1}")


def _check_rule(model: LanguageModel, texts: list[list[int]], max_new_tokens: int) -> None:
    """Refuse rules under which a position that was read before would see one that comes later.

    The keys and values in the cache were computed without it, so that decoding would not be the model that was trained.
    It is tried on the first keys after the shortest text, where every rule that looks ahead from near does so.
    """
    context = model.config.context
    read = min(_window(text, context) for text in texts)
    reach = max(map(len, texts)) + max_new_tokens - 1
    if reach > context:
        read, reach = min(read, max(1, context // 2)), context
    reach = min(reach, read + 128)
    if reach <= read:
        return
    at = Positions.tokens([reach])
    seen = plan(model.mask, at, heads=model.config.heads, k_at=at.narrow(read, reach), align="index").visible
    queries, keys = torch.arange(reach)[:, None], torch.arange(read, reach)[None, :]
    ahead = (seen & (queries < keys)).nonzero()
    if len(ahead):
        query, key = int(ahead[0, -2]), read + int(ahead[0, -1])
        raise ValueError(
            f"the rule {model.mask!r} cannot be decoded step by step: position {query} sees position {key}, which "
            f"comes later than the {read} tokens read at first. Use a rule with causal in it, or a longer prompt"
        )
