"""What runs users' code, off the service, under a deadline, its errors told by file and line."""

from __future__ import annotations

import logging
import sysconfig
import traceback
from pathlib import Path
from typing import Protocol, TypeVar

from eventstore.deciders.decider import plain
from eventstore.deciders.tasks import Code, DeciderTask
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

    async def run(self, task: DeciderTask[T]) -> T:
        """Return the task's answer.

        Raises what the code raises of our own errors; `DeciderFailed` for every other error, with
        the line; `DeciderStopped` when it did not end in time, or took its process with it;
        `Overloaded` when too many wait.
        """
        ...


def perform(task: DeciderTask[T], code: Code) -> T:
    """Do a task. Raises errors of our own classes alone, which exist in every process.

    Raises `MemoryError` besides.
    """
    try:
        return task.done_by(code)
    except PenstockError as error:
        raise _own(error, task.of) from None
    except MemoryError:
        raise
    except BaseException as error:  # Users' code may even call sys.exit.
        failed = failure(error, task.of)
        _log.warning("%s", failed, exc_info=error)
        raise failed from None


def _own(error: PenstockError, of: str) -> PenstockError:
    """Return an error of the nearest class that is ours, and plain: users may derive from `Refused`
    and give it any fields, or call no constructor of ours.
    """
    kinds = type(error).__mro__
    ours = next(kind for kind in kinds if kind.__module__ == PenstockError.__module__)
    try:
        fields = plain(getattr(error, "fields", {}))
        own: PenstockError = ours(text_of(error), remedy=str(error.remedy), **fields)
    except MemoryError:
        raise
    except Exception as unfit:
        return failure(unfit.with_traceback(error.__traceback__), of)
    return own


def text_of(error: BaseException) -> str:
    """Return what an error says. One of users' classes may have no text, or fail to give it."""
    for text in (str, BaseException.__str__):
        try:
            return str.__str__(text(error))
        except MemoryError:
            raise
        except BaseException:
            continue
    return "its text cannot be shown"


def failure(error: BaseException, of: str) -> DeciderFailed:
    """Say what users' code raised, and at which line of which file."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    what = f"{of}: {type(error).__name__}: {text_of(error)}"
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
