"""Where figures go: metrics.csv in the run folder always, and wandb beside it."""

from __future__ import annotations

import csv
import netrc
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from maskzoo.tasks.training.errors import OutputFailed
from maskzoo.tasks.training.ranges import check_choice


@dataclass
class LoggerConfig:
    """`wandb` is the mode: "auto" is online where a key is configured and the server answers, else offline."""

    wandb: str = "auto"
    project: str = "maskzoo"
    entity: str | None = None
    name: str | None = None
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_choice("logger.wandb", self.wandb, ("auto", "online", "offline", "disabled"))


class MetricsFile(Logger):
    """One CSV file with a row for each report and a column for each figure, in the order of their first appearance.

    A resumed run appends; rows of steps after `resumed_at`, which will be made again, are dropped. (Lightning's
    CSVLogger deletes an existing file.)
    """

    def __init__(self, path: Path, resumed_at: int | None = None) -> None:
        super().__init__()
        self.path = path
        self._columns = ["step"]
        if resumed_at is None:
            self._rewrite([])
        elif path.exists():
            with open(path, newline="") as file:
                reader = csv.DictReader(file)
                rows = [row for row in reader if int(row["step"]) <= resumed_at]
                self._columns = list(reader.fieldnames or self._columns)
            self._rewrite(rows)

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The configuration stands in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        new = [name for name in metrics if name not in self._columns]
        if new:
            with open(self.path, newline="") as file:
                rows = list(csv.DictReader(file))
            self._columns += new
            self._rewrite(rows)
        self._write("a", [{"step": step, **metrics}])

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        self._write("w", [dict(zip(self._columns, self._columns, strict=True)), *rows])

    def _write(self, mode: str, rows: list[dict[str, Any]]) -> None:
        try:
            with open(self.path, mode, newline="") as file:
                csv.DictWriter(file, self._columns, restval="").writerows(rows)
        except OSError as error:
            raise OutputFailed(
                f"cannot write {self.path}: {error.strerror}. Free the disk or choose another run_dir"
            ) from error


Mode = Literal["online", "offline", "disabled"]


def wandb_mode(wish: str) -> Mode:
    """ "online", "offline" or "disabled": what `wish` comes to here. Never asks anything."""
    if wish != "auto":
        return cast(Mode, wish)
    from_environment = {"dryrun": "offline", "run": "online"}.get(mode := os.environ.get("WANDB_MODE", ""), mode)
    if from_environment in ("online", "offline", "disabled"):
        return cast(Mode, from_environment)
    server = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    return (
        "online"
        if _has_key(server.hostname or "") and _answers(server.hostname or "", server.port or 443)
        else "offline"
    )


def _has_key(host: str) -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    file = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(file).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=3):
            return True
    except OSError:
        return False


def new_wandb_id() -> str:
    return os.urandom(8).hex()


def build_wandb_logger(
    config: LoggerConfig, mode: Mode, folder: Path, run_id: str, configuration: dict[str, Any]
) -> WandbLogger:
    """A logger that writes under `folder`/wandb and continues the run `run_id` if there is one.

    The run is opened here, not by Lightning, whose `offline=True` sets an environment variable that outlives the run.
    """
    import wandb

    run = wandb.init(
        name=config.name or folder.name,
        dir=folder,
        id=run_id,
        resume="allow",
        project=config.project,
        entity=config.entity,
        tags=config.tags,
        mode=mode,
        config=configuration,
        settings=wandb.Settings(console="off", silent=True),
    )
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return WandbLogger(experiment=run)


def finish_wandb(exit_code: int) -> None:
    """Close the run in progress, so that a next run in this process starts its own."""
    import wandb

    if wandb.run is not None:
        wandb.finish(exit_code=exit_code)
