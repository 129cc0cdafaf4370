"""All errors of a text at once, for its author, in place of the first one for a caller.

Where `collecting` stands around the work, an error behind which reading can go on is kept, and what
was wrong is read as the nearest that is right. Elsewhere every error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from kernel.errors import InvalidRequest

R = TypeVar("R")


@dataclass(slots=True)
class CollectedRefusals:
    """Errors in the order in which they were met, each once.

    `guessed`: something stands for what nothing is known of, so that an error which ends the work
    may be of that alone: it is left out. `lost` are names that unreadable statements declare.
    """

    errors: list[InvalidRequest] = field(default_factory=list)
    guessed: bool = False
    lost: set[str] = field(default_factory=set)

    def add(self, error: InvalidRequest) -> None:
        """Keep an error, if it was not met before: queries are read more than once."""
        if error.message not in {each.message for each in self.errors}:
            self.errors.append(error)


UNREAD = "unread"
"""The field of an error with the name of the projection that is read, and refused itself."""
CIRCLE = "circle"
"""The field of an error with the projections that read each other."""
MISSPELT = "misspelt"
"""The field of an error with the name of a column that there is not."""
_OF_OTHERS = frozenset({UNREAD, CIRCLE})
"""What no guess about a statement's own names brings about."""
_CURRENT: ContextVar[CollectedRefusals | None] = ContextVar("collected_refusals", default=None)


@contextmanager
def collecting(*, guessed: bool = False) -> Iterator[CollectedRefusals]:
    """Collect the errors of the work inside; none of them is raised.

    `guessed`: what the work begins with was refused already, and is there in part.
    """
    found = CollectedRefusals(guessed=guessed)
    before = _CURRENT.set(found)
    try:
        yield found
    except InvalidRequest as error:
        if not found.guessed or not _OF_OTHERS.isdisjoint(error.fields):
            found.add(error)
    finally:
        _CURRENT.reset(before)


def result_and_refusals(
    work: Callable[[], R], *, guessed: bool = False
) -> tuple[R | None, CollectedRefusals]:
    """Do work as `collecting` does; return its result, or None where an error ended it."""
    done: list[R] = []
    with collecting(guessed=guessed) as found:
        done.append(work())
    return (done[0] if done else None), found


@contextmanager
def raising() -> Iterator[None]:
    """Let errors be raised inside, for who asks by way of them whether something can be read."""
    before = _CURRENT.set(None)
    try:
        yield
    finally:
        _CURRENT.reset(before)


@contextmanager
def apart() -> Iterator[None]:
    """Where errors are collected, let one that is raised inside end this part of the work alone."""
    found = _CURRENT.get()
    try:
        yield
    except InvalidRequest as error:
        if found is None:
            raise
        if not found.guessed:
            found.add(error)


def refuse(error: InvalidRequest, *, guessed: bool = True) -> None:
    """Raise an error, or keep it where errors are collected.

    `guessed`: what is wrong has no likely right one.
    """
    found = _CURRENT.get()
    if found is None:
        raise error
    found.add(error)
    found.guessed = found.guessed or guessed


def collected() -> CollectedRefusals | None:
    """Return where errors are collected to; None where they are raised."""
    return _CURRENT.get()
