"""Planning: a rule and positions become the tiles, patterns and pairs that kernels read.

`making` is the whole way in order: `alignment` places the queries, `effective` adds padding and segments, `reading`
calls the rule on the bounds of blocks (`intervals`) and on the elements of tiles that stay undecided (with `sides`,
`fields`, `lists` and `signature`), `assembling` lays out lines of tiles, `choosing` picks the kernel, and `kept`
remembers plans. `offsetting` adds a bias: `asking` calls its providers, `folding` joins what they give into few terms,
and `indexing` (with `numbering`) stores what is no difference of codes.
"""

from maskzoo.planning.making import plan
from maskzoo.planning.result import Plan

__all__ = ["Plan", "plan"]
