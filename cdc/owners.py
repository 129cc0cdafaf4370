"""Whose a publication, a slot and topics are, so that two sources never take each other's.

Names of connectors, `<workspace>-<source>`, are different for different sources. PostgreSQL takes
no `-` in the name of a slot: source `b_c` of workspace `a` and source `c` of workspace `a_b` would
have one slot. So a publication says in its comment whose it is, and the second source is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import psycopg
from psycopg import sql

from cdc.admission import Check
from cdc.connect import ConnectClient
from cdc.connectors import Connector
from cdc.database import Connection
from kernel.errors import Conflict

OWN_SLOT = "a slot and a publication that no other source has"
OWN_TOPICS = "topics that no other workspace writes"
_OURS = "Penstock: "
_SIGNED = f"{_OURS}of connector "
_PREFIX, _ROUTE = "topic.prefix", "transforms.outbox.route.topic.replacement"
"""Settings of connectors that say where they write."""
_OTHER_NAME = "Capture it under another name: penstock source add NAME"
_OTHER_TOPICS = "Set kafka.topic_prefix in this workspace, or choose another name"


def other_owner(
    connection: Connection, name: str, connector: str, *, ran: bool = False
) -> str | None:
    """Say whose a publication, or a slot in another database, is; None where it may be ours.

    `ran`: the connector had a slot, so that one in another database may be its own. What an older
    version made, or somebody by hand, says nothing of it.
    """
    row = connection.execute(
        """
        SELECT (SELECT obj_description(oid, 'pg_publication') FROM pg_publication
                 WHERE pubname = %(name)s) AS said,
               (SELECT database FROM pg_replication_slots
                 WHERE slot_name = %(name)s AND database <> current_database()) AS elsewhere
        """,
        {"name": name},
    ).fetchone()
    assert row is not None
    said = str(row["said"] or "")
    if said.startswith(_SIGNED) and said != f"{_SIGNED}{connector}":
        return said.removeprefix(_OURS)
    return None if ran or row["elsewhere"] is None else f"of database {row['elsewhere']}"


def refuse_other(connection: Connection, name: str, connector: str) -> None:
    """Raise `Conflict` where a publication or slot is that of another source."""
    other = other_owner(connection, name, connector)
    if other is not None:
        raise Conflict(
            f"slot and publication {name} of {connector} are {other} already",
            remedy=_way_out(name, other),
        )


def sign(connection: Connection, name: str, connector: str) -> None:
    """Say in a publication's comment whose it is, unless somebody says something there."""
    row = connection.execute(
        "SELECT obj_description(oid, 'pg_publication') AS said FROM pg_publication"
        " WHERE pubname = %s",
        (name,),
    ).fetchone()
    if row is None or row["said"] is not None:
        return
    statement = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
        sql.Identifier(name), sql.Literal(f"{_SIGNED}{connector}")
    )
    # One that somebody else owns stays without, and where this role or server only reads.
    with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction):
        connection.execute(statement)


def owner_checks(
    connection: Connection, name: str, connector: str, *, new: bool
) -> Iterator[Check]:
    """Check that a source's publication and slot are no other's.

    `new`: nothing of it was captured before, so that nobody can read its slot.
    """
    found = other_owner(connection, name, connector)
    if found is None and new:
        row = connection.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (name,)
        ).fetchone()
        if row is not None and row["active_pid"] is not None:
            found = f"read by somebody, pid {row['active_pid']}"
    yield Check(
        subject=f"slot {name}",
        required=OWN_SLOT,
        found="no other's" if found is None else found,
        ok=found is None,
        fix=None if found is None else _way_out(name, found),
    )


def _way_out(name: str, other: str) -> str:
    """Say what to do about a name that is taken, by a source that may be gone: nobody knows here,
    as after its workspace got another name.
    """
    if not other.startswith(_SIGNED.removeprefix(_OURS)):
        return _OTHER_NAME
    return f"{_OTHER_NAME}. Where that one is gone for good: COMMENT ON PUBLICATION {name} IS NULL"


def writer_checks(connect: ConnectClient, connector: str, topics: str) -> Iterator[Check]:
    """Check that no other connector of this Connect cluster writes topics that begin so."""
    found = other_writer(connect, connector, [topics])
    yield Check(
        subject=f"topics {topics}.",
        required=OWN_TOPICS,
        found="none other does" if found is None else f"connector {found} does",
        ok=found is None,
        fix=None if found is None else _OTHER_TOPICS,
    )


def refuse_other_writer(connect: ConnectClient, desired: Connector) -> None:
    """Raise `Conflict` where the changes of another database would come into the same topics."""
    other = other_writer(connect, desired.name, _written(desired.render()))
    if other is not None:
        raise Conflict(
            f"connector {other} writes the topics of {desired.name} already",
            remedy=_OTHER_TOPICS,
        )


def other_writer(connect: ConnectClient, connector: str, topics: Sequence[str]) -> str | None:
    """Return another connector whose topics begin as those of this one do, or the other way."""
    for name in connect.names():
        if name != connector:
            for theirs in _written(connect.config(name) or {}):
                if any(_meet(own, theirs) for own in topics):
                    return name
    return None


def _written(config: Mapping[str, str]) -> list[str]:
    """Return what the names of the topics begin with that a connector writes."""
    return [config[key] for key in (_PREFIX, _ROUTE) if key in config]


def _meet(one: str, other: str) -> bool:
    """Say whether whoever reads all topics that begin with one name would read those of another."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
