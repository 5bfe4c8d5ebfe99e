"""The checks besides influence and permission, one a file. Each gives a list of findings, empty where all is well, and
raises `Inapplicable` with the reason where it has nothing to say about a model.

What they read of a Subject: inputs (as the user gave them), watched, input_axis, batch, keys, queries, module (the copy
that runs, or None), run(watched=None) -> [B, Tq, F], rows(indices) and with_inputs(inputs) -> Subject,
substitutes(count, generator) -> [count, *watched.shape].
"""

from maskzoo.audit.checks.companions import alone, more_padding, packing, padding_values, real_positions
from maskzoo.audit.checks.comparing import Inapplicable
from maskzoo.audit.checks.coupling import batch_coupling
from maskzoo.audit.checks.dead import dead_queries
from maskzoo.audit.checks.decoding import decode_mismatch
from maskzoo.audit.checks.symmetry import broken_symmetry
from maskzoo.audit.checks.targets import aligned_targets, target_alignment

__all__ = [
    "Inapplicable",
    "aligned_targets",
    "alone",
    "batch_coupling",
    "broken_symmetry",
    "dead_queries",
    "decode_mismatch",
    "more_padding",
    "packing",
    "padding_values",
    "real_positions",
    "target_alignment",
]
