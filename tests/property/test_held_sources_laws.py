"""What one captured table or source holds keeps no other table and no other source."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel.errors import NotFound, Unavailable
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.commit.retries import Patience
from schemas.wire import frame
from tests.support.lake.bulk import HandSource
from tests.support.lake.folding import ENVELOPE, KEY, TABLE, Done, state_of
from tests.support.lake.ingested import BatchedLake
from tests.support.lake.telling import BreakingRegistry
from tests.support.services.tier import examples

TABLES = ("shop.public.items", "shop.public.goods", "mart.public.items")
PLACES = ("schema lost", "storage", "folder of the table", "ddl")
DDL = {"kind": "message", "table": "_schema", "operation": "m"}


@dataclass
class Sources(BatchedLake):
    """Three tables of two sources, each fed by a hand-made stream of its own."""

    lake: Lake
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        self.streams = {name: HandSource() for name in TABLES}
        self.taken = dict.fromkeys(TABLES, 0)
        self.lsn = 0
        self.registry = BreakingRegistry()
        for number, schema in enumerate((ENVELOPE, KEY), start=1):
            assert self.registry.register(f"items-{number}", json.dumps(schema)) == number
        for number in range(3, 6):
            text = json.dumps(ENVELOPE | {"doc": f"of table {number}"})
            assert self.registry.register(f"table-{number}", text) == number
        self.restart()

    def epoch(
        self, done: dict[str, list[Done]], spoiled: Callable[[list[dict[str, Any]]], None]
    ) -> Committed:
        """Commit a transaction per table, spoil the decoded rows, and take them in."""
        rows: list[dict[str, Any]] = []
        for number, name in enumerate(TABLES, start=3):
            source, _, table = name.partition(".")
            stream = self.streams[name]
            stream.commit(*done.get(name, []))
            own = [*stream.rows[self.taken[name] :], stream.ends[-1]]
            self.taken[name] = len(stream.rows)
            for row in own:
                row = row | {"source": source, "topic": f"{name}.{row['kind']}"}
                row["transaction_id"] = f"{name}:{row['transaction_id']}"
                # Two tables of one source commit at places of their own.
                row["lsn"] = self.lsn + number * 1_000 + int(row["lsn"]) - stream.lsn
                if row["kind"] == "change":
                    value = row["value"]
                    row |= {"table": table, "schema_id": number, "value": frame(number, value[5:])}
                else:
                    row["counts"] = row["counts"].replace(TABLE, table)
                    row |= {"topic": f"{source}.transaction", "offset": self.lsn + number}
                rows.append(row)
        if self.lsn == 0:
            rows += [_begun("shop"), _begun("mart")]
        self.lsn += 10_000
        spoiled(rows)
        rows.sort(key=lambda row: (row["kind"] == "end", row["lsn"]))
        bound = Bound(
            epoch=self.ingest.next_epoch, run_id="t", batch_id=0, start={}, end={"t": {"0": 1}}
        )
        self.batch = rows
        for _ in range(20):
            try:
                return self.finish(bound)
            except Unavailable:
                self.restart()
        raise AssertionError("the epoch never ended")

    def state(self, name: str, at: Committed) -> object:
        known = at.tables.get(f"current/{name}")
        version = None if known is None else known.version
        return state_of(Tables().read(self.lake.path(f"current/{name}"), version=version))


def _begun(source: str) -> dict[str, Any]:
    """Return the end of a snapshot without tables: the source begins with its stream."""
    place = {"topic": f"{source}.begun", "partition": 0, "offset": 0, "lsn": 0}
    return {"kind": "snapshot", "source": source, "counts": '{"rows": 0}', **place}


def nothing(rows: list[dict[str, Any]]) -> None:
    """Spoil nothing."""


def plant(sources: Sources, place: str, victim: str) -> Callable[[list[dict[str, Any]]], None]:
    """Make a table fail at a place; DDL is a message of a later version."""
    number = 3 + TABLES.index(victim)
    path = Path(sources.lake.path(f"current/{victim}"))
    match place:
        case "schema lost":
            sources.registry.broken[number] = NotFound("no such schema")
        case "storage":
            sources.registry.broken[number] = Unavailable("storage does not answer")
        case "ddl":
            return lambda rows: rows.append(_message(rows, victim))
        case _:
            shutil.rmtree(path, ignore_errors=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"a file where a folder should be")
            sources.restart()
    return nothing


def _message(rows: list[dict[str, Any]], victim: str) -> dict[str, Any]:
    end = next(r for r in rows if r["kind"] == "end" and victim in r["transaction_id"])
    end["counts"] = json.dumps(json.loads(end["counts"]) | {"_messages": 1})
    place = {"lsn": end["lsn"] - 1, "commit_order": end["lsn"], "total_order": 99}
    names = ("source", "transaction_id", "recorded_at", "partition", "offset")
    schema, _, table = victim.partition(".")[2].partition(".")
    told = json.dumps({"version": 2, "schema": schema, "table": table})
    return {
        **DDL,
        "counts": told,
        **place,
        **{n: end[n] for n in names},
        "topic": "messages",
        "snapshot": False,
    }


@settings(max_examples=examples(4, matrix=8))
@example(place="ddl", victim=TABLES[1], first=True)
@example(place="storage", victim=TABLES[0], first=False)
@given(
    place=st.sampled_from(PLACES),
    victim=st.sampled_from(TABLES),
    first=st.booleans(),
)
def test_what_one_table_or_source_holds_keeps_no_other(
    place: str, victim: str, first: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sources = Sources(Lake.at(Path(folder)))
        rows = {name: [Done("c", 1, name=name), Done("c", 2)] for name in TABLES}
        # A registry that is away keeps all new schemas from being read, not those of one table.
        first = first and place != "storage"
        if not first:
            sources.epoch(rows, nothing)
        spoil = plant(sources, place, victim)
        done = sources.epoch(rows if first else {n: [Done("u", 1)] for n in TABLES}, spoil)
        more = {name: [Done("u", 2, size=5), Done("d", 1)] for name in TABLES}
        done = sources.epoch(more, nothing)
        source = victim.partition(".")[0]
        (hold,) = sources.ingest.held()[source].values()
        assert (hold.from_epoch, bool(hold.reason)) == (1 if first else 2, True)
        for name in set(TABLES) - {victim}:
            assert sources.state(name, done) == sources.streams[name].state, name
            assert done.tables[f"current/{name}"].as_of_epoch == done.epoch
