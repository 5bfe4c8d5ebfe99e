"""`check`: the course of an audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from maskzoo.audit import checks
from maskzoo.audit.checks import Inapplicable
from maskzoo.audit.checks.comparing import difference, finding, said
from maskzoo.audit.finding import Finding
from maskzoo.audit.influence import ROUNDING, by_gradient, by_substitution, replaced, rounding
from maskzoo.audit.locating import locate
from maskzoo.audit.permission import Permission, Permits, permission, positions_among
from maskzoo.audit.probing import Leak, probed
from maskzoo.audit.report import Report
from maskzoo.audit.subject import Subject
from maskzoo.positions import Positions

METHODS = ("auto", "exact", "quick")

PROBES = 12
"""Outputs that the quick method probes."""

LONGEST_EXACT, PATIENCE = 512, 120.0
"""Positions, and seconds by the time of one run, up to which "auto" is exact."""

MOST_PROBED = 64
"""Outputs that the exact method probes in each further setting."""

NOISE = 0.02
"""Share of their size that is added to trained parameters: what starts at zero is no blind spot."""

REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError, KeyError)
"""What a model may answer to a number type, mode or length that it does not take."""


def check(
    model: nn.Module | Callable[..., Any],
    inputs: Any,
    permits: Permits | None = None,
    *,
    layers: int | None = None,
    at: Positions | None = None,
    watch: int | str | None = None,
    output: Callable[[Any], Tensor] | None = None,
    axis: int | tuple[int, int | None] = 1,
    method: str = "auto",
    targets: Tensor | None = None,
    decode: Callable[..., Any] | None = None,
    symmetric: bool = False,
    lengths: Sequence[int] | None = None,
    blind_spots: bool = True,
    seed: int = 0,
) -> Report:
    """Measure what every output of a model depends on, and compare it with what a rule permits.

    The model is copied, and runs in float64, in its own number type, in training mode, in bfloat16 and on shorter
    inputs, as far as it can; what it cannot is listed as skipped. An output moves with an input if its gradient is not
    zero, or if another value in that place changes it by more than rounding. Trained parameters of the float64 copy
    get 2 % of noise, so that what starts at zero hides nothing.

    Args:
        model: any module or function.
        inputs: what it is called with: a tensor [B, T, …], a tuple or a dictionary.
        permits: the rule of each layer, as `maskzoo.audit.permission.permission` takes it: "causal", a Mask, a boolean
            tensor, a function, or "all". None for a model that states its own by a method `audit_rule()`, as
            LanguageModel does.
        layers: how many layers apply the rule one after the other; None: any number.
        at: positions for the rule; by default those among the inputs, or one sequence a row.
        watch, output, axis: as for `Subject`.
        method: "exact": every pair, by one backward pass an output and one run an input; "quick": 12 random outputs;
            "auto": exact up to 512 positions and about two minutes.
        targets: int [B, T], −100 where none: no output may move with its own answer. `checks.target_alignment` does the
            same from raw data, without guessing.
        decode: the outputs in steps, as `checks.decode_mismatch` takes it.
        symmetric: outputs must be permuted as inputs are.
        lengths: shorter lengths that are tried too; by default 1, 2, half, and one less.
        blind_spots: warn of what is permitted and has no influence.
        seed: of all random values.

    Raises:
        ValueError: there is no rule, the model does not run on the inputs, or what `targets`, `decode` or `symmetric`
            asks for cannot be checked.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if permits is None:
        permits, layers = _own_rule(model, layers)
    at = at or (None if isinstance(inputs, Tensor) else positions_among(inputs, _length(inputs)))
    subject = Subject(model, inputs, watch=watch, output=output, axis=axis)
    audit = _Audit(subject, permission(permits, subject, layers, at), at, seed)
    if method == "auto":
        method = audit.affordable()
    shorter = _shorter(subject.keys) if lengths is None else [length for length in lengths if length < subject.keys]
    if method == "quick":
        audit.quick()
        shorter = [] if lengths is None else shorter
    else:
        audit.exact(blind_spots)
    audit.on_shorter(shorter, permits, layers)
    if method == "exact":
        audit.on_companions()
    audit.asked_for(targets, decode, symmetric)
    return audit.report(method)


