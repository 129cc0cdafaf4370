"""Conditions of a group, judged by what is committed: one round trip for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from eventstore.conditions import Condition
from eventstore.decision import Matched, conditions_of
from eventstore.postgres.connect import Connection
from eventstore.postgres.queries import query
from eventstore.store import AppendRequest
from kernel.errors import InvalidRequest

GAVE_UP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What a group's conditions ask the database: `conditions` once each, flat for SQL.

    Most are one step into an index. Several tags, and a type of one category, are a walk.
    """

    conditions: tuple[Condition, ...]
    values: Mapping[str, object]

    def guard(self, connection: Connection) -> bytes:
        """Return a statement that fails, with `MOVED`, unless no condition matches anything."""
        inner = query("match_conditions").as_string().rstrip().rstrip(";")
        text = f"SELECT es.none_matched(max(newest)) FROM ({inner}) AS matched"
        return psycopg.AsyncClientCursor(connection).mogrify(text, self.values).encode()

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
    steps: list[tuple[int, str | None, str | None, int]] = []
    walks: list[dict[str, object]] = []
    for number, condition in enumerate(conditions):
        for item in condition.query.items:
            for name in item.types or (None,):
                category, type_ = _split(name)
                if category is None and len(item.tags) < 2:
                    tag = item.tags[0] if item.tags else None
                    steps.append((number, tag, type_, condition.after))
                else:
                    walk = {"number": number, "tags": item.tags, "after": condition.after}
                    walks.append(walk | {"category": category, "type": type_})
    columns = [list(column) for column in zip(*steps, strict=True)] or [[], [], [], []]
    names = ("numbers", "probe_tags", "probe_types", "afters")
    values = dict(zip(names, columns, strict=True)) | {"walks": json.dumps(walks)}
    return Probes(conditions=conditions, values=values)


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
