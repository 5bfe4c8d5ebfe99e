"""One Transformer: every mask, bias and kernel runs through it."""

from maskzoo.transformer.cache import Cache
from maskzoo.transformer.generation import generate
from maskzoo.transformer.language_model import LanguageModel
from maskzoo.transformer.transformer import Transformer, TransformerConfig

__all__ = ["Cache", "LanguageModel", "Transformer", "TransformerConfig", "generate"]
