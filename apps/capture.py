"""Capture wired to a workspace: settings and files in, running connectors out.

Upstream: `sources/*.toml`, settings. Downstream: `cdc`, the catalog that the pipeline reads.
Entry points: `ensure_outbox` and `ensure_sources`, which `penstock up` calls; `add`, `verify`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from apps.settings import Settings
from cdc import capture, outbox, sources
from cdc.admission import Check, refuse_unless_admitted
from cdc.capture import CaptureStatus
from cdc.connect import ConnectClient, ConnectorStatus
from cdc.connectors import Placement
from cdc.database import connected, with_password
from cdc.progress import SnapshotProgress, snapshot_progress
from cdc.sources import Source
from cdc.verify import compared_columns, hash_of
from kernel.errors import Conflict, PenstockError
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.runner.captured import CapturedTable, render_tables
from projections.runner.catalog import CAPTURE, DROPPED, LIVE, DeployedCatalog, Entry
from projections.state.current import current_name
from schemas.registry import ConfluentRegistry
from schemas.row_hash import table_hash

_NO_HASH = "0" * 32
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerdict:
    """Whether a table's `current` equals its source. `columns` are the ones compared."""

    table: str
    equal: bool
    rows: int
    rows_current: int
    hash: str
    hash_current: str
    columns: int


def placement_of(settings: Settings) -> Placement:
    """Return what the connectors of this workspace share. Raises `Misconfigured`."""
    return Placement(
        workspace=settings.name,
        topic_prefix=settings.text("kafka.topic_prefix"),
        partitions=settings.number("kafka.partitions"),
        registry_url=settings.required("registry.url"),
    )


def ensure_outbox(settings: Settings, *, timeout_s: float = 90.0) -> ConnectorStatus:
    """Make the event store's outbox run; call it after the migrations. Idempotent."""
    with ConnectClient(settings.required("connect.url")) as connect:
        dsn = settings.required("postgres.dsn")
        return outbox.ensure(dsn, placement_of(settings), connect, timeout_s=timeout_s)


def ensure_sources(settings: Settings) -> dict[str, PenstockError | None]:
    """Make every declared source run as its file says. Idempotent.

    One that cannot run does not hold up the others: the answer has its error, None where it runs.
    """
    placement = placement_of(settings)
    found: dict[str, PenstockError | None] = {}
    with ConnectClient(settings.required("connect.url")) as connect:
        for source in sources.load_all(settings.workspace):
            found[source.name] = None
            try:
                dsn = source.full_dsn(settings.workspace)
                capture.ensure(source, dsn, placement, connect)
            except PenstockError as error:
                found[source.name] = error
    return found


def checks(settings: Settings, source: Source, dsn: str) -> tuple[Check, ...]:
    """Return what must be true before a source starts, row by row."""
    return capture.check(source, dsn, placement_of(settings))


def add(
    settings: Settings, source: Source, password: str | None, *, timeout_s: float = 90.0
) -> ConnectorStatus:
    """Declare a source and start it; the same again changes nothing.

    Nothing is written before everything is admitted. Raises `Conflict` when the name already has
    other tables, and what `cdc.capture.ensure` raises.
    """
    _refuse_other_tables(settings, source)
    dsn = with_password(source.dsn, password)
    refuse_unless_admitted(checks(settings, source, dsn))
    sources.save(settings.workspace, source, password)
    with ConnectClient(settings.required("connect.url")) as connect:
        started = capture.ensure(source, dsn, placement_of(settings), connect, timeout_s=timeout_s)
    record_capture(Lake.at(settings.lake), source.name, LIVE, tables_of(source, dsn))
    return started


def status(settings: Settings, source: Source, connect: ConnectClient) -> CaptureStatus:
    """Report what a source does now."""
    dsn = source.full_dsn(settings.workspace)
    return capture.status(source, dsn, placement_of(settings), connect)


def progress(settings: Settings, source: Source) -> SnapshotProgress:
    """Report how far the source's snapshot is."""
    topic = f"{settings.text('kafka.topic_prefix')}{source.name}.notifications"
    registry = ConfluentRegistry(settings.required("registry.url"))
    try:
        return snapshot_progress(settings.required("kafka.bootstrap"), topic, registry)
    finally:
        registry.close()


def remove(settings: Settings, source: Source) -> bool:
    """Remove connector, slot, publication and declaration; tables of the lake stay."""
    dsn = source.full_dsn(settings.workspace)
    with ConnectClient(settings.required("connect.url")) as connect:
        dropped = capture.remove(source, dsn, placement_of(settings), connect)
    record_capture(Lake.at(settings.lake), source.name, DROPPED, {})
    sources.forget(settings.workspace, source.name)
    return dropped


def verify(settings: Settings, source: Source, *, timeout_s: float) -> list[TableVerdict]:
    """Compare each table with its `current` table by row hash.

    The lake follows the source: a difference is believed when it is still there after `timeout_s`.
    A source that is written to all the time may differ whenever it is looked at.
    """
    tables = Tables()
    lake = Lake.at(settings.lake)
    deadline = time.monotonic() + timeout_s
    return [
        _until_equal(partial(_verdict, settings, source, table, lake, tables), deadline)
        for table in source.tables
    ]


def _until_equal(look: Callable[[], TableVerdict], deadline: float) -> TableVerdict:
    while True:
        verdict = look()
        if verdict.equal or time.monotonic() > deadline:
            return verdict
        time.sleep(_LOOK_S)


def _verdict(
    settings: Settings, source: Source, table: str, lake: Lake, tables: Tables
) -> TableVerdict:
    with connected(source.full_dsn(settings.workspace)) as connection:
        columns = compared_columns(connection, table)
        rows, digest = hash_of(connection, table, columns)
    current = tables.read(lake.path(current_name(source.name, table)))
    names = [column.name for column in columns]
    found = (0, _NO_HASH)
    if current is not None and set(names) <= set(current.column_names):
        found = table_hash(current, names)
    return TableVerdict(
        table=table,
        equal=found == (rows, digest),
        rows=rows,
        rows_current=found[0],
        hash=digest,
        hash_current=found[1],
        columns=len(names),
    )


def tables_of(source: Source, dsn: str) -> dict[str, CapturedTable]:
    """Return what the catalog is told about each table that a source captures now."""
    return {
        table: CapturedTable(
            keys=keys,
            history=source.options_of(table).history,
            soft_deletes=source.options_of(table).soft_deletes,
        )
        for table, keys in capture.keys_of(source, dsn).items()
    }


def record_capture(
    lake: Lake, name: str, status_: str, tables: Mapping[str, CapturedTable]
) -> None:
    """Tell the catalog which tables of a source are captured, their keys and what is kept."""
    catalog = DeployedCatalog(lake, Tables())
    text = render_tables(tables)
    entry = Entry(kind=CAPTURE, name=name, generation=0, status=status_, text=text)
    if entry not in catalog.entries():
        catalog.put([entry])


def _refuse_other_tables(settings: Settings, source: Source) -> None:
    for known in sources.load_all(settings.workspace):
        if known.name == source.name and set(known.tables) != set(source.tables):
            raise Conflict(
                f"source {source.name} captures {', '.join(known.tables)} already",
                remedy="Add other tables under another name, or remove this source first.",
            )
