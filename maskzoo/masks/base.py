"""`Mask`: a rule over (query position, key position), and what every rule can do."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ClassVar, TypeVar

from torch import Tensor

from maskzoo import registry
from maskzoo.provider import Side, provider_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskzoo.masks.algebra import And, Not, Or


class Mask:
    """A rule that says which keys a query may see. True = visible.

    A provider is a frozen dataclass that writes `visible` and range-checks its parameters in `__post_init__`.
    Rules combine with `&`, `|` and `~`. `and`, `or` and `not` cannot be given that meaning in Python, so they raise.
    """

    provider_name: ClassVar[str] = ""
    """The name in the text form; `register_mask` fills it in."""

    between_sequences: ClassVar[bool] = False
    """The rule relates two different sequences (source and target), whose indices both count from 0."""

    crosses_segments: ClassVar[bool] = False
    """The rule lifts the boundary between segments that every plan otherwise adds."""

    @property
    def needs_sequence(self) -> bool:
        """The rule reads `q.sequence`, the place in the batch, so that sequences with equal positions may differ."""
        return False

    @property
    def batch(self) -> int:
        """How many sequences the rule itself is made for; 1 for rules that serve any batch."""
        return 1

    def visible(self, q: Side, k: Side) -> Tensor:
        """Which pairs are visible, as a boolean tensor that broadcasts to [B, Tq, Tk]."""
        raise TypeError(f"{type(self).__name__} is a mask without a rule: write its visible(self, q, k)")

    def __and__(self, other: Mask) -> And:
        from maskzoo.masks.algebra import And

        return And.of(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Or:
        from maskzoo.masks.algebra import Or

        return Or.of(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Not:
        from maskzoo.masks.algebra import Not

        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError(f"the mask {self!r} has no truth value: combine masks with &, | and ~, not with and, or, not")

    def leaves(self) -> Iterator[Mask]:
        """The providers that the rule is made of."""
        yield self

    def text(self) -> str:
        """The expression that builds this rule: `causal`, `window(256)`, `prefix(size=4)`."""
        return provider_text(self)

    def __repr__(self) -> str:
        return self.text()

    def __init_subclass__(cls) -> None:
        # A dataclass writes its own __repr__ unless the class has one: a rule's is always its text form.
        cls.__repr__ = Mask.__repr__  # type: ignore[method-assign]


Provider = TypeVar("Provider", bound=type[Mask])


def register_mask(name: str) -> Callable[[Provider], Provider]:
    """Class decorator that makes a mask available under `name`, in text form and in `maskzoo list`.

    Raises:
        ValueError: the name is taken, or the class is no `Mask` with a `visible` of its own.
    """

    def add(provider: Provider) -> Provider:
        if not (inspect.isclass(provider) and issubclass(provider, Mask)) or provider.visible is Mask.visible:
            raise ValueError(
                f"mask {name!r} must be a subclass of maskzoo.Mask with its own visible(self, q, k); "
                f"{getattr(provider, '__name__', provider)!r} is not"
            )
        if name == "stack":
            raise ValueError("mask name 'stack' is the word that gives one rule per head; choose another")
        provider.provider_name = name
        return registry.masks.register(name)(provider)

    return add
