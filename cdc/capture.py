"""A source's life: admitted, published, captured, watched, paused, removed.

`ensure` is idempotent: the command line, `penstock up` and the pipeline all call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from cdc import ddl
from cdc.admission import Check, refuse_unless_admitted
from cdc.connect import ConnectClient, ConnectorStatus, lacks_rights, snapshot_phase
from cdc.connectors import CaptureConnector, Connector, Placement, replication_name, veils
from cdc.database import Connection, connected, database_of
from cdc.owners import refuse_other_writer
from cdc.removal import retire_connector, retire_slot
from cdc.replication import ensure_publication, published, refuse_blocked, slot
from cdc.scope import Scope, joining, scope_of
from cdc.slots import SlotWatch, make_slot, next_incarnation, refuse_unfit, server_of, watch
from cdc.sources import CONNECTOR, Source
from kernel.errors import Incompatible, Misconfigured, NotFound, PenstockError, Unavailable
from schemas.incarnations import Incarnation

READY_TIMEOUT_S = 90.0
_BLOCKED_LOOKS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAccess:
    """What `ensure` needs to know beside the declaration: secrets, and what was noted before.

    `dsn` is complete, with its password. `known` is the incarnation that was noted last, `retired`
    that of a removed source of this name: its slots count on, the lake has it up to LSN `seen`.
    """

    dsn: str
    salt: str = ""
    known: Incarnation | None = None
    retired: Incarnation | None = None
    seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A source that runs. `incarnation` is to be noted.

    `ddl`: whether the database tells of schema changes itself.
    """

    connector: ConnectorStatus
    scope: Scope
    incarnation: Incarnation | None
    ddl: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """What a source does now. `watch` None: its database does not answer, and `away` says why.

    `bare`: which columns it would send as they are, if it went on.
    """

    source: str
    connector: ConnectorStatus | None
    watch: SlotWatch | None
    snapshot: str
    away: str | None = None
    bare: str | None = None

    @property
    def state(self) -> str:
        """One word: runs, starting, paused, failed, alarm, slot-lost, away, or not-started."""
        connector, watch = self.connector, self.watch
        if watch is not None and watch.lost is not None:
            return "slot-lost"
        if connector is None:
            return "away" if self.away else "not-started"
        if connector.failed:
            return "failed"
        if self.away is not None:
            return "away"
        if connector.connector in ("PAUSED", "STOPPED"):
            return "paused"
        if watch is not None and watch.alarm is not None:
            return "alarm"
        return "runs" if connector.running else "starting"

    @property
    def healthy(self) -> bool:
        """Whether changes flow. An alarm is a warning: they still do."""
        return self.state in ("runs", "alarm")

    @property
    def reason(self) -> str | None:
        """Why it is in its state; None when all is well."""
        cause = None if self.connector is None else self.connector.cause
        match self.state:
            case "slot-lost" | "alarm":
                return None if self.watch is None else self.watch.lost or self.watch.alarm
            case "failed":
                return cause
            case "away":
                return self.away
            case "paused":
                return self.bare
            case _:
                return None

    @property
    def remedy(self) -> str | None:
        """The command that mends it."""
        match self.state:
            case "slot-lost":
                return f"penstock source resnapshot {self.source} --yes"
            case "alarm":
                return (
                    f"See that the connector reads: penstock source status {self.source}; or"
                    " raise max_slot_wal_keep_size, or capture.slot_alarm_bytes"
                )
            case "paused" if self.bare is not None:
                return _unveil(self.source)
            case "failed" if lacks_rights(self.reason):
                return f"penstock source check {self.source}"
            case "paused" | "failed":
                return f"penstock source resume {self.source}"
            case "not-started":
                return "penstock up"
            case _:
                return None


def connector_of(
    source: Source,
    access: SourceAccess,
    placement: Placement,
    scope: Scope,
    *,
    renewed: bool = False,
) -> CaptureConnector:
    """Configure the connector of a source for the tables that it captures now.

    It reads the rows that are there itself only with its first slot: later, a copy must also take
    away what was deleted meanwhile.
    """
    known = access.known or access.retired
    first = known is None or (not renewed and access.retired is None and known.slots <= 1)
    return CaptureConnector(
        source=source.name,
        database=database_of(access.dsn, scope.server),
        tables=tuple(scope.tables),
        placement=placement,
        keys={table: key for table, key in source.keys.items() if table in scope.tables},
        options=scope.options,
        salt=access.salt,
        columns=scope.described,
        snapshot=first and source.snapshot == CONNECTOR,
    )


