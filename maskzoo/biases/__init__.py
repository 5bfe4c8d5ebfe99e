"""Providers of structural bias, one a file; importing this package registers them."""

from maskzoo.biases.alibi import Alibi
from maskzoo.biases.base import Bias, OffsetBias, register_bias
from maskzoo.biases.clipped_relative import ClippedRelative
from maskzoo.biases.dense import Dense
from maskzoo.biases.distance import Distance
from maskzoo.biases.grid_offset import GridOffset
from maskzoo.biases.offset import Offset
from maskzoo.biases.parsing import parse
from maskzoo.biases.relative import Relative
from maskzoo.biases.segment_pair import SegmentPair
from maskzoo.biases.table import Table

__all__ = [
    "Alibi",
    "Bias",
    "ClippedRelative",
    "Dense",
    "Distance",
    "GridOffset",
    "Offset",
    "OffsetBias",
    "Relative",
    "SegmentPair",
    "Table",
    "parse",
    "register_bias",
]
