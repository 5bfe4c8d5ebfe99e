"""`Bias`: how much more or less a query attends to a key, as a table and the index of each pair in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar

from torch import Tensor, nn

from maskzoo import registry
from maskzoo.provider import Side, provider_text


class Index(NamedTuple):
    """The row of a table for each pair, int64 that broadcasts to [B, Tq, Tk], and how many rows that takes."""

    rows: Tensor
    entries: int


Indices: TypeAlias = "Index | tuple[Indices, ...]"
"""An index for each term of a bias."""


class Bias(nn.Module):
    """A finite offset of the score of each (head, query, key).

    A provider writes `index(q, k)`, an integer for each pair, and `table(entries)`, the offset of each head for each
    index; the table may be learned. Biases add with `+` and scale by numbers.

    Args:
        heads: H, the number of query heads.
    """

    provider_name: ClassVar[str] = ""

    def __init__(self, heads: int) -> None:
        super().__init__()
        if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
            raise ValueError(f"a bias needs heads=, an integer of at least 1; was {heads!r}")
        self.heads = heads

    def index(self, q: Side, k: Side) -> Tensor:
        """The row of the table for each pair: int64 ≥ 0, broadcasts to [B, Tq, Tk]."""
        raise TypeError(f"{type(self).__name__} is a bias without an index: write its index(self, q, k)")

    def table(self, entries: int) -> Tensor:
        """The offsets, float [H, N] with N of at least `entries`, the highest index + 1."""
        raise TypeError(f"{type(self).__name__} is a bias without a table: write its table(self, entries)")

    def indices(self, q: Side, k: Side) -> Indices:
        """Everything about this bias that depends on the positions alone."""
        rows = self.index(q, k)
        return Index(rows, int(rows.max()) + 1)

    def scores(self, indices: Indices) -> Tensor:
        """The offsets of all pairs, float, broadcasts to [B, H, Tq, Tk]; differentiable in the table."""
        assert isinstance(indices, Index)
        return self.table(indices.entries)[:, indices.rows].movedim(0, 1)

    def __add__(self, other: Bias) -> Bias:
        return Sum(self, other) if isinstance(other, Bias) else NotImplemented

    def __mul__(self, factor: float) -> Bias:
        return Scaled(self, float(factor)) if isinstance(factor, (int, float)) else NotImplemented

    __rmul__ = __mul__

    def text(self) -> str:
        """The expression that builds this bias, given the heads."""
        return provider_text(self)

    def __repr__(self) -> str:
        return self.text()


class Sum(Bias):
    """Several biases added."""

    def __init__(self, *terms: Bias) -> None:
        if len({term.heads for term in terms}) > 1:
            raise ValueError(f"biases of different heads cannot be added: {[(repr(t), t.heads) for t in terms]}")
        super().__init__(terms[0].heads)
        self.terms: Sequence[Bias] = nn.ModuleList(terms)  # type: ignore[assignment]

    def indices(self, q: Side, k: Side) -> Indices:
        return tuple(term.indices(q, k) for term in self.terms)

    def scores(self, indices: Indices) -> Tensor:
        assert not isinstance(indices, Index)  # one for each term
        return reduce(add, (term.scores(own) for term, own in zip(self.terms, indices, strict=True)))

    def text(self) -> str:
        return " + ".join(map(repr, self.terms))


class Scaled(Bias):
    """A bias times a constant."""

    def __init__(self, term: Bias, factor: float) -> None:
        super().__init__(term.heads)
        self.term, self.factor = term, factor

    def indices(self, q: Side, k: Side) -> Indices:
        return self.term.indices(q, k)

    def scores(self, indices: Indices) -> Tensor:
        return self.factor * self.term.scores(indices)

    def text(self) -> str:
        return (
            f"{self.factor:g} * ({self.term!r})" if isinstance(self.term, Sum) else f"{self.factor:g} * {self.term!r}"
        )


Provider = TypeVar("Provider", bound=type[Bias])


def register_bias(name: str) -> Callable[[Provider], Provider]:
    """Class decorator that makes a bias available under `name`, in text form and in `maskzoo list`.

    Raises:
        ValueError: the name is taken, or the class is no `Bias`.
    """

    def enter(provider: Provider) -> Provider:
        if not (inspect.isclass(provider) and issubclass(provider, Bias)):
            raise ValueError(f"bias {name!r} must be a subclass of maskzoo.Bias; {provider!r} is not")
        provider.provider_name = name
        return registry.biases.register(name)(provider)

    return enter
