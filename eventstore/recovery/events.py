"""All events of a store in order of position, wherever they are: in the lake, or in files.

Each source hands out parts of some thousand events as Arrow tables with `COLUMNS`, without gaps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from eventstore.postgres.restoring import Contents
from kernel.errors import ChecksumMismatch, Incompatible, InvalidRequest, NotFound
from lake import storage
from lake.datasets import dataset_of, scanner_of
from lake.layout import Lake, events_log
from lake.table_columns import EVENTS
from lake.tables import Tables, greatest, least
from pipeline.commit.manifest import Manifest

COLUMNS = pa.schema(
    [
        EVENTS.field(name)
        for name in (
            *("position", "store_id", "event_id", "stream", "version", "category", "type"),
            *("schema_id", "data_format", "data", "subject", "key_id", "metadata", "tags"),
            *("occurred_at", "recorded_at"),
        )
    ]
)
PART = 100_000
"""Events of a part: a few dozen megabytes."""
FORMAT = "penstock-store-1"
ABOUT = "store.json"
OWN = "sha256"
"""What `ABOUT` names its own checksum by; exports of earlier versions have none."""


class StoreEvents(Protocol):
    """A store's events somewhere else than in its database."""

    @property
    def contents(self) -> Contents:
        """What the store is, apart from its events."""
        ...

    def parts(self, *, after: int = 0, up_to: int | None = None) -> Iterator[pa.Table]:
        """Yield the events behind a position, ascending. Raises `Incompatible` for a gap."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """The log of one store id: a store that was restored goes on under another one."""

    store_id: str
    rows: ds.Dataset
    first: int
    last: int


class LakeEvents:
    """Events from the log of a lake, `log/events/<store>`."""

    def __init__(self, lake: Lake, store_ids: Sequence[str] = (), *, part: int = PART) -> None:
        """`store_ids`: of one store, oldest first, where it had several. Raises `NotFound`."""
        self._part = part
        self._lake = lake
        self._segments = _segments(lake, store_ids or _only_store(lake))
        newest = self._segments[-1]
        self._contents = Contents(
            store_id=newest.store_id,
            head=_head(lake, newest),
            schemas=lake_schemas(lake),
            subjects={},
        )
        _refuse_later(lake, {segment.store_id for segment in self._segments}, self._contents.head)

    @property
    def contents(self) -> Contents:
        """What the store is. Its head is that of the last epoch: all events up to there came."""
        return self._contents

    @property
    def store_ids(self) -> tuple[str, ...]:
        """The ids of the store, oldest first."""
        return tuple(each.store_id for each in self._segments)

    def last_of(self, heads: Mapping[str, int]) -> int | None:
        """Return the store's last position where stores had these; None where it is not of them.

        Under the newest id that is: heads of earlier days know older ones alone. What was lost
        when the store got its next id does not count.
        """
        for each in reversed(self._segments):
            if each.store_id in heads:
                return min(int(heads[each.store_id]), each.last)
        return None

    @property
    def sources(self) -> tuple[str, ...]:
        """The captured sources whose changes the lake has, too."""
        last = Manifest(self._lake, Tables()).last()
        return () if last is None else (*last.cuts,)

    def parts(
        self,
        *,
        after: int = 0,
        up_to: int | None = None,
        where: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the events behind a position, ascending; with `where` only those that satisfy it.

        A gap is one whatever is asked for: of events that are not, only the position is read.
        """
        end = self._contents.head if up_to is None else up_to
        for low in range(after + 1, end + 1, self._part):
            high = min(low + self._part - 1, end)
            rows = self._rows(low, high, columns or COLUMNS.names, where)
            whole = rows if where is None else self._rows(low, high, ["position"])
            refuse_gaps(whole, low, high)
            if rows.num_rows:
                yield rows

    def _rows(
        self, low: int, high: int, columns: Sequence[str], where: pc.Expression | None = None
    ) -> pa.Table:
        segments = [each for each in self._segments if each.first <= high]
        found = [_between(each, low, high, columns, where) for each in segments]
        return pa.concat_tables(found).sort_by("position")


class FolderEvents:
    """Events from the folder of an export."""

    def __init__(self, folder: Path) -> None:
        """Read what the export says of itself, and compare the checksums of all its files.

        Raises `NotFound` for a folder without a whole export, `ChecksumMismatch`.
        """
        self._folder = folder
        about = _about(folder)
        for name, known in about["files"].items():
            if not (folder / name).exists() or _sha256(folder / name) != known["sha256"]:
                raise _damaged(folder / name)
        self._files = [n for n in sorted(about["files"]) if n.startswith("events-")]
        schemas = pq.read_table(folder / "schemas.parquet").to_pylist()
        self._contents = Contents(
            store_id=about["store_id"],
            head=about["head"],
            schemas={row["schema_id"]: row["schema"] for row in schemas},
            subjects=about["types"],
        )

    @property
    def contents(self) -> Contents:
        """What the store is."""
        return self._contents

    def parts(self, *, after: int = 0, up_to: int | None = None) -> Iterator[pa.Table]:
        """Yield the events behind a position, ascending."""
        low, end = after + 1, self._contents.head if up_to is None else up_to
        for name in self._files:
            file = pq.ParquetFile(self._folder / name)
            for group in _groups(file, low, end):
                rows = file.read_row_group(group).cast(COLUMNS)
                position = rows["position"]
                wanted = pc.and_(pc.greater_equal(position, low), pc.less_equal(position, end))
                rows = rows.filter(wanted)
                if rows.num_rows:
                    refuse_gaps(rows, low, low + rows.num_rows - 1)
                    low += rows.num_rows
                    yield rows


