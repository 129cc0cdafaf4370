"""What handles of tables were asked for, as long as they have the same version.

Columns, files and bounds of a version never change, and deltalake puts each answer together anew: a
millisecond for some dozen files. In a round of projections each asks the same of the tables that
all of them read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deltalake import DeltaTable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    handle: weakref.ref[DeltaTable]
    version: int
    answers: dict[Hashable, Any] = field(default_factory=dict)


_known: dict[int, _Known] = {}


def answer(
    table: DeltaTable,
    question: Hashable,
    ask: Callable[[], T],
    *,
    is_kept: Callable[[T], bool] = lambda answer: True,
) -> T:
    """Return what `ask` gives, or gave when this was asked at the handle's version before.

    A question has one type of answer. One that is not to be kept in memory is asked again.
    """
    place, version = id(table), int(table.version())
    known = _known.get(place)
    if known is None or known.handle() is not table or known.version != version:
        known = _Known(
            handle=weakref.ref(table, lambda _: _known.pop(place, None)), version=version
        )
        _known[place] = known
    if question in known.answers:
        found: T = known.answers[question]
        return found
    found = ask()
    # Another thread may have brought the handle further meanwhile: it is of one of two versions.
    if is_kept(found) and table.version() == version:
        known.answers[question] = found
    return found
