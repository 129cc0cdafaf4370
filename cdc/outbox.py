"""The event store's outbox: from `es.events` to the topics `events.<category>`."""

from __future__ import annotations

from cdc.capture import READY_TIMEOUT_S, ensure_connector
from cdc.connect import ConnectClient, ConnectorStatus
from cdc.connectors import OutboxConnector, Placement
from cdc.database import connected, database_of
from cdc.owners import refuse_other_writer
from cdc.replication import ensure_publication
from cdc.slots import refuse_lost, watch


def ensure(
    dsn: str,
    placement: Placement,
    connect: ConnectClient,
    *,
    timeout_s: float = READY_TIMEOUT_S,
) -> ConnectorStatus:
    """Make the outbox run; return when its connector and task are RUNNING.

    Call it after the event store's migrations. Events appended before are sent too, so that the
    order of the two does not matter. Idempotent. Errors as `cdc.capture.ensure`.
    """
    with connected(dsn) as connection:
        database = database_of(dsn, connection.info.server_version)
        desired = OutboxConnector(database=database, placement=placement)
        there = connect.config(desired.name) is not None
        lost = watch(
            connection,
            desired.slot,
            known=None,
            offsets=lambda: connect.offsets(desired.name) if there else {},
        ).lost
        if lost is not None:
            refuse_lost("outbox", lost)
        if not there:
            refuse_other_writer(connect, desired)
        ensure_publication(
            connection, desired.slot, (desired.table,), publish="insert", owner=desired.name
        )
        return ensure_connector(desired, connection, connect, timeout_s=timeout_s)
