"""The one place where an error becomes an exit status and one or two lines on stderr."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

USER_ERROR = 2
INTERNAL_ERROR = 1
INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + 13  # SIGPIPE, which Windows has no name for


def guarded(command: Callable[[], int], show_traceback: bool) -> int:
    """The exit status of `command()`. Errors are reported; a reader that left (`| head`) ends it quietly."""
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python flushes stdout once more on exit; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        print("maskzoo: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return report(error, show_traceback)


def report(error: Exception, show_traceback: bool) -> int:
    """Print what went wrong on stderr, and return the exit status that says whose fault it was."""
    from maskzoo.tasks.training.errors import TrainingStopped

    if show_traceback:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, TrainingStopped):
        status = error.status
    else:
        status = USER_ERROR if isinstance(error, (ValueError, OSError)) else INTERNAL_ERROR
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    elif status == INTERNAL_ERROR and not isinstance(error, TrainingStopped):
        text = " ".join(str(error).split())
        message = f"internal error: {type(error).__name__}: {text[:500]}\n(add --traceback to see where)"
    else:
        message = str(error) or type(error).__name__
    first, *rest = message.strip().splitlines() or [""]
    print("\n".join([f"maskzoo: {first}", *rest[:1]]), file=sys.stderr)
    return status
