"""The slot of a source under watch: how much WAL it keeps, and whether it can still be trusted.

A slot is the only copy of what the connector has not read yet. One that is gone, has lost its WAL,
or stands elsewhere than where the connector left off means changes that nobody will ever send:
that is `lost`, a state of its own, which no restart ends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

import psycopg
from psycopg.conninfo import make_conninfo

from cdc.database import Connection
from cdc.replication import Slot, prepared_transactions, slot
from kernel.errors import Incompatible, Unavailable
from kernel.positions import Lsn, lsn_from_text, lsn_to_text
from schemas.incarnations import Incarnation

ALARM_SHARE = 0.4
"""An alarm comes well before half of what the server lets a slot keep."""
ALARM_BYTES = 2 * 1024**3
"""And before this much, where the server sets no limit: then the disk is the limit."""
_NO_PUBLICATION = re.compile(r'publication "[^"]*" does not exist')
_MAKE_TIMEOUT_S = 10.0
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceServer:
    """The server as it is now: its identity, and the end of its WAL."""

    system: str
    timeline: int
    lsn: Lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWatch:
    """What one look at a slot found.

    `limit_bytes`: what the server lets it keep, None without a limit. `alarm` says that it keeps
    too much, `lost` why it can no longer be trusted; each None when all is well.
    """

    slot: Slot | None
    server: SourceServer
    limit_bytes: int | None
    alarm: str | None
    lost: str | None

    def judged(self, cause: str | None) -> SlotWatch:
        """Return what it is beside a connector that failed for `cause`."""
        return replace(self, lost=self.lost or unreadable(cause))


def server_of(connection: Connection) -> SourceServer:
    """Ask a server who it is. The timeline is that of the WAL it writes at this moment."""
    row = connection.execute(
        """
        SELECT system_identifier::text AS system, pg_current_wal_lsn()::text AS lsn,
               pg_walfile_name(pg_current_wal_lsn()) AS file
          FROM pg_control_system()
        """
    ).fetchone()
    assert row is not None
    return SourceServer(
        system=str(row["system"]),
        timeline=int(str(row["file"])[:8], 16),
        lsn=lsn_from_text(str(row["lsn"])),
    )


def watch(
    connection: Connection,
    name: str,
    *,
    known: Incarnation | None,
    offsets: Callable[[], Mapping[str, object]],
    alarm_bytes: int = ALARM_BYTES,
) -> SlotWatch:
    """Look at a slot. `offsets` asks the connector how far it has read.

    It is asked before the server, whose end may not be below it, and again after the slot, which
    may not be above it: both go on while they are looked at.

    `known` is what was noted when the slot was made; without it a missing slot may only be one
    that was not made yet, unless the connector has read from it.
    """
    read = read_up_to(offsets())
    at, server = slot(connection, name), server_of(connection)
    limit = _limit(connection)
    lost = _lost(at, name, server, known, read) or _skipped(at, read, offsets)
    return SlotWatch(
        slot=at,
        server=server,
        limit_bytes=limit,
        alarm=None if at is None else _alarm(at, limit, alarm_bytes),
        lost=lost or _branched(connection, server, known, read),
    )


def make_slot(connection: Connection, name: str) -> Slot:
    """Make the slot, and wait for the transactions that are open. Raises `Unavailable` naming them.

    It is one that standbys keep, too, where the server can do that. One that somebody else makes
    at this moment is waited for: a pipeline and a command may start a source at once.
    """
    deadline = time.monotonic() + _MAKE_TIMEOUT_S
    while (made := slot(connection, name)) is None or made.confirmed_lsn is None:
        if time.monotonic() > deadline:
            _refuse_waiting(connection, name)
        if made is None:
            _make(connection, name)
        else:
            time.sleep(_LOOK_S)
    return made


def _make(connection: Connection, name: str) -> None:
    """Make the slot, unless somebody else does."""
    failover = ", failover => true" if connection.info.server_version >= 170000 else ""
    try:
        connection.execute(f"SET lock_timeout = '{_MAKE_TIMEOUT_S:g}s'".encode())
        with suppress(psycopg.errors.DuplicateObject):
            connection.execute(
                f"SELECT pg_create_logical_replication_slot(%s, 'pgoutput'{failover})".encode(),
                (name,),
            )
    except psycopg.errors.LockNotAvailable as error:
        _refuse_waiting(connection, name, error)
    finally:
        connection.execute("RESET lock_timeout")


def _refuse_waiting(
    connection: Connection, name: str, cause: psycopg.Error | None = None
) -> NoReturn:
    raise Unavailable(
        f"slot {name} waits for open transactions: {_open_writers(connection)}",
        remedy="End them (SELECT pg_terminate_backend(PID)), then repeat.",
    ) from cause


def next_incarnation(
    server: SourceServer, at: Slot | None, before: Incarnation | None
) -> Incarnation:
    """Return what to note of a slot that was made: one more than before."""
    return Incarnation(
        system=server.system,
        timeline=server.timeline,
        slots=(before.slots if before is not None else 0) + 1,
        since=(at and at.confirmed_lsn) or lsn_to_text(server.lsn),
    )


def refuse_lost(source: str, reason: str) -> None:
    """Raise the named state that nothing but a new snapshot ends."""
    raise Incompatible(
        f"source {source} is slot-lost: {reason}",
        remedy=f"Take a new snapshot: penstock source resnapshot {source} --yes",
        state="slot-lost",
    )


def refuse_set_back(source: str, server: SourceServer, seen: int) -> None:
    """Raise where a server ends before what has come from it: its changes are taken for old ones.

    Behind a new slot, too: places in the lake are those of the server as it was.
    """
    if server.lsn < seen:
        raise Incompatible(
            f"the server ends at {lsn_to_text(server.lsn)}, before {lsn_to_text(Lsn(seen))}, up to"
            f" which the lake has source {source}",
            remedy="Capture it under another name: penstock source add OTHER; or repeat this when"
            " the server is past that place.",
        )


def refuse_unfit(source: str, seen: SlotWatch, up_to: int) -> None:
    """Raise where changes are missing, or the lake has a source that was removed beyond its end."""
    if seen.lost is not None:
        refuse_lost(source, seen.lost)
    refuse_set_back(source, seen.server, up_to)


def unreadable(cause: str | None) -> str | None:
    """Say why a connector that failed can never read on from its slot; None where it may.

    Older servers look the publication up as it was when a row was written: where there was none
    then, for some moments, they refuse for ever.
    """
    if cause is None or not _NO_PUBLICATION.search(cause):
        return None
    return "its publication was dropped and made again, and the slot does not pass that moment"


def read_up_to(offsets: Mapping[str, object]) -> Lsn | None:
    """Return the place up to which the connector has kept what it read, None before it has."""
    places = [offsets.get(name) for name in ("lsn_proc", "lsn_commit", "lsn")]
    found = [int(str(place)) for place in places if place is not None]
    return Lsn(max(found)) if found else None


def _lost(
    at: Slot | None, name: str, server: SourceServer, known: Incarnation | None, read: Lsn | None
) -> str | None:
    if known is not None and known.lost is not None:
        return known.lost
    if known is not None and known.system != server.system:
        return f"another server answers: system {server.system}, not {known.system}"
    if at is None:
        if known is None and read is None:
            return None
        return f"slot {name} is gone: changes after {_text(read)} are not to be had any more"
    if at.wal_status == "lost":
        why = f" ({at.invalidated})" if at.invalidated else ""
        return f"slot {name} has lost its WAL{why}: changes after {at.confirmed_lsn} are gone"
    if read is None:
        return None
    if read > server.lsn:
        return (
            f"the server ends at {lsn_to_text(server.lsn)}, before {lsn_to_text(read)}, which was"
            " read from it: it was set back (a restored backup, a standby that had less)"
        )
    return None


def _skipped(
    at: Slot | None, read: Lsn | None, offsets: Callable[[], Mapping[str, object]]
) -> str | None:
    """A slot that somebody moved on will never send what the connector has still to read."""
    if at is None or at.confirmed_lsn is None or read is None:
        return None
    stands = lsn_from_text(at.confirmed_lsn)
    if stands > read:
        read = read_up_to(offsets()) or read
    if stands <= read:
        return None
    return (
        f"slot {at.name} stands at {at.confirmed_lsn}, after {lsn_to_text(read)}, up to which was"
        " read: what lies between is lost"
    )


def _branched(
    connection: Connection, server: SourceServer, known: Incarnation | None, read: Lsn | None
) -> str | None:
    """A standby took over: it must have had everything that was read from its predecessor."""
    if known is None or read is None or known.timeline == server.timeline:
        return None
    switched = switch_point(connection, server.timeline, known.timeline)
    if switched is not None and read <= switched:
        return None
    at = "nobody knows where" if switched is None else f"at {lsn_to_text(switched)}"
    return (
        f"the server went from timeline {known.timeline} to {server.timeline} {at}, but"
        f" {lsn_to_text(read)} was read before: it lacks what is in the lake"
    )


def switch_point(connection: Connection, timeline: int, of: int) -> Lsn | None:
    """Return where timeline `of` ended on the way to `timeline`, from the server's own history."""
    info = connection.info
    dsn = make_conninfo(info.dsn, password=info.password or None, replication="database")
    with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as walsender:
        answer = walsender.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
    content = answer.get_value(0, 1) if answer.ntuples else None
    for line in (content or b"").decode().splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == str(of):
            return lsn_from_text(fields[1])
    return None


