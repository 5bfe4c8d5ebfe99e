"""`maskzoo generate`: let a trained language model write."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from maskzoo.cli.configuration import store_schema
from maskzoo.cli.help import command_help
from maskzoo.cli.launch import Options, launch

if TYPE_CHECKING:
    from maskzoo.tasks.language.tokenizers import Tokenizer

HELP = """\
usage: maskzoo generate checkpoint=PATH [key=value ...]

examples:
  maskzoo generate checkpoint=runs/NAME prompt="def " tokens=300
  maskzoo generate checkpoint=runs/NAME prompt="['def ','class ']" top_k=20 seed=1
  maskzoo generate checkpoint=runs/NAME prompt_file=start.txt temperature=0
"""


@dataclass
class GenerateConfig:
    """What to write, and how daringly."""

    checkpoint: str = field(default=MISSING, metadata={"help": "a run folder (its best checkpoint) or a .ckpt file"})
    prompt: Any = field(default="", metadata={"help": "the text to go on from, or a list ['one','two'] of texts"})
    prompt_file: str | None = field(default=None, metadata={"help": "a file that holds the prompt"})
    tokens: int = field(default=200, metadata={"help": "the most tokens to write after each prompt"})
    temperature: float = field(default=0.8, metadata={"help": "0 takes the likeliest token"})
    top_k: int | None = field(default=None, metadata={"help": "draw from this many likeliest tokens"})
    top_p: float | None = field(default=None, metadata={"help": "draw from the likeliest tokens of this probability"})
    seed: int | None = field(default=None, metadata={"help": "the same seed writes the same text"})

    def __post_init__(self) -> None:
        from maskzoo.tasks.training.ranges import check_number

        check_number("tokens", self.tokens, minimum=1)
        check_number("temperature", self.temperature, minimum=0)
        check_number("top_k", self.top_k, minimum=1)
        check_number("top_p", self.top_p, above=0, maximum=1)
        if not (isinstance(self.prompt, str) or _is_texts(self.prompt)):
            raise ValueError(f"prompt={self.prompt} must be a text, or a list of texts such as ['def ','class ']")
        if self.prompt and self.prompt_file is not None:
            raise ValueError("give prompt or prompt_file, not both")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def help_text() -> str:
    return command_help(HELP, GenerateConfig)


def main(overrides: list[str], options: Options) -> int:
    store_schema("generate", GenerateConfig)
    return launch("generate", run, overrides, options)


def run(config: GenerateConfig, words: list[str]) -> int:
    """Write each prompt and what follows it to stdout, as it comes."""
    from maskzoo.checkpoint import find_checkpoint, load, read_checkpoint
    from maskzoo.tasks.language.prompt import prompt_ids
    from maskzoo.tasks.language.tokenizers import from_state
    from maskzoo.transformer.generation import generate

    file = find_checkpoint(config.checkpoint)
    about = read_checkpoint(file)["maskzoo"]
    model, tokenizer = load(file), from_state(about["tokenizer"])
    batching = about["config"]["data"]["batching"]
    prompts = _prompts(config)
    ids = [prompt_ids(prompt, tokenizer, batching) for prompt in prompts]
    steps = generate(
        model,
        ids,
        max_new_tokens=config.tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        seed=config.seed,
        stop=tokenizer.eos,
    )
    for piece in written(prompts, steps, tokenizer):
        sys.stdout.write(piece)
        sys.stdout.flush()
    return 0


def _prompts(config: GenerateConfig) -> list[bytes]:
    if config.prompt_file is not None:
        return [Path(config.prompt_file).expanduser().read_bytes()]
    texts = [config.prompt] if isinstance(config.prompt, str) else config.prompt
    return [text.encode(errors="surrogateescape") for text in texts]


def written(prompts: list[bytes], steps: Iterator[list[int | None]], tokenizer: Tokenizer) -> Iterator[str]:
    """The texts in pieces, as they come: the first while it is written, each later one once those before are done."""
    alone = len(prompts) == 1
    decoders = [codecs.getincrementaldecoder("utf-8")(errors="replace") for _ in prompts]
    waiting = [decoder.decode(prompt) for decoder, prompt in zip(decoders, prompts, strict=True)]
    yield waiting[0] if alone else f"--- 1\n{waiting[0]}"
    current = 0
    for step in steps:
        for number, token in enumerate(step):
            if token is not None:
                piece = decoders[number].decode(tokenizer.decode([token]))
                if number == current:
                    yield piece
                else:
                    waiting[number] += piece
        if step[current] is None and current + 1 < len(prompts):
            yield f"{decoders[current].decode(b'', final=True)}\n--- {current + 2}\n{waiting[current + 1]}"
            current += 1
    for number in range(current, len(prompts)):
        begun = "" if number == current else f"--- {number + 1}\n{waiting[number]}"
        yield f"{begun}{decoders[number].decode(b'', final=True)}\n"
