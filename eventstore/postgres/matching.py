"""Conditions of a group, judged by what is committed: one round trip for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eventstore.conditions import Condition
from eventstore.decision import Matched, conditions_of
from eventstore.postgres.one_message import array_literal, text_literal
from eventstore.store import AppendRequest
from kernel.errors import InvalidRequest

GAVE_UP = -1
MAX_GUARDED = 256
"""More walks than this are not written into a group's one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """One search for the newest event: all of `tags`, one type of one category or of any."""

    number: int
    tags: tuple[str, ...]
    category: str | None
    type: str | None
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What a group's conditions ask the database: `conditions` once each, and their walks."""

    conditions: tuple[Condition, ...]
    walks: tuple[Walk, ...]

    @property
    def values(self) -> Mapping[str, object]:
        """What `match_conditions` is asked with."""
        walks = [
            {
                "number": walk.number,
                "tags": walk.tags,
                "category": walk.category,
                "type": walk.type,
                "after": walk.after,
            }
            for walk in self.walks
        ]
        return {"walks": json.dumps(walks)}

    def guard(self) -> str:
        """Return a statement that fails, with `MOVED`, unless no condition matches anything.

        It only calls functions, whose plans are kept: planning a query anew would cost more than
        the walks do.
        """
        calls = []
        for walk in self.walks:
            kind = f"{_literal(walk.category)},{_literal(walk.type)},{walk.after:d}"
            calls.append(
                f"es.newest_tagged({array_literal(walk.tags)},{kind})"
                if walk.tags
                else f"es.newest_of_kind({kind})"
            )
        return f"SELECT es.none_matched(greatest({','.join(calls)}))"

    def matched(self, rows: Sequence[Sequence[int | None]]) -> dict[Condition, Matched]:
        """Make the answers of rows (number of the condition, newest position or None)."""
        found: dict[Condition, Matched] = dict.fromkeys(self.conditions)
        for number, position in rows:
            assert number is not None
            condition = self.conditions[number]
            found[condition] = _too_costly(condition) if position == GAVE_UP else position
        return found


def probes_of(requests: Sequence[AppendRequest]) -> Probes | None:
    """Return the probes of a group, None when none of its requests has a condition."""
    conditions = conditions_of(requests)
    if not conditions:
        return None
    walks = []
    for number, condition in enumerate(conditions):
        for item in condition.query.items:
            for name in item.types or (None,):
                category, type_ = _split(name)
                walks.append(
                    Walk(
                        number=number,
                        tags=item.tags,
                        category=category,
                        type=type_,
                        after=condition.after,
                    )
                )
    return Probes(conditions=conditions, walks=tuple(walks))


def _split(name: str | None) -> tuple[str | None, str | None]:
    if name is None:
        return None, None
    category, dot, type_ = name.partition(".")
    return (category, type_) if dot else (None, name)


def _literal(text: str | None) -> str:
    return "NULL" if text is None else text_literal(text)


def _too_costly(condition: Condition) -> InvalidRequest:
    return InvalidRequest(
        f"the condition cannot be judged: too many events behind {condition.after} nearly "
        "match: they have one of its tags but not the others, or its type in other categories",
        remedy="Pass the head of your last query as after, or one tag that stands for all.",
    )
