"""Providers of masks, one a file; importing this package registers them."""

from maskzoo.masks.across_segments import AcrossSegments
from maskzoo.masks.algebra import stack
from maskzoo.masks.base import Mask, register_mask
from maskzoo.masks.block import Block
from maskzoo.masks.causal import Causal
from maskzoo.masks.cross import Cross
from maskzoo.masks.dense import Dense
from maskzoo.masks.dilated import Dilated
from maskzoo.masks.full import Full
from maskzoo.masks.listed import Listed
from maskzoo.masks.padding import Padding
from maskzoo.masks.pairs import Pairs
from maskzoo.masks.parsing import parse
from maskzoo.masks.prefix import Prefix
from maskzoo.masks.random import Random
from maskzoo.masks.same_segment import SameSegment
from maskzoo.masks.sinks import Sinks
from maskzoo.masks.strided import Strided
from maskzoo.masks.wait_k import WaitK
from maskzoo.masks.window import Window

__all__ = [
    "AcrossSegments",
    "Block",
    "Causal",
    "Cross",
    "Dense",
    "Dilated",
    "Full",
    "Listed",
    "Mask",
    "Padding",
    "Pairs",
    "Prefix",
    "Random",
    "SameSegment",
    "Sinks",
    "Strided",
    "WaitK",
    "Window",
    "parse",
    "register_mask",
    "stack",
]
