"""The patterns that are measured: each rule as maskzoo reads it, and the same as FlexAttention's mask_mod beside it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from maskzoo.masks import Mask, parse, register_mask
from maskzoo.masks.listed import Listed
from maskzoo.positions import Positions

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From indices of batch, head, query and key, which broadcast, to bool."""


@dataclass(frozen=True)
class Case:
    """One pattern at one length.

    Attributes:
        rule: for maskzoo.
        at: the positions that the rule is read at; batch 1.
        mask_mod: the same rule, boundaries of segments included, for FlexAttention.
        per_head: whether the rule differs from head to head.
    """

    rule: Mask
    at: Positions
    mask_mod: MaskMod
    per_head: bool = False

    def visible(self, heads: int) -> Tensor:
        """Every pair as the mask_mod has it, some queries at a time: bool [1, heads or 1, T, T]."""
        length, step = self.at.length, max(1, 2**22 // self.at.length)
        zero, keys, head = torch.tensor(0), torch.arange(length), torch.arange(heads if self.per_head else 1)
        pairs = torch.empty(len(head), length, length, dtype=torch.bool)
        for start in range(0, length, step):
            queries = torch.arange(start, min(start + step, length))[:, None]
            for h in head:
                pairs[h, start : start + step] = self.mask_mod(zero, h, queries, keys)
        return pairs[None]


def full(length: int, heads: int) -> Case:
    return Case(parse("full"), Positions.tokens(length), lambda b, h, q, k: (q >= 0) & (k >= 0))


def causal(length: int, heads: int) -> Case:
    return Case(parse("causal"), Positions.tokens(length), lambda b, h, q, k: q >= k)


def window(length: int, heads: int) -> Case:
    rule = parse("causal & window(256)")
    return Case(rule, Positions.tokens(length), lambda b, h, q, k: (q >= k) & (q - k < 256))


def documents(length: int, heads: int) -> Case:
    """Packed documents of 512 tokens, the last one shorter where the length asks for it."""
    at = Positions.packed(_parts(length, [512] * (length // 512 + 1)))
    segment = at.segment[0]
    return Case(parse("causal"), at, lambda b, h, q, k: (segment[q] == segment[k]) & (q >= k))


def random_documents(length: int, heads: int) -> Case:
    """Packed documents of 100 to 4000 tokens."""
    lengths = torch.randint(100, 4001, (length // 100 + 1,), generator=torch.Generator().manual_seed(0))
    at = Positions.packed(_parts(length, lengths.tolist()))
    segment = at.segment[0]
    return Case(parse("causal"), at, lambda b, h, q, k: (segment[q] == segment[k]) & (q >= k))


def prefix(length: int, heads: int) -> Case:
    size = length // 4
    rule = parse(f"prefix({size})")
    return Case(rule, Positions.tokens(length), lambda b, h, q, k: (q >= k) | (k < size))


def sinks(length: int, heads: int) -> Case:
    rule = parse("causal & (window(256) | sinks(4))")
    return Case(rule, Positions.tokens(length), lambda b, h, q, k: (q >= k) & ((q - k < 256) | (k < 4)))


def dilated(length: int, heads: int) -> Case:
    rule = parse("dilated(64, 4)")
    return Case(
        rule, Positions.tokens(length), lambda b, h, q, k: (q >= k) & (q - k < 256) & (torch.remainder(q - k, 4) == 0)
    )


def per_head(length: int, heads: int) -> Case:
    """A window for each head: 16, 32, 64, … positions."""
    sizes = 16 * 2 ** torch.arange(heads)
    rule = parse(f"stack({', '.join(f'window({size})' for size in sizes.tolist())})")
    return Case(rule, Positions.tokens(length), lambda b, h, q, k: (q >= k) & (q - k < sizes[h]), per_head=True)


@register_mask("random_graph")
@dataclass(frozen=True)
class RandomGraph(Listed):
    """A node sees itself and its neighbours, `degree` of them on average, anywhere in the graph."""

    nodes: int
    degree: int

    def pairs(self, q: Positions, k: Positions) -> Tensor:
        ends = torch.randint(self.nodes, (2, self.nodes * self.degree // 2), generator=torch.Generator().manual_seed(0))
        pairs = torch.cat([ends, ends.flip(0), torch.arange(self.nodes).expand(2, -1)], dim=1)
        return torch.cat([torch.zeros_like(pairs[:1]), pairs])


def graph(length: int, heads: int) -> Case:
    """FlexAttention has no lists: it looks each pair up in an array of all."""
    rule, at = RandomGraph(length, degree=8), Positions.tokens(length)
    adjacent = torch.zeros(length, length, dtype=torch.bool)
    _, queries, keys = rule.pairs(at, at)
    adjacent[queries, keys] = True
    return Case(rule, at, lambda b, h, q, k: adjacent[q, k])


def molecules(length: int, heads: int) -> Case:
    """Molecules of 9 to 27 atoms end to end; the atoms of one see one another."""
    lengths = torch.randint(9, 28, (length // 9 + 1,), generator=torch.Generator().manual_seed(0))
    at = Positions.packed(_parts(length, lengths.tolist()))
    segment = at.segment[0]
    return Case(parse("full"), at, lambda b, h, q, k: segment[q] == segment[k])


def _parts(length: int, parts: list[int]) -> list[int]:
    """As many of the parts as fill the length; the last one is cut."""
    kept = []
    for part in parts:
        if length > 0:
            kept.append(min(part, length))
        length -= part
    return kept


PATTERNS: dict[str, Callable[[int, int], Case]] = {
    "full": full,
    "causal": causal,
    "window": window,
    "documents": documents,
    "prefix": prefix,
    "sinks": sinks,
    "dilated": dilated,
    "per_head": per_head,
    "graph": graph,
    "molecules": molecules,
}
"""From a length and a number of heads to a case: what attention is measured on."""