def _groups(file: pq.ParquetFile, low: int, high: int) -> Iterator[int]:
    """Yield the row groups that may have events of some positions."""
    place = file.schema_arrow.get_field_index("position")
    for group in range(file.num_row_groups):
        known = file.metadata.row_group(group).column(place).statistics
        if known is None or not known.has_min_max or (known.min <= high and known.max >= low):
            yield group


def _only_store(lake: Lake) -> list[str]:
    found = sorted(storage.folders_in(f"{lake.root}/log/events"))
    if len(found) != 1:
        told = ", ".join(found) if found else "none"
        raise InvalidRequest(
            f"which store? The lake has the events of: {told}",
            remedy="Name it: --store ID. Where a store got a new id (penstock store renew-id), "
            "give its ids, the oldest first.",
        )
    return found


def _segments(lake: Lake, store_ids: Sequence[str]) -> list[_Segment]:
    """Open the logs. Of each but the last only what lies before the next one's first event.

    Raises `NotFound` for one without events, `InvalidRequest` for ids that are not in order: the
    events of the newest one would be taken for those that were lost.
    """
    opened: list[tuple[str, DeltaTable]] = []
    for store_id in store_ids:
        try:
            opened.append((store_id, DeltaTable(lake.path(events_log(store_id)))))
        except TableNotFoundError as error:
            raise NotFound(
                f"the lake has no events of store {store_id}", remedy="penstock table list"
            ) from error
    found: list[_Segment] = []
    upper = 2**63 - 1
    for store_id, table in reversed(opened):
        rows = dataset_of(table)
        first, end = least(table, "position"), greatest(table, "position")
        if first is None or end is None:
            raise NotFound(
                f"the lake has no events of store {store_id}", remedy="Name the other ids alone."
            )
        if first > upper:
            raise InvalidRequest(
                f"the events of store {store_id} begin at position {first}, not before those of "
                f"the store that is named after it, which begin at {upper + 1}",
                remedy="Give the ids in the order in which the store had them, the oldest first.",
            )
        last = min(end, upper)
        found.insert(0, _Segment(store_id=store_id, rows=rows, first=first, last=last))
        upper = first - 1
    return found


def _refuse_later(lake: Lake, named: Collection[str], head: int) -> None:
    """Raise `InvalidRequest` where a log that was not named goes on exactly behind the others."""
    for store_id in sorted({*storage.folders_in(f"{lake.root}/log/events")} - {*named}):
        try:
            table = DeltaTable(lake.path(events_log(store_id)))
        except TableNotFoundError:
            continue
        if head > 0 and least(table, "position") == head + 1:
            raise InvalidRequest(
                f"the store goes on as {store_id}, behind position {head}",
                remedy=f"Name that id too, as the last one: --store {store_id}",
            )


def _head(lake: Lake, newest: _Segment) -> int:
    """Return the position up to which all events of a store came, as the newest epoch says."""
    last = Manifest(lake, Tables()).last()
    return newest.last if last is None else int(last.heads.get(newest.store_id, newest.last))


def lake_schemas(lake: Lake) -> dict[int, str]:
    """Return the schemas by id that a lake has noted beside its log."""
    rows = Tables().read(lake.avro_schemas, columns=["schema_id", "schema"])
    return {} if rows is None else {r["schema_id"]: r["schema"] for r in rows.to_pylist()}


def _between(
    segment: _Segment, low: int, high: int, columns: Sequence[str], where: pc.Expression | None
) -> pa.Table:
    position = pc.field("position")
    within = (position >= max(low, segment.first)) & (position <= min(high, segment.last))
    chosen = pa.schema([COLUMNS.field(name) for name in columns])
    wanted = within if where is None else within & where
    return scanner_of(segment.rows, wanted, chosen.names).to_table().cast(chosen)


def refuse_gaps(rows: pa.Table, low: int, high: int) -> None:
    """Raise `Incompatible` unless rows are the events of all positions from `low` to `high`."""
    wanted = pa.array(range(low, high + 1), pa.int64())
    if rows["position"].combine_chunks().equals(wanted):
        return
    lacking = pc.filter(wanted, pc.invert(pc.is_in(wanted, value_set=rows["position"])))
    first = lacking[0].as_py() if len(lacking) else None
    counted = pc.value_counts(rows["position"]).to_pylist()
    twice = min((each["values"] for each in counted if each["counts"] > 1), default=None)
    told = f"position {first} is missing"
    if twice is not None:
        told = f"position {twice} is there twice"
    raise Incompatible(
        f"positions {low} to {high} are not whole: {told}",
        remedy="Look for it in the quarantine: penstock quarantine list; and for other logs of the "
        "store, under ids that it had before: penstock table list",
    )


def _about(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / ABOUT).read_text())
    except FileNotFoundError as error:
        raise NotFound(
            f"{folder} has no whole export: {ABOUT} is written last",
            remedy="penstock store export FOLDER",
        ) from error
    except ValueError as error:
        raise _damaged(folder / ABOUT) from error
    if not isinstance(found, dict) or found.get(OWN, checksum_of(found)) != checksum_of(found):
        raise _damaged(folder / ABOUT)
    if found.get("format") != FORMAT:
        raise Incompatible(f"{folder} is of format {found.get('format')}, this reads {FORMAT}")
    return found


def _damaged(file: Path) -> ChecksumMismatch:
    return ChecksumMismatch(
        f"{file} is not the file that was exported",
        remedy="Take the export again, or the copy that it was made from.",
    )


def checksum_of(about: Mapping[str, object]) -> str:
    """Return the checksum of what an export says of itself, but for the checksum."""
    told = {name: value for name, value in about.items() if name != OWN}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(folder: Path, names: Sequence[str]) -> Mapping[str, Mapping[str, object]]:
    """Describe files for `store.json`: size and checksum."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)}
        for name in names
    }
