"""Planning: a rule and positions become the tiles, patterns and pairs that kernels read.

`making` is the whole way in order: `alignment` places the queries, `effective` adds padding and segments, `reading`
calls the rule on `bounds` of blocks and on the elements of undecided tiles (`sides`, `fields`, `lists`, `signature`),
`assembling` lays out lines of tiles, `choosing` picks the kernel, `kept` remembers.
"""

from maskzoo.planning.making import plan
from maskzoo.planning.result import Plan

__all__ = ["Plan", "plan"]
