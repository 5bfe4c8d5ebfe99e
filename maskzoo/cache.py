"""The folder of everything fetched, measured or computed once."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$MASKZOO_DATA`, or `~/.cache/maskzoo`. It need not exist yet."""
    return Path(os.environ.get("MASKZOO_DATA") or "~/.cache/maskzoo").expanduser().absolute()