class _Audit:
    """What is gathered in the course of an audit."""

    def __init__(self, subject: Subject, rule: Permission, at: Positions | None, seed: int) -> None:
        self.subject, self.rule, self.seed = subject, rule, seed
        self.at = at if at is not None and at.length == subject.keys else None
        real = checks.real_positions(subject.inputs, subject.keys)
        real = self.at.real if real is None and self.at is not None else real
        self.real = None if real is None or bool(real.all()) else real.cpu()
        """bool [B or 1, Tk], positions that are no padding; None where there is none."""
        self.findings: list[Finding] = []
        self.checked: list[str] = []
        self.skipped: list[str] = []
        self.influence: Tensor | None = None
        self.miss = ""
        self.started = time.perf_counter()
        self.double: Subject | None = None
        """The noised copy in float64, or in its own number type where it cannot; None in the quick method."""

    def affordable(self) -> str:
        """Which method the time of one run allows."""
        begin = time.perf_counter()
        with torch.no_grad():
            self.subject.run()
        seconds = time.perf_counter() - begin
        runs = 8 * self.subject.keys
        return "exact" if self.subject.keys <= LONGEST_EXACT and runs * seconds <= PATIENCE else "quick"

    def report(self, method: str) -> Report:
        permitted = self.permitted.any(0)
        return Report(
            findings=tuple(self.findings),
            influence=self.influence,
            permission=permitted,
            rule=self.rule.rule,
            method=method,
            checks=tuple(self.checked),
            skipped=tuple(self.skipped),
            passes=self.subject.passes,
            seconds=time.perf_counter() - self.started,
            miss=self.miss,
        )

    @property
    def permitted(self) -> Tensor:
        """bool [B or 1, Tq, Tk]; what outputs in padding depend on is nobody's concern."""
        if self.real is None or self.subject.queries != self.subject.keys:
            return self.rule.permitted
        return self.rule.permitted | ~self.real[:, :, None]

    def quick(self) -> None:
        """Random outputs in evaluation and in training mode, and rows of the batch against one another."""
        self.subject.embedding  # noqa: B018  # looked for once, for all parts of the batch
        one = self.subject.rows(torch.tensor([0])) if self.subject.batch > 1 else self.subject
        rule = self.permitted[:1]
        generator = torch.Generator().manual_seed(self.seed)
        queries = torch.randperm(one.queries, generator=generator)[:PROBES].tolist()
        self._probe(one, rule, queries, "")
        training = "in training mode"
        if not self.findings:
            self._probe(one.in_setting(training=True), rule, queries[: PROBES // 4], training)
        if self.subject.batch > 1:
            together = self.subject.in_setting(training=True)
            self._try(lambda: checks.batch_coupling(together, setting=training, draws=1), "rows of the batch")
        chance = 0.0 if len(queries) == one.queries else 0.9 ** len(queries)
        self.miss = (
            f"{len(queries)} random outputs of the {one.queries} of one row: a leak that shows on a tenth of them "
            f"is missed with a chance of at most {chance:.0%}, on a share w with at most (1 − w)^{len(queries)}"
        )
        self.skipped.append(
            "what method='exact' does besides: every pair, blind spots, other number types, shorter inputs, padding, "
            "packing, dead queries, decoding"
        )

    def exact(self, blind_spots: bool) -> None:
        """Every pair in float64, then groups of inputs in the settings that the model is used in."""
        double = self._in(self.subject, "in float64", dtype=torch.float64, noise=NOISE)
        setting = ""
        if double is None:
            double, setting = self.subject.in_setting(noise=NOISE), "in its own number type"
        self.double = double
        influence = by_substitution(double, draws=2, seed=self.seed)
        gradient = self._gradient(double)
        if gradient is not None:
            influence = torch.maximum(influence, gradient)
        self.checked.append("every pair, by substitution" + (" and by gradient" if gradient is not None else ""))
        self._compare(double, influence, blind_spots, setting)
        count = min(self.subject.queries, MOST_PROBED)
        queries = sorted({round(i * (self.subject.queries - 1) / max(1, count - 1)) for i in range(count)})
        settings: dict[str, dict[str, Any]] = {
            "in evaluation mode": {},
            "in training mode": {"training": True},
            "under bfloat16 autocast": {"autocast": True},
            "in bfloat16": {"dtype": torch.bfloat16},
        }
        for name, changes in settings.items():
            own = self._in(self.subject, name, **changes)
            if own is not None:
                self._probe(own, self.permitted, queries, name)

    def on_shorter(self, lengths: Sequence[int], permits: Permits, layers: int | None) -> None:
        """The first positions alone."""
        for length in lengths:
            setting = f"with {length} position{'' if length == 1 else 's'}"
            try:
                short = self.subject.shortened(length)
                rule = permits
                if isinstance(permits, Tensor) and permits.shape[-1] == self.subject.keys:
                    rule = permits[..., : short.queries, :length]
                own = None if self.at is None else self.at.narrow(0, length)
                permitted = permission(rule, short, layers, own).permitted
                if self.real is not None and short.queries == length:
                    permitted = permitted | ~self.real[:, :length, None]
            except REFUSALS as reason:
                self.skipped.append(f"{setting}: {_first_line(reason)}")
                continue
            self._probe(short, permitted, range(short.queries), setting)

    def on_companions(self) -> None:
        """Other rows, padding, and documents of the same row."""
        if self.subject.batch > 1:
            training = self._in(self.subject, "in training mode", training=True)
            self.findings += self.coupling
            self.checked.append("rows of the batch")
            if training is not None and not self.coupling:
                self._try(lambda: checks.batch_coupling(training, setting="in training mode"), "rows, in training")
            self._try(lambda: checks.alone(self.judged), "rows alone")
        real, at = self.real, self.at
        if real is not None:
            self._try(lambda: checks.padding_values(self.judged, real), "values in padding")
            self._try(lambda: checks.more_padding(self.judged, real), "more padding")
        if at is not None and bool((at.segment.amax(1) > at.segment.amin(1)).any()):
            self._try(lambda: checks.packing(self.judged, at.segment, self.rule.permitted), "documents alone")
        rows = None if real is None or self.subject.queries != self.subject.keys else real
        if self.double is not None:
            double = self.double
            self._try(lambda: checks.dead_queries(double, self.rule.single, real=rows), "dead queries")

        if hasattr(self.subject.module, "new_cache"):
            self._try(lambda: checks.decode_mismatch(self.judged, permission=self.rule.single), "decoding in steps")

    def asked_for(self, targets: Tensor | None, decode: Callable[..., Any] | None, symmetric: bool) -> None:
        """What is only checked where it is asked for; if it cannot be checked, that is an error."""
        if targets is not None:
            self.findings += checks.aligned_targets(self.judged, targets)
            self.checked.append("target alignment")
        if decode is not None:
            self.findings += checks.decode_mismatch(self.judged, decode, permission=self.rule.single)
            self.checked.append("decoding in steps, as given")
        if symmetric:
            self.findings += checks.broken_symmetry(self.judged)
            self.checked.append("symmetry")

    @cached_property
    def judged(self) -> Subject:
        """The model as it is in evaluation mode, in float64 where it can."""
        return self.subject if self.double is None else self.double.in_setting(noise=0.0)

    @cached_property
    def coupling(self) -> list[Finding]:
        """Findings that rows of the batch move with one another."""
        try:
            return checks.batch_coupling(self.judged)
        except Inapplicable:
            return []

    def _compare(self, subject: Subject, influence: Tensor, blind_spots: bool, setting: str) -> None:
        permitted = self.permitted.expand_as(influence)
        share = ROUNDING.get(subject.setting.dtype or torch.float32, 1e-5)
        floor = influence.amax((0, 2), keepdim=True) * share
        leaking = ~permitted & (influence > floor)
        if leaking.any() and self.coupling:
            leaking &= self._within_rows(subject, leaking.any(0).any(0).nonzero()[:, 0])
        self.influence = influence.where(permitted | leaking, 0.0).amax(0)
        if leaking.any():
            largest = torch.unravel_index(influence.where(leaking, 0.0).argmax(), influence.shape)
            row, query, key = (int(place) for place in largest)
            leak = Leak(row, query, key, float(influence[row, query, key]), int(leaking.sum()), subject.watched)
            self._found_leak(subject, leak, setting, pairs=int(leaking.any(0).sum()))
        if blind_spots:
            self._blind_spots(influence, subject)

    def _blind_spots(self, influence: Tensor, subject: Subject) -> None:
        blind = (self.rule.promised.expand_as(influence) & (influence == 0)).any(0)
        blind &= ~(influence != 0).any(0)
        if self.real is not None:
            blind &= self.real.any(0)[None]
            if blind.shape[0] == blind.shape[1]:
                blind &= self.real.any(0)[:, None]
        if blind.any():
            query, key = blind.nonzero()[-1].tolist()
            message = f"output {query} never moves with input {key}, which {self.rule.rule} permits"
            where: dict[str, Any] = {"query": query, "key": key, "pairs": int(blind.sum()), "severity": "warning"}
            self.findings.append(finding("blind spot", message, 0.0, **where))

    def _within_rows(self, subject: Subject, keys: Tensor) -> Tensor:
        """Which outputs move with inputs of their own row, bool [B, Tq, Tk]."""
        moved = torch.zeros(subject.batch, subject.queries, subject.keys, dtype=torch.bool)
        with torch.no_grad():
            base = subject.run()
            values = subject.substitutes(1, torch.Generator().manual_seed(self.seed))[0]
            for row in range(subject.batch):
                for key in keys.tolist():
                    other = replaced(subject, values, torch.tensor([key]), torch.tensor([row]))
                    moved[row, :, key] = difference(base, subject.run(other))[row] > rounding(base)
        return moved

    def _gradient(self, subject: Subject) -> Tensor | None:
        try:
            return by_gradient(subject, directions=1, seed=self.seed)
        except REFUSALS as reason:
            self.skipped.append(f"by gradient: {_first_line(reason)}")
            return None

    def _probe(self, subject: Subject, permitted: Tensor, queries: Sequence[int], setting: str) -> None:
        """Look for a leak, unless one is known that shows in every setting."""
        if any(one.kind == "leak" for one in self.findings):
            return
        try:
            leak = probed(subject, permitted, list(queries), seed=self.seed)
        except REFUSALS as reason:
            self.skipped.append(f"{setting or 'random outputs'}: {_first_line(reason)}")
            return
        self.checked.append(setting or "random outputs")
        if leak is not None:
            self._found_leak(subject, leak, setting, pairs=leak.outputs)

    def _found_leak(self, subject: Subject, leak: Leak, setting: str, pairs: int) -> None:
        message = (
            f"output {leak.query} moves with input {leak.key}, which {self.rule.rule} does not permit{said(setting)}"
        )
        where: dict[str, Any] = {"row": leak.row, "query": leak.query, "key": leak.key, "pairs": pairs}
        where.update(self._place(subject, leak))
        self.findings.append(finding("leak", message, leak.size, **where))

    def _place(self, subject: Subject, leak: Leak) -> dict[str, Any]:
        """The layer and head where a leak first appears."""
        changed = leak.changed
        if changed is subject.watched:
            values = subject.substitutes(1, torch.Generator().manual_seed(self.seed))[0]
            changed = replaced(subject, values, torch.tensor([leak.key]), torch.tensor([leak.row]))
        single, keys = self.rule.single, subject.keys
        square = single.shape[1] == single.shape[2] == keys
        rule = single[leak.row if len(single) > 1 else 0] if square else None
        try:
            with torch.no_grad():
                place = locate(subject, changed, rule, leak.query)
        except REFUSALS as reason:
            self.skipped.append(f"where the leak appears: {_first_line(reason)}")
            return {}
        return {"layer": place.layer, "head": place.head, "module": place.kind}

    def _in(self, subject: Subject, name: str, **changes: Any) -> Subject | None:
        """The model in another setting; None, with the reason noted down, where it does not run in it."""
        try:
            other = subject.in_setting(**changes)
            with torch.no_grad():
                other.run()
        except REFUSALS as reason:
            note = f"{name}: {_first_line(reason)}"
            if note not in self.skipped:
                self.skipped.append(note)
            return None
        return other

    def _try(self, run: Callable[[], list[Finding]], name: str) -> None:
        try:
            self.findings += run()
            self.checked.append(name)
        except Inapplicable as reason:
            self.skipped.append(str(reason))
        except REFUSALS as reason:
            self.skipped.append(f"{name}: {_first_line(reason)}")


def _shorter(length: int) -> list[int]:
    return sorted({1, 2, length // 2, length - 1} - {0, length})


def _length(inputs: Any) -> int:
    values = inputs.values() if isinstance(inputs, dict) else inputs
    return next((value.length for value in values if isinstance(value, Positions)), 0)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _own_rule(model: Any, layers: int | None) -> tuple[Permits, int | None]:
    own = getattr(model, "audit_rule", None)
    if not callable(own):
        raise ValueError(
            'permits= is missing: say what each output may depend on, such as permits="causal", a Mask, a boolean '
            'tensor [Tq, Tk] (True = permitted), a function of both positions, or "all"'
        )
    rule, depth = own()
    return rule, depth if layers is None else layers
