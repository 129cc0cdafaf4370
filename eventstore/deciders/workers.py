"""What runs users' code, off the service, under a deadline, its errors told by file and line."""

from __future__ import annotations

import logging
import sysconfig
import traceback
from pathlib import Path
from typing import Protocol, TypeVar

from eventstore.deciders.tasks import Code, Task
from kernel.errors import DeciderFailed, PenstockError

_log = logging.getLogger("penstock.deciders")
T = TypeVar("T")
_NOT_THEIRS = (
    str(Path(__file__).parent),
    "<",
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


class Workers(Protocol):
    """Has tasks done. Several at a time; each sees the same code."""

    async def run(self, task: Task[T]) -> T:
        """Return the task's answer.

        Raises what the code raises of our own errors; `DeciderFailed` for every other error, with
        the line; `DeciderStopped` when it did not end in time, or took its process with it;
        `Overloaded` when too many wait.
        """
        ...


def perform(task: Task[T], code: Code) -> T:
    """Do a task. Raises errors of our own classes alone, which exist in every process."""
    try:
        return task.done_by(code)
    except PenstockError as error:
        raise _own(error) from None
    except MemoryError:
        raise
    except BaseException as error:  # Users' code may even call sys.exit.
        failed = failure(error, task.of)
        _log.warning("%s", failed, exc_info=error)
        raise failed from None


def _own(error: PenstockError) -> PenstockError:
    """Return an error of the nearest class that is ours: users may derive from `Refused`."""
    ours = next(kind for kind in type(error).__mro__ if kind.__module__ == PenstockError.__module__)
    if ours is type(error):
        return error
    own: PenstockError = ours(error.message, remedy=error.remedy, **error.fields)
    return own


def failure(error: BaseException, of: str) -> DeciderFailed:
    """Say what users' code raised, and at which line of which file."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    what = f"{of}: {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return DeciderFailed(
            f"{error.filename}:{error.lineno}: {what}", file=error.filename, line=error.lineno
        )
    if not frames:
        return DeciderFailed(what)
    place = (theirs or list(frames))[-1]
    return DeciderFailed(
        f"{place.filename}:{place.lineno}: {what}", file=place.filename, line=place.lineno
    )