def _text(lsn: Lsn | None) -> str:
    return "its beginning" if lsn is None else lsn_to_text(lsn)


def _alarm(at: Slot, limit: int | None, alarm_bytes: int) -> str | None:
    bound = alarm_bytes if limit is None else min(alarm_bytes, int(limit * ALARM_SHARE))
    if at.retained_bytes <= bound and at.wal_status not in ("unreserved", "lost"):
        return None
    of = "no limit but the disk" if limit is None else f"a limit of {limit:,} bytes"
    return (
        f"slot {at.name} keeps {at.retained_bytes:,} bytes of WAL ({at.wal_status}), {of}"
        f"{'' if at.active_pid else '; nobody reads it'}"
    )


def _limit(connection: Connection) -> int | None:
    row = connection.execute(
        "SELECT setting::bigint AS megabytes FROM pg_settings WHERE name = 'max_slot_wal_keep_size'"
    ).fetchone()
    megabytes = -1 if row is None else int(str(row["megabytes"]))
    return None if megabytes < 0 else megabytes * 1024**2


def _open_writers(connection: Connection) -> str:
    rows = connection.execute(
        """
        SELECT pid, application_name, coalesce(state, '-') AS state, left(query, 120) AS query
          FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
         ORDER BY xact_start LIMIT 5
        """
    ).fetchall()
    sessions = (
        f"pid {r['pid']} ({r['application_name'] or 'no application name'}, {r['state']}):"
        f" {' '.join(str(r['query']).split())}"
        for r in rows
    )
    found = "; ".join([*sessions, *prepared_transactions(connection)])
    return found or "one that has ended meanwhile"
