"""Fills an empty registry with schemas under the ids that they had.

Records name their schemas by id, and a registry takes no id from outside: it counts. So schemas are
registered in the order of their ids, and for an id that nobody knows a schema that nobody uses.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kernel.errors import Conflict, Incompatible, InvalidRequest, SchemaViolation
from schemas.compatibility import is_same
from schemas.registry import SchemaRegistry

MOST_LOST = 10_000
"""Ids between others that nobody knows. A registry that counts otherwise is not filled in so."""
_LOST = "penstock.lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refilled:
    """What a registry has. `lost`: ids that stand for nothing any more."""

    schemas: int
    subjects: int
    lost: int


def agreed(lake: Mapping[int, str], store: Mapping[int, str]) -> dict[int, str]:
    """Return the schemas of both by id.

    Raises `Incompatible` where an id stands for one schema in the lake and for another one in the
    store: whichever the registry got, records of the other one would be read by it.
    """
    other = [n for n in sorted({*lake} & {*store}) if not _alike(lake[n], store[n])]
    if not other:
        return {**lake, **store}
    ids = ", ".join(map(str, other[:5])) + (", …" if len(other) > 5 else "")
    raise Incompatible(
        f"the lake and the store have different schemas under the id{'s'[: len(other) > 1]} {ids} "
        f"({_name(lake[other[0]])} and {_name(store[other[0]])}): no registry reads both",
        remedy="See that postgres.dsn is the store whose events the lake has: penstock store "
        "verify. Where a new registry gave these ids anew, restore it from a backup of its own.",
    )


def _alike(one: str, other: str) -> bool:
    """Say whether two texts read records alike.

    A registry respells what it is given, and the lake has the text of the registry, the store that
    of whoever added the schema.
    """
    if one == other or json.loads(one) == json.loads(other):
        return True
    try:
        return is_same(one, other)
    except SchemaViolation:
        return False


def _name(schema: str) -> str:
    """Return what a schema calls itself."""
    told = json.loads(schema)
    return str(told.get("name", told.get("type")) if isinstance(told, dict) else told)


def refill(
    registry: SchemaRegistry, schemas: Mapping[int, str], subjects: Mapping[str, Collection[int]]
) -> Refilled:
    """Register schemas by id; `subjects` says under which names. The same again changes nothing.

    What has no name gets one by its id: its producer registers it under its own, and is given this
    id, since it is the same schema. Raises `Conflict` where the registry gives another id, as one
    that is not empty does, and `InvalidRequest` for ids that do not count from 1.
    """
    named: dict[int, list[str]] = {}
    for subject, ids in sorted(subjects.items()):
        for each in ids:
            named.setdefault(each, []).append(subject)
    last = max(schemas, default=0)
    lost = last - len(schemas)
    if min(schemas, default=1) < 1 or lost > MOST_LOST:
        raise InvalidRequest(
            f"the schemas have {len(schemas)} ids up to {last}: no registry that counts does that",
            remedy="Restore the registry from a backup of its own.",
        )
    for schema_id in range(1, last + 1):
        text = schemas.get(schema_id) or _placeholder(schema_id)
        for subject in named.get(schema_id, [f"{_LOST}.{schema_id}"]):
            given = registry.register(subject, text)
            if given != schema_id:
                raise Conflict(
                    f"the registry gave the schema of {subject} the id {given}, and its records "
                    f"say {schema_id}: it is not empty, or others register schemas meanwhile",
                    remedy="Stop all else that uses it, empty it, and give the command again: "
                    "penstock up --only postgres,registry starts no more than these",
                )
    return Refilled(schemas=len(schemas), subjects=len(subjects), lost=lost)


def _placeholder(schema_id: int) -> str:
    name = f"schema_{schema_id}"
    return json.dumps({"type": "record", "name": name, "namespace": _LOST, "fields": []})
