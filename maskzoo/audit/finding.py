"""`Finding`: one fault of a model, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = {
    "leak": "a boolean mask that means the opposite; a mask applied after the softmax, or as a finite number that "
    "large scores beat; a window or shift off by one; a convolution padded on both sides; a recurrent layer that runs "
    "both ways; a normalisation or pooling over positions; padding hidden from queries in place of keys",
    "blind spot": "a rule narrower than promised; a layer or head that is skipped or zero; a window off by one",
    "target misalignment": "a mask that sees what is to be predicted; targets that are not shifted against the inputs, "
    "or shifted the wrong way or across rows; an answer among the features",
    "companion dependence": "padding or neighbours in a packed row that are not masked; positions that count padding; "
    "statistics over the whole batch",
    "decode mismatch": "a cache with a stale position or without its mask; a rotation or position that starts at 0 in "
    "every step; state that is not carried on",
    "broken symmetry": "positions, or an order, that the model should not know of",
    "dead query": "a row of the mask that sees nothing, with a softmax over nothing; an output that is overwritten",
    "batch coupling": "statistics, a sort or a capacity over the rows of the batch; axes of batch and positions mixed "
    "up",
}
"""What each kind of finding usually comes of."""


@dataclass(frozen=True)
class Finding:
    """One kind of fault in one setting, with the largest example.

    Attributes:
        kind: one of KINDS.
        message: what was seen, in a sentence.
        cause: what that usually comes of.
        size: how far the output moved.
        pairs: how many pairs, or outputs, show it.
        row, query, key: the example: row of the batch, output and input position.
        layer: the module where it first appears, and `head` the head; None where that is not known.
        severity: "error" (the model is unsound) or "warning".
    """

    kind: str
    message: str
    cause: str
    size: float
    pairs: int = 0
    row: int | None = None
    query: int | None = None
    key: int | None = None
    layer: str | None = None
    head: int | None = None
    severity: str = "error"

    def __str__(self) -> str:
        facts = [f"size {self.size:.3g}"] if self.size else []
        facts += [f"{self.pairs:,} in all"] * (self.pairs > 1)
        if self.layer is not None:
            facts.append(f"first in {self.layer}" + (f", head {self.head}" if self.head is not None else ""))
        details = f" ({'; '.join(facts)})" if facts else ""
        return f"{self.kind}: {self.message}{details}. Usual causes: {self.cause}"