def check(source: Source, dsn: str, placement: Placement) -> tuple[Check, ...]:
    """Look at everything that must be true before the source starts, changing nothing."""
    with connected(dsn) as connection:
        scope = scope_of(source, connection, replication_name(placement.workspace, source.name))
        return (*scope.checks, ddl_check(connection))


def ddl_check(connection: Connection) -> Check:
    """Say whether the database tells of schema changes itself. Never more than advice."""
    there = ddl.installed(connection)
    may = there or ddl.may_install(connection)
    return Check(
        subject="database",
        required="event triggers, so that schema changes come in order",
        found="there" if there else "none yet, this role makes them" if may else "none",
        ok=there or may,
        fix=None if may else "penstock source check NAME --fix --fix-as DSN of a superuser",
        advice=True,
    )


def ensure(
    source: Source,
    access: SourceAccess,
    placement: Placement,
    connect: ConnectClient,
    *,
    before_start: Callable[[Incarnation | None], None] = lambda _: None,
    before_join: Callable[[Sequence[str]], None] = lambda _: None,
    renew: bool = False,
    timeout_s: float = READY_TIMEOUT_S,
) -> Started:
    """Make the source run as declared; return when its connector and task are RUNNING.

    0. `renew`: take connector, offsets and slot away first; then all begins anew, in the next
       incarnation, and the rows that are there come by a copy, never from the connector.
    1. Refuse what is not admitted (`Misconfigured`, every cause and fix), a slot that is lost
       (`Incompatible`, state slot-lost), and another database under the same name. A connector
       that would send a column as it is, which it is to veil, is stopped.
    2. A new source: publication, then (unless the connector reads the rows that are there) the
       slot, then `before_start` with what is to be noted of the slot, then the connector. A
       running one: the connector first, so that it knows a table before the first change of it is
       published, then `before_join` with the tables that come into the stream, then they do.
    3. Where the role may, event triggers, so that schema changes come in order.

    Names the session that holds a lock or keeps the slot from being made (`Unavailable`), the cause
    of a connector that fails (`Misconfigured`), and whose slot or topics these are (`Conflict`).
    """
    name = replication_name(placement.workspace, source.name)
    with connected(access.dsn) as connection:
        if renew:
            refuse_unless_admitted(scope_of(source, connection, name, slot=False).checks)
            retire_connector(f"{placement.workspace}-{source.name}", connect)
            retire_slot(access.dsn, name)
        runs = connect.config(f"{placement.workspace}-{source.name}") is not None
        scope = scope_of(source, connection, name, runs=runs)
        desired = connector_of(source, access, placement, scope, renewed=renew)
        known = None if renew else access.known
        _refuse_lost(source, desired, connection, connect, known, access.seen)
        _admit(source.name, desired.name, scope, connect)
        tells = ddl.ensure(connection)
        tables, lists = tuple(scope.tables), scope.columns
        if not runs:
            ensure_publication(connection, name, tables, columns=lists, owner=desired.name)
            if not desired.snapshot:
                make_slot(connection, name)
            before_start(_incarnation(connection, name, access, renewed=renew))
        status = ensure_connector(desired, connection, connect, timeout_s=timeout_s)
        if runs:
            before_join(joining(scope, connection, name))
            ensure_publication(connection, name, tables, columns=lists, owner=desired.name)
        # What a table is now is what later changes of it are compared with. One that is locked now
        # is told at the next start; its own next change tells, too.
        with suppress(psycopg.errors.LockNotAvailable):
            ddl.tell(connection, tables)
        return Started(
            connector=status,
            scope=scope,
            incarnation=_incarnation(connection, name, access, renewed=renew),
            ddl=tells,
        )


