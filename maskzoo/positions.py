"""`Positions`: what is known about the rows that attention mixes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

PADDING = -1
"""The segment of a row that is only there to fill the batch."""

RESERVED = frozenset({"slot", "slots", "sequence", "listed"})
"""What every side of a rule has besides its fields."""


class Positions:
    """Integer fields of shape [B, T], one value for each row of each sequence.

    Two fields are always there. `segment` says which document, image or graph a row belongs to (−1: padding), `index`
    its order inside the segment. Any other field (`row`, `col`, `speaker`, …) can be given by name, and a rule reads it
    by that name. B may be 1 for positions that every sequence of a batch shares.

    Positions are not changed in place: every method returns new ones.

    Args:
        fields: integer tensors, or nested lists, of shape [B, T] or [T]. `segment` defaults to 0 everywhere, `index` to
            the count inside each run of equal segments.

    Raises:
        ValueError: no field, a reserved name, shapes that differ, values that are no integers, or a segment below −1.
    """

    def __init__(self, **fields: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> None:
        if not fields:
            raise ValueError("Positions needs at least one field, for example Positions(index=[[0, 1, 2]])")
        if taken := RESERVED.intersection(fields):
            raise ValueError(
                f"a field of Positions cannot be named {', '.join(sorted(taken))}: a rule reads another thing by that "
                f"name (reserved: {', '.join(sorted(RESERVED))})"
            )
        read = {name: _integers(name, values) for name, values in fields.items()}
        shapes = {name: tuple(values.shape) for name, values in read.items()}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"every field of Positions must have the same shape [B, T]; got {shapes}")
        first = next(iter(read.values()))
        segment = read.pop("segment", torch.zeros_like(first))
        if segment.numel() and int(segment.min()) < PADDING:
            raise ValueError(f"segment must be 0 or more, or -1 for padding; the lowest here is {int(segment.min())}")
        self.counted = "index" not in read
        """Whether `index` was only counted (and a plan may align it with the keys), not stated."""
        index = read.pop("index") if "index" in read else _count(segment)
        self.fields: dict[str, Tensor] = {"segment": segment, "index": index, **read}
        self.origin: Positions | None = None
        """The same on the processor, where these were moved from there."""

    @classmethod
    def tokens(cls, lengths: int | Sequence[int], *, padded_to: int | None = None, side: str = "right") -> Positions:
        """One sequence a row, padded to the longest or to `padded_to`.

        Args:
            lengths: the number of tokens of each sequence; a single integer for one row that a whole batch shares.
            padded_to: T; the longest of `lengths` when not given.
            side: where the padding stands, "right" or "left".
        """
        read = [lengths] if isinstance(lengths, int) else list(lengths)
        width = _width(read, padded_to)
        if side not in ("left", "right"):
            raise ValueError(f"side must be 'left' or 'right', was {side!r}")
        slot = torch.arange(width)
        length = torch.tensor(read)[:, None]
        real = slot < length if side == "right" else slot >= width - length
        return cls(segment=torch.where(real, 0, PADDING))

    @classmethod
    def packed(cls, lengths: Sequence[int] | Sequence[Sequence[int]], *, padded_to: int | None = None) -> Positions:
        """Several segments end to end in each row: documents, images or graphs without padding between them.

        Args:
            lengths: the segments' lengths in order; a list of such lists for several rows.
            padded_to: T; the fullest row when not given.
        """
        rows: list[list[int]] = (
            [list(row) for row in lengths]  # type: ignore[arg-type]
            if lengths and not isinstance(lengths[0], int)
            else [list(lengths)]  # type: ignore[arg-type]
        )
        for row in rows:
            _check_lengths(row)
        width = _width([sum(row) for row in rows], padded_to)
        segment = torch.full((len(rows), width), PADDING)
        for row, target in zip(rows, segment, strict=True):
            ids = torch.arange(len(row)).repeat_interleave(torch.tensor(row, dtype=torch.int64))
            target[: len(ids)] = ids
        return cls(segment=segment)

    @classmethod
    def grid(cls, rows: int, columns: int, *, batch: int = 1) -> Positions:
        """An image of rows × columns patches in raster order, with the fields `row` and `col`."""
        _width([rows, columns], None)
        slot = torch.arange(rows * columns).expand(batch, -1)
        return cls(row=slot // columns, col=slot % columns)

    @property
    def batch(self) -> int:
        """B; 1 may stand for any number of sequences."""
        return self.segment.shape[0]

    @property
    def length(self) -> int:
        """T, padding included."""
        return self.segment.shape[1]

    @property
    def segment(self) -> Tensor:
        """int64 [B, T]; −1 is padding."""
        return self.fields["segment"]

    @property
    def index(self) -> Tensor:
        """int64 [B, T]: order inside the segment."""
        return self.fields["index"]

    @property
    def real(self) -> Tensor:
        """bool [B, T]: rows that are no padding."""
        return self.segment != PADDING

    @property
    def device(self) -> torch.device:
        """Where the fields are."""
        return self.segment.device

    def _with(self, fields: Mapping[str, Tensor], *, counted: bool | None = None) -> Positions:
        made = object.__new__(Positions)
        made.fields = dict(fields)
        made.counted = self.counted if counted is None else counted
        made.origin = None
        return made

    def with_fields(self, **fields: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> Positions:
        """These positions with more fields, or with other values in those they have."""
        kept = {name: values for name, values in self.fields.items() if name != "index" or not self.counted}
        return Positions(**{**kept, **fields})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Positions:
        """These positions on another device.

        Those on the processor are remembered: a plan is read from them, without waiting for the device.
        """
        if torch.device(device) == self.device:
            return self
        moved = self._with({name: values.to(device, non_blocking=non_blocking) for name, values in self.fields.items()})
        moved.origin = self if self.device.type == "cpu" else self.origin
        return moved

    def narrow(self, start: int, stop: int) -> Positions:
        """Rows start … stop − 1, each with the index it has now."""
        return self._with({name: values[:, start:stop] for name, values in self.fields.items()}, counted=False)

    def last(self, count: int) -> Positions:
        """The last `count` rows, as new queries against all of these positions have them when decoding."""
        if not 1 <= count <= self.length:
            raise ValueError(f"last({count}): there are {self.length} positions")
        return self.narrow(self.length - count, self.length)

    def shifted(self, offset: Tensor) -> Positions:
        """These positions with `offset` (int64 [B, T] or broadcastable) added to every index."""
        return self._with({**self.fields, "index": self.index + offset}, counted=False)

    def select(self, rows: Tensor) -> Positions:
        """The sequences `rows` of the batch."""
        return self._with({name: values[rows] for name, values in self.fields.items()})

    @staticmethod
    def joined(first: Positions, second: Positions) -> Positions:
        """Both, one after the other along T, as a cache grows.

        Raises:
            ValueError: the two do not have the same fields.
        """
        if first.fields.keys() != second.fields.keys():
            raise ValueError(f"cannot join positions with fields {list(first.fields)} and {list(second.fields)}")
        return first._with(
            {name: torch.cat([values, second.fields[name]], dim=1) for name, values in first.fields.items()},
            counted=False,
        )

    @cached_property
    def collapsed(self) -> Positions:
        """One row of these positions if all sequences have the same, else these."""
        same = self.batch == 1 or all(bool((values == values[:1]).all()) for values in self.fields.values())
        return self._with({name: values[:1] for name, values in self.fields.items()}) if same else self

    @cached_property
    def digest(self) -> bytes:
        """Equal for positions of equal content."""
        code = hashlib.blake2b(digest_size=16)
        for name, values in sorted(self.fields.items()):
            code.update(f"{name}{tuple(values.shape)}{values.device}".encode())
            code.update(values.contiguous().cpu().numpy().tobytes())
        return code.digest()

    def __repr__(self) -> str:
        return f"Positions(batch={self.batch}, length={self.length}, fields={list(self.fields)})"


def _integers(name: str, values: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    tensor = torch.as_tensor(values)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        raise ValueError(f"field {name!r} of Positions must hold integers, got {tensor.dtype}")
    if tensor.dim() == 1:
        tensor = tensor[None]
    if tensor.dim() != 2 or tensor.shape[1] == 0:
        raise ValueError(
            f"field {name!r} of Positions must have shape [B, T] or [T], T at least 1; got {list(tensor.shape)}"
        )
    return tensor.to(torch.int64)


def _check_lengths(lengths: Sequence[int]) -> None:
    if not lengths:
        raise ValueError("Positions need at least one length")
    for length in lengths:
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise ValueError(f"a length must be an integer of at least 0, was {length!r}")


def _width(lengths: Sequence[int], padded_to: int | None) -> int:
    _check_lengths(lengths)
    longest = max(lengths)
    if padded_to is not None and padded_to < longest:
        raise ValueError(f"padded_to={padded_to} is shorter than the longest row, {longest}")
    width = longest if padded_to is None else padded_to
    if width == 0:
        raise ValueError("Positions of no row at all: give a length of at least 1, or padded_to=")
    return width


def _count(segment: Tensor) -> Tensor:
    """The order of each row inside its run of equal segments."""
    slot = torch.arange(segment.shape[1], device=segment.device).expand_as(segment)
    starts = torch.ones_like(segment, dtype=torch.bool)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    return slot - torch.where(starts, slot, 0).cummax(dim=1).values
