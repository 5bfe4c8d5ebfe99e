"""The algebra of masks: `a & b`, `a | b`, `~a`, and a stack of one rule per head."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor

from maskzoo.masks.base import Mask
from maskzoo.provider import Side

Joined = TypeVar("Joined", bound="_Joined")


@dataclass(frozen=True, repr=False)
class _Joined(Mask):
    terms: tuple[Mask, ...]

    symbol: ClassVar[str]

    @classmethod
    def of(cls: type[Joined], *terms: Mask) -> Joined:
        """Join rules, flattening those that are already joined in the same way."""
        for term in terms:
            if isinstance(term, PerHead):
                raise ValueError(
                    f"a stack of per-head rules is no term of another rule: {term!r}. "
                    "Combine the rules inside the stack, one by one"
                )
        flat: list[Mask] = []
        for term in terms:
            flat.extend(term.terms if isinstance(term, cls) else (term,))
        return cls(tuple(flat))

    def leaves(self) -> Iterator[Mask]:
        for term in self.terms:
            yield from term.leaves()

    def text(self) -> str:
        return f" {self.symbol} ".join(
            f"({term!r})" if isinstance(term, _Joined) and not self._binds_looser_than(term) else repr(term)
            for term in self.terms
        )

    def _binds_looser_than(self, term: _Joined) -> bool:
        return self.symbol == "|" and term.symbol == "&"


@dataclass(frozen=True, repr=False)
class And(_Joined):
    """Pairs that every term lets see."""

    symbol: ClassVar[str] = "&"

    def visible(self, q: Side, k: Side) -> Tensor:
        return functools.reduce(Tensor.__and__, (term.visible(q, k) for term in self.terms))


@dataclass(frozen=True, repr=False)
class Or(_Joined):
    """Pairs that some term lets see."""

    symbol: ClassVar[str] = "|"

    def visible(self, q: Side, k: Side) -> Tensor:
        return functools.reduce(Tensor.__or__, (term.visible(q, k) for term in self.terms))


@dataclass(frozen=True, repr=False)
class Not(Mask):
    """Pairs that the term hides."""

    term: Mask

    def __post_init__(self) -> None:
        if isinstance(self.term, PerHead):
            raise ValueError(f"a stack of per-head rules cannot be negated as a whole: {self.term!r}; negate inside it")

    def visible(self, q: Side, k: Side) -> Tensor:
        return ~self.term.visible(q, k)

    def leaves(self) -> Iterator[Mask]:
        return self.term.leaves()

    def text(self) -> str:
        return f"~({self.term!r})" if isinstance(self.term, _Joined) else f"~{self.term!r}"


@dataclass(frozen=True, repr=False)
class PerHead(Mask):
    """One rule per head, in the order of the heads: `stack(causal, window(8))`."""

    rules: tuple[Mask, ...]

    def __post_init__(self) -> None:
        if not self.rules:
            raise ValueError("stack() needs at least one rule: one per head")
        for rule in self.rules:
            if isinstance(rule, PerHead):
                raise ValueError(f"a stack of per-head rules cannot stand inside another: {rule!r}")

    def visible(self, q: Side, k: Side) -> Tensor:
        raise TypeError("a stack has one rule per head; read its rules one by one")

    def leaves(self) -> Iterator[Mask]:
        for rule in self.rules:
            yield from rule.leaves()

    def text(self) -> str:
        return f"stack({', '.join(map(repr, self.rules))})"


def stack(*rules: Mask) -> PerHead:
    """One rule per head: `stack(causal, causal & window(8))` for two heads."""
    return PerHead(rules)
