"""A log in a lake without Kafka and Spark: what ingest would have written, written by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psycopg
import pyarrow as pa

from eventstore.archiving import ArchiveReport, ArchiveRun
from eventstore.lake_archive import LakeArchive
from eventstore.postgres.archiving import PostgresHolder, same_text
from kernel.positions import Epoch
from lake.layout import Lake, events_log
from lake.table_columns import EVENTS
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard

_EVENTS = """
SELECT store_id::text, position, category, type, stream, version, id::text AS event_id,
       occurred_at, recorded_at, schema_id, data_format, data, subject, key_id, metadata, tags
    FROM es.events WHERE position > %s AND position <= %s ORDER BY position
"""


def into_the_log(
    dsn: str, lake: Path, *, after: int = 0, up_to: int = 2**62, **changed: object
) -> int:
    """Write events to the log of their store, and return how many; `changed` forges columns."""
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        rows = connection.execute(_EVENTS, (after, up_to)).fetchall()
    if not rows:
        return 0
    epoch = Epoch(rows[-1]["position"])
    arrived = {
        "epoch": epoch,
        "topic": "events",
        "partition": 0,
        "offset": 0,
        "ingested_at": datetime.now(UTC),
        "watermark": None,
        "closed_late": False,
    }
    table = pa.Table.from_pylist(
        [row | {"metadata": json.dumps(row["metadata"])} | arrived | changed for row in rows],
        EVENTS,
    )
    ArrowWriter(Tables()).append(
        Lake.at(lake).path(events_log(rows[0]["store_id"])),
        table,
        Guard("ingest", epoch),
        partition_by=["category"],
    )
    return len(rows)


def recorder(http: httpx.Client) -> Callable[[str, int], Awaitable[None]]:
    """Record over HTTP how far a stream is in the archive."""

    async def record(stream: str, up_to: int) -> None:
        answer = await asyncio.to_thread(
            http.put, f"/v1/streams/{stream}/archived", json={"up_to": up_to}
        )
        assert answer.status_code == 200, answer.text

    return record


def archived(
    dsn: str,
    lake: Path,
    http: httpx.Client,
    *,
    stream: str | None = None,
    before: int | None = None,
    max_events: int = 500,
    shown: list[tuple[int, int]] | None = None,
) -> ArchiveReport:
    """Run `penstock stream archive` inside this process."""

    def show(report: ArchiveReport) -> None:
        if shown is not None:
            shown.append((report.events, report.planned))

    async def inside() -> ArchiveReport:
        async with PostgresHolder(dsn, stream=stream, before=before) as holder:
            run = ArchiveRun(
                holder,
                LakeArchive(lake),
                recorder(http),
                same_text=same_text,
                show=show,
                max_events=max_events,
            )
            return await run.run()

    return asyncio.run(inside())
