"""Writes a whole store to a folder: Parquet files in order of position, and what they are.

`events-000001.parquet`, … have all events with their bytes, `schemas.parquet` the Avro schemas by
id. `store.json` is written last and has the checksum of each file: a folder without it is no
export. Events that are in the archive are taken from there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from apps.store.database import StoredEvents
from apps.store.events import ABOUT, FORMAT, files_of, refuse_gaps
from apps.store.rebuild import Progress
from kernel.errors import Conflict

_FILE_EVENTS = 1_000_000
_PART = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    store_id: str
    events: int
    bytes: int
    files: int


async def export(
    dsn: str,
    lake: str,
    folder: Path,
    *,
    show: Callable[[Progress], None] = lambda _: None,
    file_events: int = _FILE_EVENTS,
    part: int = _PART,
) -> Exported:
    """Write all events up to the present head. Appends go on meanwhile.

    Raises `Conflict` for a folder that has files, `Incompatible` for a position that is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise Conflict(
            f"{folder} is not empty",
            remedy=f"Name a new folder; what a killed export left there: rm -r {folder}",
        )
    async with StoredEvents.open(dsn, lake) as stored:
        contents = await stored.contents()
        names: list[str] = []
        writer: pq.ParquetWriter | None = None
        low, started = 1, asyncio.get_running_loop().time()
        while low <= contents.head:
            high = min(low + part - 1, contents.head)
            rows = await stored.between(low, high)
            refuse_gaps(rows, low, high)
            if writer is None:
                names.append(f"events-{len(names) + 1:06}.parquet")
                writer = pq.ParquetWriter(folder / names[-1], rows.schema, compression="zstd")
            writer.write_table(rows)
            if high % file_events < part:
                writer.close()
                writer = None
            seconds = max(asyncio.get_running_loop().time() - started, 1e-6)
            show(Progress(events=high, head=contents.head, rate=high / seconds))
            low = high + 1
        if writer is not None:
            writer.close()
    schemas = {"schema_id": [*contents.schemas], "schema": [*contents.schemas.values()]}
    kinds = pa.schema([("schema_id", pa.int32()), ("schema", pa.string())])
    pq.write_table(pa.table(schemas, schema=kinds), folder / "schemas.parquet")
    files = files_of(folder, [*names, "schemas.parquet"])
    about = {
        "format": FORMAT,
        "store_id": contents.store_id,
        "head": contents.head,
        "types": dict(contents.subjects),
        "files": files,
    }
    unfinished = folder / f".{ABOUT}"
    unfinished.write_text(json.dumps(about, indent=1) + "\n")
    unfinished.rename(folder / ABOUT)
    return Exported(
        store_id=contents.store_id,
        events=contents.head,
        bytes=sum(int(str(file["bytes"])) for file in files.values()),
        files=len(files),
    )
