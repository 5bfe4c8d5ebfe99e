"""`maskzoo show`: draw the picture of a mask or a bias."""

from __future__ import annotations

from dataclasses import dataclass, field

from maskzoo.cli.configuration import store_schema
from maskzoo.cli.help import command_help
from maskzoo.cli.launch import Options, launch

HELP = """\
usage: maskzoo show mask=RULE [bias=BIAS] [key=value ...]

examples:
  maskzoo show mask="causal & (window(8) | sinks(2))" length=32
  maskzoo show mask=causal lengths=[10,22] output=mask.svg
  maskzoo show mask="my_mask(3)" plugins=[my_masks.py]
  maskzoo show bias=alibi heads=2 length=16
"""


@dataclass
class ShowConfig:
    """Which mask or bias, over how many positions."""

    mask: str = field(default="causal", metadata={"help": "the rule"})
    bias: str | None = field(default=None, metadata={"help": "draw what this bias adds to visible pairs"})
    heads: int = field(default=4, metadata={"help": "how many heads the bias is drawn for"})
    length: int = field(default=32, metadata={"help": "how many tokens"})
    lengths: list[int] | None = field(default=None, metadata={"help": "instead: documents [10,22] packed into one row"})
    output: str | None = field(default=None, metadata={"help": "a .png or .svg file for the picture"})
    plugins: list[str] = field(default_factory=list, metadata={"help": "local Python files that register masks"})

    def __post_init__(self) -> None:
        from maskzoo.tasks.training.ranges import check_number

        check_number("length", self.length, minimum=1)
        check_number("heads", self.heads, minimum=1)
        if self.lengths is not None:
            if not self.lengths:
                raise ValueError("lengths=[] is empty: give the length of each document, such as [10,22]")
            for place, length in enumerate(self.lengths):
                check_number(f"lengths[{place}]", length, minimum=1)


def help_text() -> str:
    return command_help(HELP, ShowConfig)


def main(overrides: list[str], options: Options) -> int:
    store_schema("show", ShowConfig)
    return launch("show", run, overrides, options)


def run(config: ShowConfig, words: list[str]) -> int:
    """Print the picture, and save it if asked."""
    from maskzoo.cli.rules import checked_bias, checked_mask
    from maskzoo.drawing import draw, draw_bias
    from maskzoo.positions import Positions
    from maskzoo.registry import load_plugins

    load_plugins(config.plugins)
    at = Positions.packed(config.lengths) if config.lengths is not None else Positions.tokens(config.length)
    mask = checked_mask(config.mask)
    bias = checked_bias(config.bias, config.heads)
    picture = draw(mask, at) if bias is None else draw_bias(bias, mask, at)
    print(picture)
    if config.output is not None:
        picture.save(config.output)
        print(f"saved {config.output}")
    return 0
