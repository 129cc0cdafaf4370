"""Which tables a lake has, and what each did: without Spark, registry or broker."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from kernel.errors import InvalidRequest, NotFound, Unavailable
from lake import storage
from lake.layout import KINDS, SINGLE, Lake
from lake.table_commits import OPERATION, ROWS
from schemas.identifiers import GOES_ON

TOPICS = "topics"
"""What the typed table of an external topic is called beneath `typed`: `topics.pings`."""
_LOG_FOLDER = "_delta_log"
_DEEPEST = 3
_MERGED = (
    "num_target_rows_inserted",
    "num_target_rows_updated",
    "num_target_rows_deleted",
    "numTargetRowsInserted",
    "numTargetRowsUpdated",
    "numTargetRowsDeleted",
)
_WRITTEN = (ROWS, "num_added_rows", "numOutputRows")
_PLACED = re.compile(r"(?P<kind>[^./]+)[./](?P<rest>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """One Delta table: `name` is its place in the lake, as `current/shop.public.orders`."""

    name: str
    path: str
    version: int
    rows: int
    bytes: int
    files: int
    committed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of a table: what was done, and how many rows that wrote."""

    version: int
    at: datetime
    operation: str
    rows: int | None
    engine: str


def table_name(parts: list[str]) -> str:
    """Turn a name as users write it into a place in the lake."""
    text = ".".join(parts)
    if {"", ".", ".."} & set(text.split("/")):
        raise InvalidRequest(
            f"{text} is not a table's name", remedy="See what there is: penstock table list"
        )
    placed = _PLACED.fullmatch(text)
    if placed is None:
        return text if text in SINGLE else f"projection/{text}"
    if placed["kind"] == TOPICS:
        return f"typed/{TOPICS}.{placed['rest']}"
    if placed["kind"] not in KINDS:
        raise InvalidRequest(
            f"{text} is not a table's name: {placed['kind']} is not one of {', '.join(KINDS)}",
            remedy="Write the kind first, as current.shop.public.orders; a projection has a bare "
            "name. See what there is: penstock table list",
        )
    return f"{placed['kind']}/{placed['rest']}"


def table_names(lake: Lake) -> list[str]:
    """Return the names of all tables, sorted. Generations beneath a projection are not listed."""
    found = [name for name in SINGLE if _is_table(f"{lake.root}/{name}")]
    for kind in KINDS:
        found += map(lake.name_at, _beneath(lake.root, kind, 1))
    return sorted(found)


def list_tables(lake: Lake) -> tuple[list[LakeTable], dict[str, str]]:
    """Describe every table at its newest version; say by name why one cannot be read.

    One that has no commit yet, or none any more, is left out.
    """
    found: list[LakeTable] = []
    unreadable: dict[str, str] = {}
    for name in table_names(lake):
        try:
            found.append(describe(lake, name))
        except NotFound:
            continue  # It is being made, or went between the two looks.
        except Unavailable as error:
            unreadable[name] = error.message
    return found, unreadable


def describe(lake: Lake, name: str) -> LakeTable:
    """Describe one table. Raises as `open_table` does."""
    table = open_table(lake, name)
    files = table.get_add_actions()
    newest = table.history(1)[0]
    return LakeTable(
        name=name,
        path=lake.path(name),
        version=table.version(),
        rows=_sum(files["num_records"].to_pylist()),
        bytes=_sum(files["size_bytes"].to_pylist()),
        files=files.num_rows,
        committed_at=_moment(newest["timestamp"]),
    )


def row_count(lake: Lake, name: str) -> int:
    """Count the rows of a table by its files' statistics; 0 where there is no table."""
    try:
        table = DeltaTable(lake.path(name))
    except TableNotFoundError:
        return 0
    return rows_in(table)


def rows_in(table: DeltaTable) -> int:
    """Count the rows of a table's version by its files' statistics."""
    return _sum(table.get_add_actions()["num_records"].to_pylist())


def commits(lake: Lake, name: str, *, limit: int) -> list[Commit]:
    """Return the newest commits of a table, newest first. Raises `NotFound`."""
    return [
        Commit(
            version=int(entry["version"]),
            at=_moment(entry["timestamp"]),
            operation=str(entry.get(OPERATION, entry["operation"])),
            rows=_rows({**(entry.get("operationMetrics") or {}), **entry}),
            engine=str(entry.get("engineInfo", "")),
        )
        for entry in open_table(lake, name).history(limit)
    ]


def open_table(lake: Lake, name: str) -> DeltaTable:
    """Open a table by its place in the lake.

    Raises `NotFound` naming the nearest, `Unavailable` where its log cannot be read.
    """
    if not DeltaTable.is_deltatable(lake.path(name)):
        raise unknown_table(lake, name)
    try:
        return DeltaTable(lake.path(name))
    except (DeltaError, OSError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise Unavailable(f"{name} cannot be read: {why}") from error


def unknown_table(lake: Lake, name: str) -> NotFound:
    """Make the error that names the nearest table."""
    near = difflib.get_close_matches(name, table_names(lake), n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    return NotFound(
        f"no table {name} in the lake{hint}", remedy="See what there is: penstock table list"
    )


def _beneath(root: str, folder: str, depth: int) -> Iterator[str]:
    for entry in sorted(storage.folders_in(f"{root}/{folder}")):
        name = f"{folder}/{entry}"
        if _is_table(f"{root}/{name}"):
            yield name
        elif depth < _DEEPEST or name.endswith(GOES_ON):
            yield from _beneath(root, name, depth + 1)


def _is_table(place: str) -> bool:
    return storage.exists(f"{place}/{_LOG_FOLDER}")


def _sum(numbers: Iterable[int | None]) -> int:
    return sum(number or 0 for number in numbers)


def _rows(metrics: dict[str, object]) -> int | None:
    """Count rows written or deleted, by the names of either engine; None where it says nothing."""
    changed = [int(str(metrics[name])) for name in _MERGED if name in metrics]
    if changed:
        return sum(changed)
    written = [int(str(metrics[name])) for name in _WRITTEN if name in metrics]
    return written[0] if written else None


def _moment(milliseconds: object) -> datetime:
    return datetime.fromtimestamp(int(str(milliseconds)) / 1000, UTC)
