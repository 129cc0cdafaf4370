"""A store that is rebuilt from the lake alone, or from an export, is the store that was."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eventstore.postgres.identity import renew_id
from eventstore.postgres.restoring import Contents, Restored
from eventstore.recovery.comparison import RecoveryReport, compare
from eventstore.recovery.copy_lines import CopyLines
from eventstore.recovery.dump import export
from eventstore.recovery.events import FolderEvents, LakeEvents, StoreEvents
from eventstore.recovery.rebuild import rebuild
from eventstore.recovery.stored_events import StoredEvents
from kernel.errors import ChecksumMismatch, Conflict, Incompatible, NotFound, Unavailable
from kernel.positions import Epoch
from lake.layout import Lake
from lake.table_columns import AVRO_SCHEMAS
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from schemas.registry import MemoryRegistry
from tests.migration.test_event_store_schema import dumped
from tests.support.lake.archiving import archived, into_the_log
from tests.support.services.http import service_in_thread
from tests.support.services.waiting import until
from tests.support.store.postgres import EMPTY

IDS = [str(uuid.UUID(int=n)) for n in range(1, 200)]
TABLES = {
    "es.events": "position",
    "es.categories": "category",
    "es.tags": "tag, position",
    "es.schemas": "schema_id",
    "es.types": "subject",
    "es.type_schemas": "subject, schema_id",
    "es.heads": "stream",
}
"""What a store consists of, but for subscriptions, answers to commands and snapshots."""


def body(number: int, **more: Any) -> dict[str, Any]:
    """Return an event; texts and numbers are of the awkward kind."""
    # What may be archived has the text in the log that it has in the database.
    small = 1.5 if number % 4 == 1 else 1e-7
    return {
        "id": IDS[number],
        "type": ("placed", "shipped", "paid")[number % 3],
        "data": {"n": number, "text": 'ä\u2028"\\\n\t\r'},
        "metadata": {"by": "Zoë \u0001\\N", "deep": {"zz": [small, 10, None], "a": {}}}
        if number % 2
        else {},
        "tags": [f"n:{number % 4}", 'odd"t,ag\\ü{}', "NULL"] if number % 3 else [],
        "occurred_at": f"0001-01-01T05:{number % 60:02}:00.123456+01:00",
    } | more


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "a lake"


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def dsn(postgres_dsn: str, lake: Path, registry: MemoryRegistry) -> str:
    lived(postgres_dsn, lake, registry)
    return postgres_dsn


def lived(postgres_dsn: str, lake: Path, registry: MemoryRegistry) -> None:
    """Fill a store with streams that are deleted, truncated, bounded, archived, and its log."""
    with service_in_thread(postgres_dsn, lake=lake, registry=registry) as http:
        lives(http)
        into_the_log(postgres_dsn, lake)
        assert archived(postgres_dsn, lake, http, stream="order-1", before=3).events == 3
        into_the_log(postgres_dsn, lake, after=head(postgres_dsn) - 1)
    schemas_into_the_log(postgres_dsn, lake)


def lives(http: httpx.Client) -> None:
    def append(stream: str, *numbers: int) -> None:
        answer = http.post(f"/v1/streams/{stream}", json={"events": [*map(body, numbers)]})
        assert answer.status_code == 201, answer.text

    for n in range(0, 60, 4):
        append(f"order-{n % 5}", n, n + 1)
        append(f"cart-{n % 3}\\x", n + 2, n + 3)
    for stream, policy in (
        ("order-0", {"truncate_before": 2}),
        ("order-2", {"max_count": 3}),
        ("order-3", {"max_age_s": 86_400}),
        ("order-3", {"max_age_s": None, "truncate_before": 1}),
    ):
        assert http.put(f"/v1/streams/{stream}/metadata", json=policy).status_code == 200
    assert http.delete("/v1/streams/cart-0%5Cx").status_code == 200
    assert http.delete("/v1/streams/cart-1%5Cx", params={"tombstone": "true"}).status_code == 200
    assert http.delete("/v1/streams/order-4").status_code == 200
    append("order-4", 70)  # Begins again.


def schemas_into_the_log(dsn: str, lake: Path, *, epoch: int = 1) -> None:
    rows = asked(dsn, "SELECT 1::bigint, schema_id, schema FROM es.schemas")
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, AVRO_SCHEMAS, strict=True)]
    table = pa.table(arrays, schema=AVRO_SCHEMAS)
    path = Lake.at(lake).avro_schemas
    ArrowWriter(Tables()).append(path, table, Guard("log/_schemas", Epoch(epoch)))


def asked(dsn: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement.encode(), values).fetchall()


def head(dsn: str) -> int:
    return int(asked(dsn, "SELECT position FROM es.counter")[0][0])


def rebuilt(events: StoreEvents, dsn: str, *, copies: int = 3) -> Restored:
    return asyncio.run(rebuild(events, dsn, copies=copies))


def compared(events: StoreEvents, dsn: str, lake: Path) -> RecoveryReport:
    async def inside() -> RecoveryReport:
        async with StoredEvents.open(dsn, str(lake)) as stored:
            return await compare(events, stored)

    return asyncio.run(inside())


def whole(dsn: str) -> dict[str, list[tuple[Any, ...]]]:
    return {t: asked(dsn, f"SELECT * FROM {t} ORDER BY {key}") for t, key in TABLES.items()}


def answers(dsn: str, lake: Path) -> dict[str, tuple[int, str]]:
    """Return what a service over the store answers."""
    streams = [row[0] for row in asked(dsn, "SELECT stream FROM es.streams")]
    urls = ["/v1/events", *(f"/v1/events/{id_}" for id_ in IDS[:72])]
    urls += [f"/v1/streams/{s.replace(chr(92), '%5C').replace('$', '%24')}" for s in streams]
    with service_in_thread(dsn, lake=lake) as http:
        found = {url: http.get(url) for url in urls}
        again = http.post("/v1/streams/order-0", json={"events": [body(0)]})
        assert again.status_code == 200, "an id that is used gets its first answer"
    return {url: (answer.status_code, answer.text) for url, answer in found.items()}


def test_p1_a_store_rebuilt_from_the_lake_answers_as_the_one_that_was_lost(
    dsn: str, lake: Path, new_database: Callable[..., str]
) -> None:
    events = LakeEvents(Lake.at(lake), part=7)
    empty = new_database(EMPTY)
    done = rebuilt(events, empty)
    assert done.events == head(dsn) == head(empty)
    assert dumped(empty) == dumped(new_database()), "with all indexes, constraints and rights"
    report = compared(events, empty, lake)
    assert (report.equal, report.first, report.events) == (True, [], done.events)
    assert compared(events, dsn, lake).equal, "the store that was, with its archive"
    before, after = whole(dsn), whole(empty)
    # What was archived is in the database again.
    positions = [row[0] for row in before["es.events"]]
    assert [r for r in after["es.events"] if r[0] in positions] == before["es.events"]
    assert len(after["es.events"]) == len(positions) + 3
    heads = {row[:-1] for row in before["es.heads"]}
    assert {row[:-1] for row in after["es.heads"]} == heads
    assert {row[-1] for row in after["es.heads"]} == {0}
    for table in {*TABLES} - {"es.events", "es.heads"}:
        assert after[table] == before[table], table
    assert asked(empty, "SELECT store_id, known_head FROM es.store") == [
        (uuid.UUID(done.store_id), None)
    ]
    assert answers(empty, lake) == answers(dsn, lake)


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of files and folders to come that are made sure of, in order."""
    names: list[str] = []

    def fsync(place: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{place}")).name)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def test_a_store_that_was_exported_is_imported_as_it_was(
    dsn: str,
    lake: Path,
    tmp_path: Path,
    new_database: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, names = tmp_path / "export", synced(monkeypatch)
    done = asyncio.run(export(dsn, str(lake), folder, part=10, file_events=30))
    assert (done.events, done.files) == (head(dsn), 4)
    files = sorted(path.name for path in folder.iterdir() if path.suffix == ".parquet")
    # What says that it is whole gets its name when all else is on the disk.
    assert names == [*files, ".store.json", "export", "export", tmp_path.name]
    assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(Conflict, match="is not empty") as refused:
        asyncio.run(export(dsn, str(lake), folder))
    assert "rm -r" not in refused.value.remedy, "a whole export is what somebody wants to keep"
    (killed := tmp_path / "a b").mkdir()
    (killed / "events-000001.parquet").touch()
    with pytest.raises(Conflict) as refused:
        asyncio.run(export(dsn, str(lake), killed))
    assert refused.value.remedy.endswith(f"rm -r '{killed}'")
    empty = new_database(EMPTY)
    rebuilt(FolderEvents(folder), empty)
    assert compared(FolderEvents(folder), empty, lake).equal
    assert compared(LakeEvents(Lake.at(lake)), empty, lake).equal
    about = folder / "store.json"
    told = about.read_text()
    lower = told.replace(f'"head": {head(dsn)}', '"head": 7')
    for damaged in (told[:-20], lower, "[]", ""):
        about.write_text(damaged)
        with pytest.raises(ChecksumMismatch, match=r"store\.json is not the file"):
            FolderEvents(folder)
    del (earlier := json.loads(told))["sha256"]
    about.write_text(json.dumps(earlier))
    assert FolderEvents(folder).contents.head == head(dsn), "earlier versions wrote none"
    about.write_text(told)
    file = folder / "events-000002.parquet"
    rows = pq.read_table(file)
    pq.write_table(rows.set_column(4, "version", pa.array([9] * rows.num_rows, pa.int64())), file)
    with pytest.raises(ChecksumMismatch, match=r"events-000002\.parquet is not the file"):
        FolderEvents(folder)
    file.unlink()
    with pytest.raises(ChecksumMismatch, match=r"events-000002\.parquet is not the file"):
        FolderEvents(folder)
    (folder / "store.json").unlink()
    with pytest.raises(NotFound, match="has no whole export"):
        FolderEvents(folder)


def half_rebuilt(events: LakeEvents, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebuild, and die after two parts of twenty events."""
    copied: list[int] = []
    real = CopyLines.of

    def dying(self: CopyLines, part: pa.Table) -> list[memoryview]:
        if len(copied) == 2:
            raise KeyboardInterrupt
        copied.append(part.num_rows)
        return real(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(CopyLines, "of", dying)
        with pytest.raises(KeyboardInterrupt):
            rebuilt(events, empty, copies=1)
    assert head(empty) == 40


def serves_nobody(http: httpx.Client) -> None:
    """See that a service over a half filled store answers nothing, and tells how to go on."""
    for url in ("/v1/events", f"/v1/events/{IDS[0]}", "/v1/streams/order-0", "/v1/streams"):
        assert http.get(url).status_code == 503, url
    until(lambda: "same command again" in http.get("/v1/events").text, "the trouble is told")


@pytest.mark.matrix
def test_a_rebuild_that_died_is_fenced_and_gone_on_with(
    dsn: str, lake: Path, new_database: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events, empty = LakeEvents(Lake.at(lake), part=20), new_database()
    half_rebuilt(events, empty, monkeypatch)
    with service_in_thread(empty, wait_ready=False) as http:
        refused = http.post("/v1/streams/order-0", json={"events": [body(99)]})
        assert refused.status_code >= 500, refused.text
        serves_nobody(http)
    other = StoredElsewhere(events)
    with pytest.raises(Conflict, match="half filled with store"):
        rebuilt(other, empty)
    rebuilt(events, empty)
    assert compared(events, empty, lake).equal
    with pytest.raises(Conflict, match="has a store already"):
        rebuilt(events, empty)


class StoredElsewhere:
    """The same events under another store's id."""

    def __init__(self, events: LakeEvents) -> None:
        self.contents = replace(events.contents, store_id=str(uuid.UUID(int=5)))
        self.parts = events.parts


def test_what_differs_is_named_and_a_gap_is_refused(
    dsn: str, lake: Path, new_database: Callable[..., str]
) -> None:
    events, empty = LakeEvents(Lake.at(lake)), new_database()
    rebuilt(events, empty)
    with psycopg.connect(empty) as forging:
        forging.execute("ALTER TABLE es.events DISABLE TRIGGER ALL")
        forging.execute("UPDATE es.events SET data = data || '\\x00' WHERE position = 3")
        forging.execute("UPDATE es.events SET metadata = '{\"a\": 1}' WHERE position = 4")
        forging.execute("UPDATE es.streams SET truncate_before = 1 WHERE stream = 'order-2'")
        forging.execute("DELETE FROM es.tags WHERE position = 6")
        forging.execute("DELETE FROM es.categories WHERE category = 'cart'")
        forging.execute("INSERT INTO es.categories VALUES ('never')")
        forging.execute("DELETE FROM es.types WHERE subject = 'cart.paid'")
        forging.execute("DELETE FROM es.type_schemas WHERE subject = 'order.placed'")
    report = compared(events, empty, lake)
    assert not report.equal
    assert (report.differing_events, report.differing_streams, report.differing_tags) == (2, 1, 3)
    assert (report.differing_categories, report.differing_types) == (2, 2)
    assert report.first[:2] == ["position 3: data", "position 4: metadata"]
    assert "category cart has events and is not listed" in report.first
    table = Lake.at(lake).path(f"log/events/{events.contents.store_id}")
    Tables().open(table).delete("position = 17")
    with pytest.raises(Incompatible, match="position 17 is missing"):
        rebuilt(LakeEvents(Lake.at(lake)), new_database())


@pytest.mark.matrix
def test_a_missing_schema_version_is_named_and_the_same_command_finishes(
    dsn: str, lake: Path, new_database: Callable[..., str]
) -> None:
    ((lost,),) = asked(dsn, "SELECT max(schema_id) FROM es.events")
    Tables().open(Lake.at(lake).avro_schemas).delete(f"schema_id = {lost}")
    empty = new_database(EMPTY)
    with pytest.raises(Incompatible, match=f"schema with id {lost} is missing") as refused:
        rebuilt(LakeEvents(Lake.at(lake)), empty)
    assert "log/_schemas" in str(refused.value.remedy)
    Tables().open(Lake.at(lake).avro_schemas).delete()
    schemas_into_the_log(dsn, lake, epoch=2)
    events = LakeEvents(Lake.at(lake))
    assert rebuilt(events, empty).events == head(dsn)
    assert compared(events, empty, lake).equal


@pytest.mark.matrix
def test_who_had_the_lease_before_writes_nothing_until_the_store_is_whole(
    dsn: str,
    lake: Path,
    registry: MemoryRegistry,
    new_database: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events, empty = LakeEvents(Lake.at(lake), part=20), new_database()
    with service_in_thread(empty, lake=lake, registry=registry) as http:
        wanted = {"url": "/v1/streams/order-9", "json": {"events": [body(99)]}}
        half_rebuilt(events, empty, monkeypatch)
        refused = http.post(**wanted)
        assert refused.status_code == 503, refused.text
        assert "is being filled" in refused.text
        assert head(empty) == 40
        with pytest.raises(Unavailable, match="is being filled"):
            asyncio.run(renew_id(empty))
        with pytest.raises(Unavailable, match="is being filled"):
            asyncio.run(export(empty, str(lake), lake / "export"))
        rebuilt(events, empty)
        assert http.post(**wanted).status_code in (200, 201)
    assert compared(events, empty, lake).equal
    assert asked(empty, "SELECT DISTINCT store_id::text FROM es.events") == [
        (events.contents.store_id,)
    ]


class NoEvents:
    """A store that was exported before anything was appended."""

    contents = Contents(store_id=str(uuid.UUID(int=6)), head=0, schemas={1: '"int"'}, subjects={})

    def parts(self, *, after: int = 0, up_to: int | None = None) -> Iterator[pa.Table]:
        return iter(())


def test_a_database_that_knows_schemas_is_refused_before_it_is_migrated(
    new_database: Callable[..., str],
) -> None:
    used = new_database()
    with psycopg.connect(used) as connection:
        connection.execute("INSERT INTO es.schemas VALUES (1, '\"long\"')")
        connection.execute("DELETE FROM es.migrations WHERE number > 16")
    with pytest.raises(Conflict, match=r"has a store already: es\.schemas has rows"):
        rebuilt(NoEvents(), used)
    assert asked(used, "SELECT max(number) FROM es.migrations") == [(16,)]
