"""Does step-by-step decoding give what the whole prefix at once gives?"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskzoo.audit.checks.comparing import Inapplicable, difference, finding, said, tolerance
from maskzoo.audit.finding import Finding
from maskzoo.positions import Positions
from maskzoo.transformer.language_model import LanguageModel

if TYPE_CHECKING:
    from maskzoo.audit.subject import Subject

Decode = Callable[..., Tensor | Iterable[Tensor]]


@torch.no_grad()
def decode_mismatch(
    subject: Subject,
    decode: Decode | None = None,
    *,
    permission: Tensor | None = None,
    real: Tensor | None = None,
    setting: str = "",
) -> list[Finding]:
    """Compare the outputs of the whole input with those of a run in steps, which see what the steps before have kept.

    Args:
        subject: the model in evaluation mode.
        decode: `decode(inputs)` or `decode(model, inputs)` gives the outputs in steps: tensors [B, n, F], or [B, F] for
            one position, together as many as there are positions; or all of them [B, T, F]. Only with `model`, which is
            the audit's own copy, is the decoding measured in the subject's number type. Default, for a LanguageModel:
            its own cache, position by position, and again in uneven steps.
        permission: bool [B or 1, T, T], what may be seen. The default decoding reads positions that see later ones
            together with them.
        real: bool [B or 1, T]: outputs in padding are not judged.
        setting: words that the message ends with.

    Raises:
        Inapplicable: no way to decode is given or known, or wherever one would cut, a position sees later ones.
        ValueError: the steps give another number of outputs.
    """
    full = subject.run(subject.watched)
    for how, stepwise in _ways(subject, decode, permission):
        steps = _joined(stepwise, full)
        if steps.shape != full.shape:
            raise ValueError(f"decoding gives outputs of shape {list(steps.shape)}, the whole run {list(full.shape)}")
        allowed = max(tolerance(full), tolerance(steps))
        moved = difference(full, steps.to(full.device))
        if real is not None:
            moved = moved.masked_fill(~real.cpu(), 0.0)
        wrong = moved > allowed
        if wrong.any():
            ahead = _looking_ahead(subject, full, wrong, permission).any(dim=0)
            wrong &= ~ahead.cummax(dim=0).values  # what comes after a leak may read what it left
        if wrong.any():
            query = int(wrong.any(dim=0).nonzero()[0, 0])
            row = int(wrong[:, query].nonzero()[0, 0])
            message = f"output {query} of row {row} is the first that differs when decoded {how}{said(setting)}"
            size = float(moved[wrong].max())
            return [finding("decode mismatch", message, size, pairs=int(wrong.sum()), row=row, query=query)]
    return []


def _looking_ahead(subject: Subject, full: Tensor, wrong: Tensor, permission: Tensor | None) -> Tensor:
    """Of the outputs that differ, those that move with later inputs which they may not see, bool [B, T]: leaks, which
    no decoding could give."""
    ahead = torch.zeros_like(wrong)
    if subject.queries != subject.keys:
        return ahead
    others = subject.substitutes(3, torch.Generator().manual_seed(0))
    places = torch.arange(subject.keys)
    for query in wrong.any(dim=0).nonzero()[:, 0].tolist():
        hidden = places > query
        if permission is not None:
            hidden = hidden & ~permission[:, query].any(dim=0).cpu()
        shape = [1] * subject.watched.ndim
        shape[subject.input_axis] = -1
        for values in others:
            changed = torch.where(hidden.view(shape).to(values.device), values, subject.watched)
            ahead[:, query] |= (difference(full, subject.run(changed)) > tolerance(full))[:, query]
    return ahead


def _ways(subject: Subject, decode: Decode | None, permission: Tensor | None) -> Iterable[tuple[str, Any]]:
    if decode is not None:
        takes = inspect.signature(decode).parameters.values()
        needed = [
            one
            for one in takes
            if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        yield "step by step", decode(subject.module, subject.inputs) if len(needed) > 1 else decode(subject.inputs)
        return
    model = subject.module
    if not isinstance(model, LanguageModel):
        raise Inapplicable("decoding: give decode=, a function from the inputs to the outputs step by step")
    tokens, at = _tokens(subject)
    if permission is None:
        permission = model.plan(at).visible.any(dim=1)
    cuts = _cuts(permission.cpu())
    if not cuts and tokens.shape[1] > 1:
        raise Inapplicable("decoding: everywhere some position sees later ones, so nothing can be read in steps")
    yield "position by position", _cached(model, tokens, at, cuts)
    if len(cuts) > 2:
        yield (
            "in uneven steps",
            _cached(model, tokens, at, [cut for cut in cuts if cut % 3 == 0 or cut > 2 * len(cuts) // 3]),
        )


def _cuts(permission: Tensor) -> list[int]:
    """Where the positions may be cut in two so that none before sees one after. permission: bool [B, T, T]."""
    pairs = permission.any(dim=0)
    length = len(pairs)
    ahead = torch.where(pairs, torch.arange(length), -1).amax(dim=1).cummax(dim=0).values  # the latest seen so far
    return [cut for cut in range(1, length) if int(ahead[cut - 1]) < cut]


def _cached(model: LanguageModel, tokens: Tensor, at: Positions, cuts: Sequence[int]) -> list[Tensor]:
    bounds = itertools.pairwise([0, *cuts, tokens.shape[1]])
    try:
        cache = model.new_cache(len(tokens), tokens.shape[1])
        return [model(tokens[:, start:stop], at.narrow(start, stop), cache) for start, stop in bounds]
    except Exception as error:  # a model made from LanguageModel that keeps no cache
        raise Inapplicable(f"decoding: the model does not run with its cache ({error})") from error


def _tokens(subject: Subject) -> tuple[Tensor, Positions]:
    inputs = subject.inputs
    values = (
        list(inputs.values()) if isinstance(inputs, dict) else list(inputs) if isinstance(inputs, tuple) else [inputs]
    )
    at = next((value for value in values if isinstance(value, Positions)), None)
    tokens = subject.watched
    return tokens, Positions.tokens(tokens.shape[1]).to(tokens.device) if at is None else at


def _joined(steps: Any, full: Tensor) -> Tensor:
    """All outputs of a decoding, [B, T, F]."""
    if isinstance(steps, Tensor):
        return steps.reshape(*steps.shape[:2], -1)
    parts = [step if step.ndim == 3 else step[:, None] for step in steps]
    if not parts:
        raise ValueError("decoding gave no outputs")
    assert full.ndim == 3
    return torch.cat(parts, dim=1)
