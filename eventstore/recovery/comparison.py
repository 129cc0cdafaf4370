"""Compares a store with its events elsewhere, row for row, and what follows from them.

Equal are: every column of every event, the bytes of its data included; what every stream shows and
its last version; tags; categories; the schemas that events need; and for each type, which schemas
its events may have and which one the next is written with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.lifecycle import METADATA_SUFFIX
from eventstore.recovery.events import COLUMNS, StoreEvents
from eventstore.recovery.stored_events import StoredEvents
from eventstore.restored_streams import PolicyFold

_MOST_TOLD = 20
_METADATA = "metadata"
_STREAMS = """
SELECT stream, version, deleted, tombstoned, truncate_before, max_age_s, max_count
    FROM es.heads
"""
_TAGS = """
SELECT count(*) FROM (
    (SELECT tag, position, category, type FROM es.tags
        WHERE position NOT IN (SELECT position FROM es.archived)
     EXCEPT SELECT unnest(tags), position, category, type FROM es.events)
    UNION ALL
    (SELECT unnest(tags), position, category, type FROM es.events
     EXCEPT SELECT tag, position, category, type FROM es.tags)
) AS differing
"""


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What was compared, and how many differ; `first` describes some of them."""

    store_id: str
    head: int
    events: int = 0
    streams: int = 0
    schemas: int = 0
    differing_events: int = 0
    differing_streams: int = 0
    differing_tags: int = 0
    differing_schemas: int = 0
    differing_categories: int = 0
    differing_types: int = 0
    beyond: int = 0
    first: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs. What the store has beyond the other's head is no difference."""
        return not (
            self.differing_events
            + self.differing_streams
            + self.differing_tags
            + self.differing_schemas
            + self.differing_categories
            + self.differing_types
        )

    def tell(self, what: str) -> None:
        """Describe one difference, unless enough were described."""
        if len(self.first) < _MOST_TOLD:
            self.first.append(what)


async def compare(events: StoreEvents, stored: StoredEvents) -> RecoveryReport:
    """Compare the store in a database with `events`, up to their head."""
    contents = events.contents
    there = await stored.contents()
    report = RecoveryReport(
        store_id=contents.store_id,
        head=contents.head,
        beyond=max(0, there.head - contents.head),
    )
    if there.store_id != contents.store_id:
        report.differing_events += 1
        report.tell(f"the store's id is {there.store_id}, not {contents.store_id}")
    fold, heads, kinds = PolicyFold(contents.schemas), dict[str, int](), _Kinds()
    for part in events.parts():
        low, high = part["position"][0].as_py(), part["position"][-1].as_py()
        _compare_events(part, await stored.between(low, high), report)
        report.events += part.num_rows
        kinds.add(part)
        newest = part.group_by("stream").aggregate([("version", "max")]).to_pydict()
        heads |= dict(zip(newest["stream"], newest["version_max"], strict=True))
        for row in _of_metadata(part):
            fold.add(row["stream"], row["type"], row["schema_id"], row["data"])
    if not report.beyond:
        # Policies are as of the last event: what was appended since may have changed them.
        await _compare_streams(stored, fold, heads, report)
    report.differing_tags = (await stored.rows(_TAGS))[0][0]
    if report.differing_tags:
        report.tell(f"{report.differing_tags} tags differ from those of their events")
    await _compare_kinds(stored, kinds, contents.subjects, report)
    for schema_id in kinds.schema_ids:
        report.schemas += 1
        if there.schemas.get(schema_id) != contents.schemas.get(schema_id):
            report.differing_schemas += 1
            report.tell(f"schema {schema_id} differs")
    return report


