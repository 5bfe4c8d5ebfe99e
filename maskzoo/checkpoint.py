"""Read a trained model back from a path alone."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskzoo.registry import load_plugins, nearest
from maskzoo.transformer import LanguageModel, TransformerConfig

FORMAT = 1
PREFIX = "model."


def load(path: str | Path) -> LanguageModel:
    """The language model of a checkpoint, in evaluation mode on the CPU.

    Only plain data is read (`torch.load(weights_only=True)`); plugins that the checkpoint names are imported first. The
    model's `tokenizer_state` and `scores` are those of the checkpoint.

    Args:
        path: a checkpoint file, or the folder of a run: then its best checkpoint, or the last where there is no best.

    Raises:
        ValueError: nothing there, a truncated file, a file that is no maskzoo checkpoint, a plugin that does not load,
            weights that do not fit the model described.
    """
    file = find_checkpoint(path)
    checkpoint = read_checkpoint(file)
    about = checkpoint["maskzoo"]
    if about.get("task") != "language":
        raise ValueError(f"{file} holds a model of the task {about.get('task')!r}, which is no language model")
    missing = {"vocabulary", "mask", "bias", "model", "tokenizer", "plugins", "scores"} - set(about)
    if missing:
        raise ValueError(f"{file} does not describe its model fully: {', '.join(sorted(missing))} missing")
    load_plugins(about["plugins"])
    model = LanguageModel(
        _config(about["model"], file), vocabulary=about["vocabulary"], mask=about["mask"], bias=about["bias"]
    )
    _fill(model, checkpoint["state_dict"], file)
    model.tokenizer_state, model.scores = about["tokenizer"], about["scores"]
    return model.eval()


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint file that `path` means: itself, or the best (else the last) of a run folder."""
    path = Path(path).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(f"no checkpoint at {path}: there is no such file or folder")
    for folder in (path / "checkpoints", path):
        for name in ("best.ckpt", "last.ckpt"):
            if (folder / name).is_file():
                return folder / name
    raise ValueError(f"no checkpoint in {path}: neither best.ckpt nor last.ckpt is there or in its folder checkpoints/")


def read_checkpoint(file: Path) -> dict[str, Any]:
    """The whole dictionary of a checkpoint file of any task, on the CPU.

    Raises:
        ValueError: the file cannot be read, is truncated, or was not written by maskzoo.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that the next lines refuse in plain words
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file} is no maskzoo checkpoint: it holds more than plain data, or is no checkpoint at all"
        ) from error
    except OSError as error:
        raise ValueError(f"cannot read the checkpoint {file}: {error.strerror or error}") from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).split("\n")[0].split(". ")[0]  # torch goes on about its own insides
        raise ValueError(f"cannot read the checkpoint {file}; it may be truncated ({reason})") from error
    about = checkpoint.get("maskzoo") if isinstance(checkpoint, dict) else None
    if not isinstance(about, dict) or "state_dict" not in checkpoint:
        raise ValueError(f'{file} is no maskzoo checkpoint: it has no "maskzoo" entry that describes a model')
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{file} has checkpoint format {about.get('format')!r}; this version of maskzoo reads format {FORMAT}"
        )
    return checkpoint


def _config(values: dict[str, Any], file: Path) -> TransformerConfig:
    known = [field.name for field in fields(TransformerConfig)]
    for name in values:
        if name not in known:
            raise ValueError(
                f"{file} describes a model with {name!r}, which this version does not know.{nearest(name, known)}"
            )
    return TransformerConfig(**values)


def _fill(model: LanguageModel, state: dict[str, Tensor], file: Path) -> None:
    weights = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
    wanted = model.state_dict()
    missing, extra = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or extra:
        parts = [
            f"{kind}: {_some(names)}" for kind, names in (("missing", missing), ("not in the model", extra)) if names
        ]
        raise ValueError(f"the weights in {file} do not fit the model it describes; {'; '.join(parts)}")
    for name, value in weights.items():
        if value.shape != wanted[name].shape:
            raise ValueError(
                f"the weight {name} in {file} has shape {list(value.shape)}, "
                f"and the model it describes needs {list(wanted[name].shape)}"
            )
    model.load_state_dict(weights)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