def ensure_connector(
    desired: Connector, connection: Connection, connect: ConnectClient, *, timeout_s: float
) -> ConnectorStatus:
    """Apply a connector, restart it where it had failed, and wait until it runs.

    One that was paused or stopped by hand stays so: only `resume` starts it.
    """
    connect.apply(desired.name, desired.render())
    # Somebody else may have made it a moment ago: then it has no status yet.
    with suppress(NotFound):
        if connect.status(desired.name).failed:
            # Asked for in any case; its old failure is its status for a moment yet.
            connect.restart(desired.name)
            with suppress(Unavailable):
                connect.await_status(
                    desired.name, lambda s: not s.failed, timeout_s=10.0, give_up_failed=False
                )
    looks = 0

    def look() -> None:
        # The slot waits for every transaction that was open; after ten seconds, say which.
        nonlocal looks
        looks += 1
        if looks % _BLOCKED_LOOKS == 0:
            refuse_blocked(connection, desired.slot)

    return connect.await_status(
        desired.name,
        lambda s: s.running or s.connector in ("PAUSED", "STOPPED"),
        timeout_s=timeout_s,
        watch=look,
    )


def status(
    source: Source,
    access: SourceAccess,
    placement: Placement,
    connect: ConnectClient,
    *,
    alarm_bytes: int,
) -> CaptureStatus:
    """Report connector, slot and whether the connector's snapshot is through.

    A database that does not answer is part of the report, not an error.
    """
    name = f"{placement.workspace}-{source.name}"
    publication = replication_name(placement.workspace, source.name)
    try:
        found: ConnectorStatus | None = connect.status(name)
        offsets = connect.offsets(name)
    except NotFound:
        found, offsets = None, {}
    seen, away, bare = None, None, None
    try:
        with connected(access.dsn) as connection:
            seen = watch(
                connection,
                publication,
                known=access.known,
                offsets=lambda: offsets if found is None else connect.offsets(name),
                alarm_bytes=alarm_bytes,
            )
            if found is not None and found.failed and published(connection, publication):
                seen = seen.judged(found.cause)
            if found is not None and found.connector in ("PAUSED", "STOPPED"):
                with suppress(PenstockError):
                    looked = scope_of(source, connection, publication, slot=False, runs=True)
                    bare = _bare(looked, connect.config(name) or {})
    except (Unavailable, Misconfigured) as error:
        away = error.message
    return CaptureStatus(
        source=source.name,
        connector=found,
        watch=seen,
        snapshot=snapshot_phase(offsets),
        away=away,
        bare=bare,
    )


def _admit(source: str, connector: str, scope: Scope, connect: ConnectClient) -> None:
    """Refuse what may not be captured.

    A connector whose columns got another name or type, so that its veils miss them, is stopped.
    """
    reason = _bare(scope, connect.config(connector) or {}) if scope.bare else None
    if reason is not None:
        connect.stop(connector)
        raise Misconfigured(f"connector {connector} is stopped: {reason}", remedy=_unveil(source))
    refuse_unless_admitted(scope.checks)


def _bare(scope: Scope, config: Mapping[str, str]) -> str | None:
    # What was only now declared, by mistake, was never veiled: there everything goes on as it was.
    found = [
        f"{table}.{column}: {why}"
        for (table, column), why in scope.bare.items()
        if veils(config, table, column)
    ]
    if not found:
        return None
    return f"what is excluded, masked or hashed would come as it is: {'; '.join(found)}"


def _unveil(source: str) -> str:
    return (
        f"Name the columns in sources/{source}.toml as they are called now, or exclude them; then:"
        f" penstock source resume {source}"
    )


def _refuse_lost(
    source: Source,
    desired: CaptureConnector,
    connection: Connection,
    connect: ConnectClient,
    known: Incarnation | None,
    up_to: int,
) -> None:
    """Refuse to go on where changes are missing, or where another database answers or writes."""
    there = connect.config(desired.name) is not None
    seen = watch(
        connection,
        desired.slot,
        known=known,
        offsets=lambda: connect.offsets(desired.name) if there else {},
    )
    refuse_unfit(source.name, seen, up_to)
    if not there:
        refuse_other_writer(connect, desired)
    if seen.slot is not None and seen.slot.database != desired.database.name:
        raise Incompatible(
            f"source {source.name} reads database {seen.slot.database}; its file now names"
            f" {desired.database.name}",
            remedy="Capture the other database under another name, or remove this source first.",
        )


def _incarnation(
    connection: Connection, name: str, access: SourceAccess, *, renewed: bool
) -> Incarnation | None:
    """Return what to note of the slot; None while the connector has not made it yet."""
    server, at = server_of(connection), slot(connection, name)
    if at is None:
        return access.known
    if access.known is None or renewed:
        return next_incarnation(server, at, access.known or access.retired)
    return access.known.on(server.timeline)
