"""Providers of structural bias, one a file; importing this package registers them."""

from maskzoo.biases.alibi import Alibi
from maskzoo.biases.base import Bias, register_bias
from maskzoo.biases.dense import Dense
from maskzoo.biases.parsing import parse
from maskzoo.biases.relative import Relative

__all__ = ["Alibi", "Bias", "Dense", "Relative", "parse", "register_bias"]
