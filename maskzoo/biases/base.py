"""`Bias`: how much more or less a query attends to a key, as a table and where in it each pair stands."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from maskzoo import registry
from maskzoo.provider import Side, provider_text

LITERALS = (int, float, str, tuple, list, type(None))
"""What a parameter in a text may be."""


class Bias(nn.Module):
    """A finite offset of the score of each (head, query, key).

    A provider writes `index(q, k)`, an integer for each pair, and `table(entries)`, the offset of each head for each
    integer. The table may be learned, or computed from any parameters and modules that the provider has. Biases add
    with `+` and scale by numbers. Where the integer is a difference of positions, `OffsetBias` is far cheaper.

    Args:
        heads: H, the number of query heads.
    """

    provider_name: ClassVar[str] = ""
    """The name in the text form; `register_bias` fills it in."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
            raise ValueError(f"a bias needs heads=, an integer of at least 1; was {heads!r}")
        self.heads = heads

    @property
    def batch(self) -> int:
        """How many sequences the bias itself is made for; 1 for those that serve any batch."""
        return 1

    @property
    def needs_sequence(self) -> bool:
        """The bias reads `q.sequence`, the place of the sequence in the batch, so that equal sequences may differ."""
        return False

    def index(self, q: Side, k: Side) -> Tensor:
        """The entry of the table for each pair: int64 ≥ 0, broadcasts to [B, Tq, Tk], a function of the pair alone."""
        raise TypeError(f"{type(self).__name__} is a bias without an index: write its index(self, q, k)")

    def table(self, entries: Any) -> Tensor:  # an int; an OffsetBias is asked for differences instead
        """The offsets, float [H, N], finite, with N of at least `entries`, the highest index + 1.

        It is called without autocast.
        """
        raise TypeError(f"{type(self).__name__} is a bias without a table: write its table(self, entries)")

    def leaves(self) -> Iterator[tuple[float, Bias]]:
        """The providers that are added, each with its factor."""
        yield 1.0, self

    def __add__(self, other: Bias) -> Bias:
        return Sum(self, other) if isinstance(other, Bias) else NotImplemented

    def __mul__(self, factor: float) -> Bias:
        return Scaled(self, float(factor)) if isinstance(factor, (int, float)) else NotImplemented

    __rmul__ = __mul__

    def text(self) -> str:
        """The expression that builds this bias, given the heads; its name alone if that takes more than literals."""
        parameters = inspect.signature(type(self)).parameters
        if all(isinstance(getattr(self, name, self), LITERALS) for name in parameters):
            return provider_text(self)
        return self.provider_name or type(self).__name__

    def __repr__(self) -> str:
        return self.text()


class OffsetBias(Bias):
    """A bias whose offsets depend on differences of integers: of one that a query has, and one that a key has.

    A provider writes `code` and `table`. Nothing is stored for pairs: kernels take the differences where they need
    them. With several integers per position (C of them, such as row and column) there are C differences.
    """

    def code(self, at: Side) -> Tensor:
        """The integers of every position: int64, broadcasts to [B, T], or to [B, T, C] for C of them.

        Fields of `at` have shape [B, T] here, and `at.sequence` [B, 1].
        """
        raise TypeError(f"{type(self).__name__} is an offset bias without a code: write its code(self, at)")

    def q_code(self, q: Side) -> Tensor:
        """The queries' integers; written where they are not the keys', of the same C."""
        return self.code(q)

    def k_code(self, k: Side) -> Tensor:
        """The keys' integers, which are taken from the queries'."""
        return self.code(k)

    def table(self, differences: Tensor) -> Tensor:
        """The offsets, float [H, N], finite, for N differences query − key: int64 [N], or [N, C]."""
        raise TypeError(f"{type(self).__name__} is an offset bias without a table: write its table(self, differences)")


class Sum(Bias):
    """Several biases added."""

    def __init__(self, *terms: Bias) -> None:
        if len({term.heads for term in terms}) > 1:
            raise ValueError(f"biases of different heads cannot be added: {[(repr(t), t.heads) for t in terms]}")
        super().__init__(terms[0].heads)
        self.terms: Sequence[Bias] = nn.ModuleList(terms)  # type: ignore[assignment]

    def leaves(self) -> Iterator[tuple[float, Bias]]:
        for term in self.terms:
            yield from term.leaves()

    def text(self) -> str:
        return " + ".join(map(repr, self.terms))


class Scaled(Bias):
    """A bias times a constant."""

    def __init__(self, term: Bias, factor: float) -> None:
        super().__init__(term.heads)
        if not math.isfinite(factor):
            raise ValueError(f"the factor of a bias must be finite, was {factor!r}; to hide pairs, use a mask")
        self.term, self.factor = term, factor

    def leaves(self) -> Iterator[tuple[float, Bias]]:
        for factor, leaf in self.term.leaves():
            yield self.factor * factor, leaf

    def text(self) -> str:
        return (
            f"{self.factor:g} * ({self.term!r})" if isinstance(self.term, Sum) else f"{self.factor:g} * {self.term!r}"
        )


def picked(table: Tensor, index: Tensor) -> Tensor:
    """table[:, index] for a table [H, N] and int64 or int32 indices of any shape: [H, …].

    On CPUs the gradient is summed in a fixed order, which that of advanced indexing is not.
    """
    return table.index_select(1, index.flatten()).unflatten(1, index.shape)


Provider = TypeVar("Provider", bound=type[Bias])


def register_bias(name: str) -> Callable[[Provider], Provider]:
    """Class decorator that makes a bias available under `name`, in text form and in `maskzoo list`.

    Raises:
        ValueError: the name is taken, or the class is no `Bias` with an index or code of its own.
    """

    def enter(provider: Provider) -> Provider:
        if not (inspect.isclass(provider) and issubclass(provider, Bias) and _is_written(provider)):
            raise ValueError(
                f"bias {name!r} must be a subclass of maskzoo.Bias with its own index(self, q, k), or of "
                "maskzoo.OffsetBias with its own code(self, at), and with its own table; "
                f"{getattr(provider, '__name__', provider)!r} is not"
            )
        provider.provider_name = name
        return registry.biases.register(name)(provider)

    return enter


def _is_written(provider: type[Bias]) -> bool:
    if not issubclass(provider, OffsetBias):
        return provider.index is not Bias.index and provider.table is not Bias.table
    both_sides = provider.q_code is not OffsetBias.q_code and provider.k_code is not OffsetBias.k_code
    return (both_sides or provider.code is not OffsetBias.code) and provider.table is not OffsetBias.table
