"""`maskzoo train`: train a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskzoo.cli.configuration import store_run_schema
from maskzoo.cli.help import run_help
from maskzoo.cli.launch import Options, launch
from maskzoo.cli.rules import checked_bias, checked_mask
from maskzoo.registry import load_plugins

if TYPE_CHECKING:
    from maskzoo.tasks.training.config import RunConfig

HELP = """\
usage: maskzoo train [key=value ...] [-m] [--cfg] [--config-dir FOLDER]

  -m, --multirun   one run for every combination of values: mask="causal,causal & window(64)" seed=1,2
  --cfg            print the configuration and stop
  --config-dir     a folder with configuration files of your own, such as experiment/mine.yaml

examples:
  maskzoo train trainer.max_minutes=10 model.width=256
  maskzoo train data=text data.path=notes/ mask="causal & (window(64) | sinks(4))"
  maskzoo train plugins=[my_masks.py] mask="my_mask(3)"
  maskzoo train experiment=enwik8_small
  maskzoo train resume=true
"""


def help_text() -> str:
    store_run_schema()
    return run_help(HELP)


def main(overrides: list[str], options: Options) -> int:
    store_run_schema()
    return launch("config", run, overrides, options)


def run(config: RunConfig, words: list[str]) -> int:
    """Check the rules, then train."""
    load_plugins(config.plugins)
    checked_mask(config.mask)
    checked_bias(config.bias, heads=config.model.heads)

    from maskzoo.tasks.training.run import train

    train(config, words)
    return 0
