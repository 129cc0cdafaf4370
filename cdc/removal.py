"""The end of a source, or of its slot only: nothing is left behind, or what is left is named.

Each part is taken away by itself, so that a part which cannot be reached now leaves the others
gone; the same again takes away the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdc import ddl
from cdc.connect import ConnectClient
from cdc.connectors import Placement, replication_name
from cdc.database import connected
from cdc.owners import other_owner
from cdc.replication import drop_publication, drop_slot
from kernel.errors import PenstockError
from kernel.retry import Backoff, retrying

_STOP_TIMEOUT_S = 60.0
# Debezium's session ends a moment after its task.
_LEAVING = Backoff(attempts=8, base_s=0.25, cap_s=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What is gone, and what could not be taken away: part -> reason.

    `stays`: what belongs to another role, which no repetition takes away: part -> what does.
    """

    gone: tuple[str, ...]
    left: dict[str, str]
    stays: dict[str, str]

    @property
    def whole(self) -> bool:
        """Whether nothing is left."""
        return not self.left


def remove(name: str, dsn: str, placement: Placement, connect: ConnectClient) -> Removal:
    """Take away connector, offsets, slot, publication, and the event triggers with the last source.

    Topics with their schemas and all tables of the lake stay. What was not there counts as gone.
    """
    replication = replication_name(placement.workspace, name)
    gone: list[str] = []
    left: dict[str, str] = {}
    stays: dict[str, str] = {}

    def attempt(part: str, take: Callable[[], bool]) -> None:
        try:
            if take():
                gone.append(part)
        except PenstockError as error:
            if error.fields.get("foreign"):
                stays[part] = f"{error.message}. {error.remedy}"
            else:
                left[part] = error.message

    attempt("connector", lambda: retire_connector(f"{placement.workspace}-{name}", connect))
    # A connector of ours had a slot of ours, in whatever database its file named then.
    other = _other_owner(dsn, replication, f"{placement.workspace}-{name}", "connector" in gone)
    if other is not None:
        stays["slot and publication"] = f"{replication} is {other}, not of this source"
        return Removal(gone=tuple(gone), left=left, stays=stays)
    attempt("slot", lambda: retire_slot(dsn, replication))
    if "slot" not in left:
        attempt("publication", lambda: _retire_publication(dsn, replication))
        attempt("event triggers", lambda: _retire_triggers(dsn, replication))
    else:
        # Nobody notices changes of the schema or of rows any more, but the slot keeps their WAL.
        left["publication"] = left["slot"]
    return Removal(gone=tuple(gone), left=left, stays=stays)


def retire_connector(name: str, connect: ConnectClient) -> bool:
    """Stop a connector, forget how far it has read, delete it; return whether there was one."""
    if connect.config(name) is None:
        return False
    connect.stop(name)
    connect.await_status(
        name,
        lambda s: s.connector == "STOPPED" and s.task is None,
        timeout_s=_STOP_TIMEOUT_S,
        give_up_failed=False,
    )
    connect.forget_offsets(name)
    connect.delete(name)
    connect.await_gone(name, timeout_s=_STOP_TIMEOUT_S)
    return True


def retire_slot(dsn: str, name: str) -> bool:
    """Drop a slot, waiting for its reader to leave; return whether there was one."""
    with connected(dsn) as connection:
        return retrying(lambda: drop_slot(connection, name), backoff=_LEAVING)


def _other_owner(dsn: str, name: str, connector: str, ran: bool) -> str | None:
    try:
        with connected(dsn) as connection:
            return other_owner(connection, name, connector, ran=ran)
    except PenstockError:
        # What cannot be reached now is named where it is to be taken away.
        return None


def _retire_publication(dsn: str, name: str) -> bool:
    with connected(dsn) as connection:
        return drop_publication(connection, name)


def _retire_triggers(dsn: str, publication: str) -> bool:
    with connected(dsn) as connection:
        if not ddl.installed(connection):
            return False
        return ddl.remove(connection, unless_used_beside=publication)
