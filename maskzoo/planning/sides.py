"""What a predicate sees of the positions: the elements of some pairs, or the bounds of whole blocks of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from maskzoo.masks.listed import Listed
from maskzoo.planning.fields import Field
from maskzoo.planning.intervals import Bounds, Trace, Value, check_range
from maskzoo.positions import Positions
from maskzoo.provider import LARGEST
from maskzoo.registry import nearest


class MissingField(ValueError):
    """A rule reads a field that the positions do not have."""


class Sequences:
    """The positions on one side of all pairs, with every field that a rule can read.

    Args:
        reader: what reads them, for errors.
    """

    def __init__(self, reader: object, at: Positions, tile: int) -> None:
        self.reader, self.at, self.tile = reader, at, tile
        self.tells_sequences_apart = False
        self.read: dict[str, Field] = {}

    def field(self, name: str) -> Field:
        """A field of the positions, or `slot`, the place in the row.

        Raises:
            MissingField: the positions do not have it.
        """
        if name not in self.read:
            self.read[name] = Field(self._values(name), self.tile)
        return self.read[name]

    def _values(self, name: str) -> Tensor:
        at = self.at
        if name == "slot":
            return torch.arange(at.length, device=at.device)[None]
        if name not in at.fields:
            raise MissingField(
                f"{self.reader!r} reads the field {name!r}, which these positions do not have."
                f"{nearest(name, at.fields)} They have {', '.join(at.fields)}; "
                f"add it by Positions.with_fields({name}=…)"
            )
        return at.fields[name]

    @property
    def small(self) -> bool:
        """No field holds more than 31 bits."""
        return all(int(values.min()) >= -LARGEST and int(values.max()) <= LARGEST for values in self.at.fields.values())

    def rows(self, name: str, sequence: Tensor) -> Tensor:
        """The row of the field for each sequence: what all sequences share has one row."""
        return sequence if self.field(name).values.shape[0] > 1 else torch.zeros_like(sequence)


class _Side:
    """One side of some pairs, as `maskzoo.provider.Side` describes it."""

    def __init__(self, all_of: Sequences, sequence: Tensor) -> None:
        self._all = all_of
        self._sequence = sequence
        self.slots = all_of.at.length

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "sequence" and not self._all.tells_sequences_apart:
            raise MissingField(
                f"{self._all.reader!r} reads q.sequence, the place in the batch, without saying so: give it a "
                "property needs_sequence that returns True"
            )
        return self._read(name)

    def _read(self, name: str) -> Tensor:
        raise AssertionError("a side is of elements or of blocks")


Holds = Callable[[Listed, Tensor, Tensor, Tensor], Tensor]
"""Whether a listed rule holds for pairs given by sequence, query place and key place."""


class Elements(_Side):
    """Single positions: `slot` is int64 [P, n, 1] for queries and [P, 1, n] for keys, `sequence` [P, 1, 1]."""

    def __init__(self, all_of: Sequences, sequence: Tensor, slot: Tensor, holds: Holds) -> None:
        super().__init__(all_of, sequence)
        self._slot, self._holds = slot, holds

    def _read(self, name: str) -> Tensor:
        if name in ("sequence", "slot"):
            return (self._sequence if name == "sequence" else self._slot).clone()  # a rule may change what it reads
        return self._all.field(name).values[self._all.rows(name, self._sequence), self._slot]

    def listed(self, rule: Listed, k: Elements) -> Tensor:
        """The pairs that a listed rule names."""
        return self._holds(rule, self._sequence, self._slot, k._slot)


HoldsIn = Callable[[Listed, Tensor, Tensor, Tensor, int], "tuple[Tensor, Tensor]"]
"""Whether a listed rule holds for every, and for some, pair of blocks: sequence, query block, key block, level."""


class Blocks(_Side):
    """Whole blocks of one level, P of them: each field is the bounds of its values, [P, 1, 1]."""

    def __init__(
        self, name: str, all_of: Sequences, sequence: Tensor, block: Tensor, level: int, trace: Trace, holds: HoldsIn
    ) -> None:
        super().__init__(all_of, sequence)
        self.block = block
        self._name, self._level, self._trace, self._holds = name, level, trace, holds

    def _read(self, name: str) -> Tensor:
        if name == "sequence":
            low = high = self._sequence
        else:
            row = self._all.rows(name, self._sequence)
            low, high = (ends[row, self.block] for ends in self._all.field(name).bounds(self._level))
        linear = (((self._name, name), 1),)
        value = Value(low[:, None, None], high[:, None, None], linear, frozenset([linear]))
        if self._trace.exact:
            check_range(f"{self._name}.{name}", value)
        return Bounds(value, self._trace)

    def listed(self, rule: Listed, k: Blocks) -> Tensor:
        """Whether a listed rule names pairs of these blocks."""
        every, some = self._holds(rule, self._sequence, self.block, k.block, self._level)
        places = frozenset(((place, 1),) for place in (("q", "sequence"), ("q", "slot"), ("k", "slot")))
        value = Value(every[:, None, None], some[:, None, None], None, places)
        self._trace.comparisons.append(value)
        return Bounds(value, self._trace)
