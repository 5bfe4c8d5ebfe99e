"""How a text to go on from is read."""

from maskzoo.tasks.language.tokenizers import Tokenizer


def prompt_ids(prompt: bytes, tokenizer: Tokenizer, batching: str) -> list[int]:
    """The token ids that a model trained with `batching` reads before it writes.

    A document begins with BOS. A stream has no beginning: there an empty prompt stands for a new line.
    """
    if batching == "stream":
        return tokenizer.encode(prompt or b"\n").tolist()
    return [tokenizer.bos, *tokenizer.encode(prompt).tolist()]
