"""Writing into the cache folder without leaving half a file, and checking what is in it."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def write_aside(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a file beside `path`, then rename it to `path`; a failure leaves nothing behind.

    Raises:
        ValueError: the folder is read-only or full.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            write(file)
        aside.replace(path)
    except OSError as error:
        raise ValueError(
            f"cannot write {path}: {error.strerror or error}.\n"
            "Set MASKZOO_DATA to a folder that can be written and has room."
        ) from error
    finally:
        with suppress(OSError):  # already renamed, or never made
            aside.unlink()


def sha1_of(path: Path) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
