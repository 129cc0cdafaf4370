"""What the rows of the manifest say, and how they are written. It loads no pyarrow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kernel.positions import Epoch, Offsets, TopicId
from lake.layout import TableAt
from pipeline.ddl.held_tables import Hold

BOUND, COMMITTED, PROJECTION = "bound", "committed", "projection"
_REST = "rest"
"""Under this name a bound epoch notes in its counts with how many rows a cut is to rest."""
_REST_BYTES = "rest_bytes"
"""And under this one with how many bytes that are to be brought to new columns."""
_REST_ROW_BYTES = "rest_row_bytes"
"""And under this one with how many bytes of changed rows."""
_TRANSACTIONS = "transactions"
"""And under this one how many transactions may become foldable of a source."""
TYPED = "typed"
"""The name under which typed and history tables note how far they were brought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """An epoch and the offsets `[start, end)` that it is made of.

    `installs`: numbers of the announcements (`pipeline.installs.install_book`) that it takes in;
    None as long as nobody has looked for them, which ingest does before it binds. `topics`: the
    topics that the offsets belong to. `goes_on`: sources whose cut rested, and goes on to an LSN.
    `most_rows`: with more rows of a table a cut is to rest; None where none does. `most_bytes`: and
    with larger files of a table, whose rows are to be brought to new columns; `most_row_bytes`: and
    with more bytes of a table's changed rows; None for no bound. `most_transactions`: so many of a
    source become foldable at once; None for all there are.
    """

    epoch: Epoch
    run_id: str
    batch_id: int
    start: Offsets
    end: Offsets
    installs: tuple[int, ...] | None = None
    topics: Mapping[str, TopicId] = field(default_factory=dict)
    goes_on: Mapping[str, int] = field(default_factory=dict)
    most_rows: int | None = None
    most_bytes: int | None = None
    most_row_bytes: int | None = None
    most_transactions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A complete epoch: what it carried over and which table versions belong to it.

    `heads`: store -> contiguous head position. `cuts`: source -> LSN of the last folded commit.
    `pending_from`: source -> first epoch with rows that are not foldable yet. `installs`: numbers
    of the announcements whose rows became part of the tables. `topics`: the topics that the
    offsets `end` belong to.
    """

    epoch: Epoch
    run_id: str
    batch_id: int
    end: Offsets
    progress: str
    heads: Mapping[str, int]
    cuts: Mapping[str, int]
    pending_from: Mapping[str, int]
    tables: Mapping[str, TableAt]
    counts: Mapping[str, int]
    timings_ms: Mapping[str, float]
    at: datetime
    installs: tuple[int, ...] = ()
    topics: Mapping[str, TopicId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """A projection's table (or another derived one) after a run up to `epoch`.

    `held` are derived tables that do not have the epoch: `tables` has none of them, `standing` has
    their versions of before. `meaning` is that of the query which made all rows of a projection;
    empty where there is no such one.
    """

    epoch: Epoch
    name: str
    tables: Mapping[str, TableAt]
    held: Mapping[str, Hold] = field(default_factory=dict)
    standing: Mapping[str, TableAt] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    meaning: str = ""


def bound_row(bound: Bound) -> dict[str, object]:
    """Return the row that binds an epoch."""
    row: dict[str, object] = {"epoch": bound.epoch, "kind": BOUND, "run_id": bound.run_id}
    row |= {"batch_id": bound.batch_id}
    row |= {"start_offsets": compact(bound.start), "end_offsets": compact(bound.end)}
    installs = None if bound.installs is None else compact(bound.installs)
    # Columns that say of a committed epoch what became of it.
    rests = {_REST: bound.most_rows, _REST_BYTES: bound.most_bytes}
    rests |= {_REST_ROW_BYTES: bound.most_row_bytes, _TRANSACTIONS: bound.most_transactions}
    row |= {"cuts": compact(bound.goes_on), "counts": compact(rests)}
    return row | {"installs": installs, "topics": compact(bound.topics)}


def compact(value: object) -> str:
    """Return JSON without blanks."""
    return json.dumps(value, separators=(",", ":"))


def tables_json(tables: Mapping[str, TableAt]) -> str:
    """Return versions of tables as JSON."""
    return compact({name: [at.version, at.as_of_epoch] for name, at in tables.items()})


def _tables_at(text: object) -> dict[str, TableAt]:
    return {
        name: TableAt(version=version, as_of_epoch=epoch)
        for name, (version, epoch) in json.loads(str(text)).items()
    }


def bound_of(row: Mapping[str, object]) -> Bound:
    """Read the row that bound an epoch."""
    rests = json.loads(str(row["counts"] or "{}"))
    return Bound(
        epoch=Epoch(int(str(row["epoch"]))),
        run_id=str(row["run_id"]),
        batch_id=int(str(row["batch_id"])),
        start=json.loads(str(row["start_offsets"])),
        end=json.loads(str(row["end_offsets"])),
        installs=_numbers(row),
        topics=_topics(row),
        goes_on=json.loads(str(row["cuts"] or "{}")),
        most_rows=rests.get(_REST),
        most_bytes=rests.get(_REST_BYTES),
        most_row_bytes=rests.get(_REST_ROW_BYTES),
        most_transactions=rests.get(_TRANSACTIONS),
    )


def committed_of(row: Mapping[str, object]) -> Committed:
    """Read the row that committed an epoch; `progress` may be left out of it."""
    at = row["at"]
    assert isinstance(at, datetime)
    return Committed(
        epoch=Epoch(int(str(row["epoch"]))),
        run_id=str(row["run_id"]),
        batch_id=int(str(row["batch_id"])),
        end=json.loads(str(row["end_offsets"])),
        progress=str(row.get("progress") or ""),
        heads=json.loads(str(row["heads"])),
        cuts=json.loads(str(row["cuts"])),
        pending_from=json.loads(str(row["pending_from"])),
        tables=_tables_at(row["tables"]),
        counts=json.loads(str(row["counts"])),
        timings_ms=json.loads(str(row["timings_ms"])),
        at=at,
        installs=_numbers(row) or (),
        topics=_topics(row),
    )


def _numbers(row: Mapping[str, object]) -> tuple[int, ...] | None:
    kept = row.get("installs")
    return None if kept is None else tuple(json.loads(str(kept)))


def _topics(row: Mapping[str, object]) -> dict[str, TopicId]:
    kept = row.get("topics")
    found = {} if kept is None else json.loads(str(kept))
    return {name: TopicId(*topic) for name, topic in found.items()}


def noted_at(row: Mapping[str, object]) -> tuple[int, datetime]:
    """Return the order of notes about one table: an epoch may have been noted again."""
    at = row["at"]
    assert isinstance(at, datetime)
    return int(str(row["epoch"])), at


def _held(row: Mapping[str, object]) -> dict[str, Hold]:
    kept = row.get("held")
    found = {} if kept is None else json.loads(str(kept))
    return {name: Hold.from_json(hold) for name, hold in found.items()}


def projected_of(row: Mapping[str, object]) -> Projected:
    """Read a derived table's note."""
    return Projected(
        epoch=Epoch(int(str(row["epoch"]))),
        name=str(row["name"]),
        tables=_tables_at(row["tables"]),
        counts=json.loads(str(row["counts"])),
        timings_ms=json.loads(str(row["timings_ms"])),
        held=_held(row),
        standing=_tables_at(row.get("standing") or "{}"),
        meaning=str(row.get("meaning") or ""),
    )


def projected_row(done: Projected) -> dict[str, object]:
    """Return the row of a derived table's note."""
    return {
        "epoch": done.epoch,
        "kind": PROJECTION,
        "name": done.name,
        "tables": tables_json(done.tables),
        "counts": compact(done.counts),
        "timings_ms": compact(done.timings_ms),
        "held": compact({name: hold.to_json() for name, hold in done.held.items()}),
        "standing": tables_json(done.standing),
        "meaning": done.meaning,
    }
