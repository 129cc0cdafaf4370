"""A source's life: admitted, published, captured, watched, paused, removed.

`ensure` is idempotent: the command line, `penstock up` and the pipeline all call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc.admission import Check, admission, key_columns, refuse_unless_admitted
from cdc.connect import ConnectClient, ConnectorStatus
from cdc.connectors import CaptureConnector, Connector, Placement, replication_name
from cdc.database import Connection, connected, database_of
from cdc.replication import (
    Slot,
    drop_publication,
    drop_slot,
    ensure_publication,
    slot,
    slot_blockers,
)
from cdc.sources import Source
from kernel.errors import Incompatible, NotFound, Unavailable

READY_TIMEOUT_S = 90.0
_BLOCKED_LOOKS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """What a source does now. `slot` None: it was never made, or somebody dropped it."""

    source: str
    connector: ConnectorStatus | None
    slot: Slot | None
    snapshot: str


def connector_of(source: Source, dsn: str, placement: Placement) -> CaptureConnector:
    """Configure the connector of a source; `dsn` is complete, with its password."""
    return CaptureConnector(
        source=source.name,
        database=database_of(dsn),
        tables=source.tables,
        placement=placement,
        keys=source.keys,
    )


def check(source: Source, dsn: str, placement: Placement) -> tuple[Check, ...]:
    """Look at everything that must be true before the source starts, changing nothing."""
    with connected(dsn) as connection:
        return admission(
            connection,
            tables=source.tables,
            slot=replication_name(placement.workspace, source.name),
            keys=source.keys,
        )


def keys_of(source: Source, dsn: str) -> dict[str, tuple[str, ...]]:
    """Return the key columns of each table: declared ones, else those of the primary key."""
    with connected(dsn) as connection:
        return {
            table: tuple(source.keys.get(table) or key_columns(connection, table))
            for table in source.tables
        }


def ensure(
    source: Source,
    dsn: str,
    placement: Placement,
    connect: ConnectClient,
    *,
    timeout_s: float = READY_TIMEOUT_S,
) -> ConnectorStatus:
    """Make the source run as declared; return when its connector and task are RUNNING.

    Refuses what is not admitted (`Misconfigured`, every cause and fix), names the session that
    holds a lock or keeps the slot from being made (`Unavailable`), a slot that is lost
    (`Incompatible`), and the cause of a connector that fails (`Misconfigured`).
    """
    desired = connector_of(source, dsn, placement)
    with connected(dsn) as connection:
        checks = admission(connection, tables=source.tables, slot=desired.slot, keys=source.keys)
        refuse_unless_admitted(checks)
        ensure_publication(connection, desired.slot, source.tables)
        return ensure_connector(desired, connection, connect, timeout_s=timeout_s)


def ensure_connector(
    desired: Connector, connection: Connection, connect: ConnectClient, *, timeout_s: float
) -> ConnectorStatus:
    """Apply a connector, restart it where it had failed, and wait until it runs."""
    _refuse_lost_slot(desired, connection, connect)
    changed = connect.apply(desired.name, desired.render())
    if not changed and connect.status(desired.name).failed:
        connect.restart(desired.name)
    looks = 0

    def watch() -> None:
        # The slot waits for every transaction that was open; after ten seconds, say which.
        nonlocal looks
        looks += 1
        if looks % _BLOCKED_LOOKS == 0:
            _refuse_blocked(connection, desired.slot)

    return connect.await_running(desired.name, timeout_s=timeout_s, watch=watch)


def status(source: Source, dsn: str, placement: Placement, connect: ConnectClient) -> CaptureStatus:
    """Report connector, task, slot lag and whether the snapshot is through."""
    name = f"{placement.workspace}-{source.name}"
    try:
        found: ConnectorStatus | None = connect.status(name)
        offsets = connect.offsets(name)
    except NotFound:
        found, offsets = None, {}
    with connected(dsn) as connection:
        at = slot(connection, replication_name(placement.workspace, source.name))
    return CaptureStatus(source=source.name, connector=found, slot=at, snapshot=_phase(offsets))


def remove(source: Source, dsn: str, placement: Placement, connect: ConnectClient) -> bool:
    """Delete the connector with its offsets, then its slot and publication.

    Topics and tables stay. Returns whether there was a slot.
    """
    name = f"{placement.workspace}-{source.name}"
    if connect.config(name) is not None:
        connect.stop(name)
        connect.await_status(
            name,
            lambda s: s.connector == "STOPPED" and s.task is None,
            timeout_s=60.0,
            give_up_failed=False,
        )
        connect.forget_offsets(name)
        connect.delete(name)
    replication = replication_name(placement.workspace, source.name)
    with connected(dsn) as connection:
        dropped = drop_slot(connection, replication)
        drop_publication(connection, replication)
    return dropped


def _refuse_lost_slot(desired: Connector, connection: Connection, connect: ConnectClient) -> None:
    """A connector that has read before and whose slot is gone has a gap that nothing can fill."""
    at = slot(connection, desired.slot)
    if at is not None and at.wal_status == "lost":
        raise Incompatible(
            f"slot {desired.slot} has lost its WAL: changes since {at.confirmed_lsn} are gone",
            remedy=_RESNAPSHOT,
        )
    if at is None and connect.config(desired.name) is not None and connect.offsets(desired.name):
        raise Incompatible(
            f"slot {desired.slot} is gone, but connector {desired.name} has read from it before:"
            " changes since then are lost",
            remedy=_RESNAPSHOT,
        )


_RESNAPSHOT = "Take a new snapshot: penstock source remove NAME --yes, then penstock source add."


def _refuse_blocked(connection: Connection, name: str) -> None:
    blockers: Sequence[object] = slot_blockers(connection, name)
    if blockers:
        raise Unavailable(
            f"slot {name} waits for open transactions: {'; '.join(map(str, blockers))}",
            remedy="End them (SELECT pg_terminate_backend(PID)) or wait: it goes on by itself.",
        )


def _phase(offsets: dict[str, object]) -> str:
    if not offsets:
        return "not started"
    if offsets.get("snapshot") and not offsets.get("snapshot_completed"):
        return "running"
    return "completed"
