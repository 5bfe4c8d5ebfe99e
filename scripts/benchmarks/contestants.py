"""Who is measured: maskzoo's kernels, torch's `scaled_dot_product_attention` and compiled FlexAttention."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import maskzoo
from benchmarks.patterns import Case
from maskzoo.biases import Bias, parse

OURS = ("auto", "dense", "tiled", "edges")
"""Contestants that are backends of `maskzoo.attend`."""

THEIRS = ("sdpa", "sdpa_causal", "flex")
"""SDPA with a boolean mask; SDPA with is_causal; FlexAttention."""

THEIRS_BIASED = ("sdpa_gather", "sdpa_index")
"""SDPA with an offset for every pair, taken from the table by torch.gather, or by table[:, index]."""
BY_DISTANCE = ("alibi", "relative", "clipped_relative", "offset")
"""Biases whose table is over the difference of two indices."""

MOST_DENSE_EDGES = 0.05
"""Its cost follows the pairs: beyond this it would take hours and tell nothing."""


@dataclass(frozen=True)
class Settings:
    """Sizes of the inputs; their dtype; the GiB that a contestant may be expected to need; and a bias, as text."""

    batch: int
    heads: int
    width: int
    dtype: torch.dtype
    gibibytes: float
    bias: str = ""

    @property
    def oracle(self) -> str:
        """The contestant that results are compared with."""
        return THEIRS_BIASED[0] if self.bias else THEIRS[0]

    def inputs(self, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and the gradient of the output: [B, H, T, D]."""
        shape, generator = (self.batch, self.heads, length, self.width), torch.Generator().manual_seed(0)
        q, k, v, gradient = (torch.randn(shape, generator=generator).to(self.dtype) for _ in range(4))
        return q, k, v, gradient

    def learned_bias(self) -> Bias | None:
        """The bias, with tables drawn at random: each time the same."""
        bias = parse(self.bias or None, heads=self.heads)
        generator = torch.Generator().manual_seed(1)
        for parameter in [] if bias is None else bias.parameters():
            nn.init.normal_(parameter, generator=generator)
        return bias


@dataclass(frozen=True)
class Prepared:
    """A contestant with its mask: all that is done once for a rule is done.

    Attributes:
        attend: from q, k, v to out.
        label: the name in the table; for ours with the kernel that it took.
        trains: whether it has a backward here.
        density: the share of all pairs that are visible, where the contestant knows it.
        tables: what the bias learns.
    """

    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    label: str
    trains: bool = True
    density: float | None = None
    tables: tuple[Tensor, ...] = ()


class Skipped(Exception):
    """Why a contestant is not measured."""


def contenders(names: list[str], case_name: str) -> list[str]:
    """Those of the names that can do the pattern."""
    return [name for name in names if name != "sdpa_causal" or case_name == "causal"]


def prepare(name: str, case: Case, settings: Settings) -> Prepared:
    """The contestant's own form of the rule, made ready.

    Raises:
        Skipped: it would need more memory than the settings allow.
    """
    if name in OURS:
        return _ours(name, case, settings)
    if name in THEIRS_BIASED:
        return _sdpa_biased(name, case, settings)
    return {"sdpa": _sdpa, "sdpa_causal": _sdpa_causal, "flex": _flex}[name](case, settings)


def _ours(backend: str, case: Case, settings: Settings) -> Prepared:
    if backend == "dense":
        _check_fits(case, settings)
    bias = settings.learned_bias()
    plan = maskzoo.plan(case.rule, case.at, bias=bias)
    if backend == "auto" and plan.kernel == "dense":
        _check_fits(case, settings)
    if backend == "edges" and plan.density > MOST_DENSE_EDGES:
        raise Skipped(f"is not measured where more than {MOST_DENSE_EDGES:.0%} of the pairs are visible")
    label = f"maskzoo ({plan.kernel})" if backend == "auto" else f"maskzoo, {backend}"
    tables = () if bias is None else tuple(bias.parameters())
    return Prepared(
        lambda q, k, v: maskzoo.attend(q, k, v, plan, backend=backend), label, density=plan.density, tables=tables
    )


def _sdpa(case: Case, settings: Settings) -> Prepared:
    _check_fits(case, settings)
    visible = case.visible(settings.heads)
    return Prepared(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=visible), "SDPA, boolean mask")


def _sdpa_causal(case: Case, settings: Settings) -> Prepared:
    return Prepared(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), "SDPA, is_causal")


def _sdpa_biased(name: str, case: Case, settings: Settings) -> Prepared:
    """A table over all distances is formed and gathered at every call, as a table that is trained asks for.

    Hidden pairs point to an entry of its own, −inf, which costs no pass over the pairs.
    """
    _check_fits(case, settings)
    if case.per_head:
        raise Skipped("is not measured where the rule differs from head to head")
    bias, length = settings.learned_bias(), case.at.length
    assert bias is not None
    leaves = list(bias.leaves())
    position, differences = case.at.index[0], torch.arange(1 - length, length)
    if not all(leaf.provider_name in BY_DISTANCE for _, leaf in leaves):
        raise Skipped(f"is only written for {', '.join(BY_DISTANCE)}")
    index = position[:, None] - position + length - 1
    index.masked_fill_(~case.visible(settings.heads)[0, 0], len(differences))

    def offsets() -> Tensor:
        tables = [factor * leaf.table(differences) for factor, leaf in leaves]
        table = torch.cat([sum(tables[1:], tables[0]), torch.full((settings.heads, 1), -torch.inf)], dim=1)
        if name == "sdpa_index":
            return table[:, index]
        return table.gather(1, index.flatten().expand(settings.heads, -1)).unflatten(1, index.shape)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=offsets().to(q.dtype)[None])

    label = {"sdpa_gather": "SDPA, table.gather", "sdpa_index": "SDPA, table[:, index]"}[name]
    return Prepared(attend, label, tables=tuple(bias.parameters()))


def _flex(case: Case, settings: Settings) -> Prepared:
    torch.compiler.reset()  # a limit on recompilations must not send a later case to the eager form
    heads, length = settings.heads if case.per_head else None, case.at.length
    block_mask = torch.compile(create_block_mask, dynamic=False)(
        case.mask_mod, None, heads, length, length, device="cpu"
    )
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return Prepared(lambda q, k, v: compiled(q, k, v, block_mask=block_mask), "FlexAttention, compiled", trains=False)


def _check_fits(case: Case, settings: Settings) -> None:
    """A boolean array of all pairs, and the same in the inputs' dtype, which torch makes of it at every call.

    With a bias: an offset for every head and pair, and its gradient.
    """
    pairs = case.at.length**2 * (settings.heads if case.per_head or settings.bias else 1)
    needed = pairs * (2 * 4 if settings.bias else 1 + settings.dtype.itemsize) / 2**30
    if needed > settings.gibibytes:
        what = "bias" if settings.bias else "mask"
        raise Skipped(f"its {what} of all pairs needs {needed:.1f} GiB, more than {settings.gibibytes:g}")
