"""Conditions of a group, judged by what is committed: one round trip for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from eventstore.conditions import Condition, Probed
from eventstore.decision import Matched, conditions_of
from eventstore.postgres.connect import Connection
from eventstore.postgres.queries import query
from eventstore.postgres.reading import head_of
from eventstore.store import AppendRequest
from kernel.errors import InvalidRequest
from kernel.positions import Position

GAVE_UP = -1
BUDGET_BEFORE = 10_000
"""Steps that the searches of one condition may take before the append lock is asked for."""
BUDGET_UNDER_LOCK = 1_000
"""Steps under the lock, for what was appended since; `es.append_group` has the same number."""
MAX_WALKS = 256
"""A group with more walks is not judged in one call: they are made one by one under the lock."""


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
    """What a group's conditions ask the database: `conditions` once each, with what is known of
    them already, and their walks.
    """

    conditions: tuple[Condition, ...]
    presumed: Mapping[Condition, Matched]
    walks: tuple[Walk, ...]

    @property
    def json(self) -> bytes:
        """The walks, as `match_conditions` and `es.append_group` take them."""
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
        return orjson.dumps(walks)

    def matched(self, rows: Sequence[Sequence[int | None]]) -> dict[Condition, Matched]:
        """Make the answers of rows (number of the condition, newest position or None)."""
        found = dict(self.presumed)
        for number, position in rows:
            assert number is not None
            condition = self.conditions[number]
            if position is not None:
                found[condition] = _too_costly(condition) if position == GAVE_UP else position
        return found


def probes_of(requests: Sequence[AppendRequest]) -> Probes | None:
    """Return the probes of a group, None when none of its requests has a condition."""
    conditions = conditions_of(requests)
    if not conditions:
        return None
    probed = {request.condition: request.probed for request in requests}
    walks = []
    presumed: dict[Condition, Matched] = {}
    for number, condition in enumerate(conditions):
        before = probed[condition]
        presumed[condition] = None if before is None else before.matched
        if presumed[condition] is not None:
            continue
        after = condition.after if before is None else max(condition.after, before.head)
        for item in condition.query.items:
            for name in item.types or (None,):
                category, type_ = _split(name)
                walks.append(
                    Walk(
                        number=number,
                        tags=item.tags,
                        category=category,
                        type=type_,
                        after=after,
                    )
                )
    return Probes(conditions=conditions, presumed=presumed, walks=tuple(walks))


async def probe(connection: Connection, condition: Condition) -> Probed:
    """Look for what a condition matches now, for as long as its budget goes."""
    head = await head_of(connection)
    request = AppendRequest(appends=(), condition=condition)
    probes = probes_of([request])
    assert probes is not None
    values = {"walks": probes.json.decode(), "budget": BUDGET_BEFORE}
    cursor = await connection.execute(query("match_conditions"), values)
    matched = probes.matched(await cursor.fetchall())
    return Probed(head=Position(head), matched=matched[condition])


def _split(name: str | None) -> tuple[str | None, str | None]:
    if name is None:
        return None, None
    category, dot, type_ = name.partition(".")
    return (category, type_) if dot else (None, name)


def _too_costly(condition: Condition) -> InvalidRequest:
    return InvalidRequest(
        f"the condition cannot be judged: too many events behind {condition.after} nearly "
        "match: they have one of its tags but not the others, or its type in other categories",
        remedy="Pass the head of your last query as after, or one tag that stands for all.",
    )