class _Kinds:
    """The categories, types and schemas of events, as they come by ascending position."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, int], int] = {}

    def add(self, part: pa.Table) -> None:
        """Take the events of a part."""
        columns = ["category", "type", "schema_id"]
        found = part.group_by(columns).aggregate([("position", "max")]).to_pylist()
        self._last |= {(*(row[name] for name in columns),): row["position_max"] for row in found}

    @property
    def schema_ids(self) -> list[int]:
        """The schemas that events have."""
        return sorted({schema_id for _, _, schema_id in self._last})

    @property
    def categories(self) -> set[str]:
        """The categories that have events."""
        return {category for category, _, _ in self._last}

    @property
    def schemas(self) -> dict[str, list[int]]:
        """The schemas of the events of each type; the last event's is the last one."""
        found: dict[str, list[int]] = {}
        for category, type_, schema_id in sorted(self._last, key=self._last.__getitem__):
            found.setdefault(f"{category}.{type_}", []).append(schema_id)
        return found


async def _compare_kinds(
    stored: StoredEvents, kinds: _Kinds, subjects: Mapping[str, int], report: RecoveryReport
) -> None:
    """Compare categories and types.

    A type may be written with a schema that none of its events has yet. With another one than the
    last event's that events do have it goes back to an old form, unless `subjects` says so.
    """
    there = {category for (category,) in await stored.rows("SELECT category FROM es.categories")}
    wanted = kinds.categories
    for category in sorted(wanted - there if report.beyond else wanted ^ there):
        report.differing_categories += 1
        has = "has events and is" if category in wanted else "has no events and is"
        report.tell(f"category {category} {has}{'' if category in there else ' not'} listed")
    written = dict(await stored.rows("SELECT subject, schema_id FROM es.types"))
    known = {*await stored.rows("SELECT subject, schema_id FROM es.type_schemas")}
    for subject, used in kinds.schemas.items():
        now, last = written.get(subject), subjects.get(subject, used[-1])
        older = subject in subjects or now in used
        if now is None or (now != last and older and not report.beyond):
            report.differing_types += 1
            report.tell(f"type {subject} is written with schema {now}, not {last}")
        elif not {(subject, schema_id) for schema_id in used} <= known:
            report.differing_types += 1
            report.tell(f"type {subject} lacks a schema that its events have")


def _of_metadata(part: pa.Table) -> list[dict[str, Any]]:
    found = part.filter(pc.ends_with(part["stream"], METADATA_SUFFIX))
    rows: list[dict[str, Any]] = found.select(["stream", "type", "schema_id", "data"]).to_pylist()
    return rows


def _compare_events(wanted: pa.Table, found: pa.Table, report: RecoveryReport) -> None:
    if wanted.drop_columns([_METADATA]).equals(found.drop_columns([_METADATA])):
        # Text of the same JSON may be written in several ways.
        pairs = zip(wanted[_METADATA].to_pylist(), found[_METADATA].to_pylist(), strict=True)
        places = [n for n, (a, b) in enumerate(pairs) if a != b and _json(a) != _json(b)]
        for place in places:
            report.differing_events += 1
            report.tell(f"position {wanted['position'][place].as_py()}: metadata")
        return
    theirs = {row["position"]: row for row in found.to_pylist()}
    for row in wanted.to_pylist():
        other = theirs.get(row["position"])
        differing = ["missing"] if other is None else _differing(row, other)
        if differing:
            report.differing_events += 1
            report.tell(f"position {row['position']}: {', '.join(differing)}")


def _differing(row: dict[str, Any], other: dict[str, Any]) -> list[str]:
    names = [n for n in COLUMNS.names if n != _METADATA and row[n] != other[n]]
    if _json(row[_METADATA]) != _json(other[_METADATA]):
        names.append(_METADATA)
    return names


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


async def _compare_streams(
    stored: StoredEvents, fold: PolicyFold, heads: dict[str, int], report: RecoveryReport
) -> None:
    found = {row[0]: row[1:] for row in await stored.rows(_STREAMS)}
    for stream in sorted({*heads, *found}):
        report.streams += 1
        wanted: tuple[Any, ...] | None = None
        if stream in heads:
            policy = fold.policy(stream, heads[stream])
            wanted = (
                *(heads[stream], policy.deleted, policy.tombstoned, policy.truncate_before),
                *(policy.max_age_s, policy.max_count),
            )
        if found.get(stream) != wanted:
            report.differing_streams += 1
            report.tell(f"stream {stream} shows {found.get(stream)}, not {wanted}")
