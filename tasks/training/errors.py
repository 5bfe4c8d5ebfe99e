"""Why a run ended before its time. A user's mistake is a ValueError instead."""

from __future__ import annotations


class TrainingStopped(RuntimeError):
    """Training ended early; `status` is the exit status of the command, the message one or two lines for the user."""

    status: int = 1


class NonFiniteLoss(TrainingStopped):
    """The loss or its gradient is NaN or infinite."""


class UnsoundModel(TrainingStopped):
    """The audit found that the model sees what its rule, or its task, forbids."""


class Terminated(TrainingStopped):
    """The process was asked to end (SIGTERM); a checkpoint was written first."""

    status = 143


class OutputFailed(TrainingStopped):
    """The run folder cannot be written: read-only, or the disk is full."""

    status = 2
