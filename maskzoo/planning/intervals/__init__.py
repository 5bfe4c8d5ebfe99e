"""Interval arithmetic on tensors: what a rule's own operations say of a whole tile.

`values` is what can be known, `bounds` the tensor that carries it; `arithmetic`, `logic` and `tables` hold a rule for
each operation.
"""

from maskzoo.planning.intervals import arithmetic, logic, tables
from maskzoo.planning.intervals.bounds import Bounds, Trace
from maskzoo.planning.intervals.values import LARGEST, Linear, NoIntervalRule, Value, check_range

__all__ = [
    "LARGEST",
    "Bounds",
    "Linear",
    "NoIntervalRule",
    "Trace",
    "Value",
    "arithmetic",
    "check_range",
    "logic",
    "tables",
]
