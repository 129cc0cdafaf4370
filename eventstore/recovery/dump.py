"""Writes a whole store to a folder: Parquet files in order of position, and what they are.

`events-000001.parquet`, … have all events with their bytes, `schemas.parquet` the Avro schemas by
id. `store.json` is written last and has the checksum of each file: a folder without it is no
export, and all files are on the disk before it is. Only their owner may read them. Events that are
in the archive are taken from there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from eventstore.recovery.events import (
    ABOUT,
    COLUMNS,
    FORMAT,
    OWN,
    checksum_of,
    files_of,
    refuse_gaps,
)
from eventstore.recovery.rebuild import RebuildProgress
from eventstore.recovery.stored_events import StoredEvents
from kernel.errors import Conflict

_OURS = re.compile(rf"events-\d+\.parquet|schemas\.parquet|\.{re.escape(ABOUT)}")
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
    show: Callable[[RebuildProgress], None] = lambda _: None,
    file_events: int = _FILE_EVENTS,
    part: int = _PART,
) -> Exported:
    """Write all events up to the present head. Appends go on meanwhile.

    Raises `Conflict` for a folder that has files, `Incompatible` for a position that is missing.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = [each.name for each in folder.iterdir()]
    if found:
        remedy = "Name a new folder."
        if all(map(_OURS.fullmatch, found)):
            remedy += f" What a killed export left there: rm -r {shlex.quote(str(folder))}"
        raise Conflict(f"{folder} is not empty", remedy=remedy)
    async with StoredEvents.open(dsn, lake) as stored:
        contents = await stored.contents()
        names: list[str] = []
        started = asyncio.get_running_loop().time()
        for first in range(1, contents.head + 1, file_events):
            names.append(f"events-{len(names) + 1:06}.parquet")
            last = min(first + file_events - 1, contents.head)
            with _kept(folder / names[-1]) as file, _events_in(file) as writer:
                for low in range(first, last + 1, part):
                    high = min(low + part - 1, last)
                    rows = await stored.between(low, high)
                    refuse_gaps(rows, low, high)
                    writer.write_table(rows)
                    seconds = max(asyncio.get_running_loop().time() - started, 1e-6)
                    show(RebuildProgress(events=high, head=contents.head, rate=high / seconds))
    schemas = {"schema_id": [*contents.schemas], "schema": [*contents.schemas.values()]}
    kinds = pa.schema([("schema_id", pa.int32()), ("schema", pa.string())])
    with _kept(folder / "schemas.parquet") as file:
        pq.write_table(pa.table(schemas, schema=kinds), file)
    files = files_of(folder, [*names, "schemas.parquet"])
    about = {
        "format": FORMAT,
        "store_id": contents.store_id,
        "head": contents.head,
        "types": dict(contents.subjects),
        "files": files,
    }
    unfinished = folder / f".{ABOUT}"
    with _kept(unfinished) as file:
        file.write(json.dumps(about | {OWN: checksum_of(about)}, indent=1).encode() + b"\n")
    _sync(folder)
    unfinished.rename(folder / ABOUT)
    _sync(folder)
    _sync(folder.parent)
    return Exported(
        store_id=contents.store_id,
        events=contents.head,
        bytes=sum(int(str(file["bytes"])) for file in files.values()),
        files=len(files),
    )


@contextmanager
def _kept(path: Path) -> Iterator[BinaryIO]:
    """Write a file that only its owner may read, and that outlives the machine at the end."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _events_in(file: BinaryIO) -> pq.ParquetWriter:
    return pq.ParquetWriter(file, COLUMNS, compression="zstd")


def _sync(folder: Path) -> None:
    """Make sure of the names in a folder."""
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)
