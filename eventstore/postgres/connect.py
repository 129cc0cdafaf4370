"""Connections to PostgreSQL, and the one seam at which its errors become ours."""

from __future__ import annotations

import re
import select
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from kernel.dsn import SPELLING, ends_early
from kernel.errors import Misconfigured, StorageFull, Unavailable, first_line

SERVICE_ROLE = "penstock_service"
CONNECT_TIMEOUT_S = 5
_POOL_TIMEOUT_S = 5.0
_STATEMENT_TIMEOUT = "SET statement_timeout = '30s'"
"""What pools are for is bounded by what it looks at: a statement that takes this long holds a
connection for nothing, and with it, in the end, all who read.
"""
Connection = psycopg.AsyncConnection[tuple[Any, ...]]
_RIGHTS = (
    f"Give the login of postgres.dsn back what it lacks: GRANT {SERVICE_ROLE} TO login."
    " The service goes on by itself then."
)
_OTHER_REFUSALS = re.compile("does not exist|authentication")
"""What else PostgreSQL says of a role while it connects."""
_SCHEMA = re.compile(r"(?<!\w)es(?!\w)", re.ASCII)

# A peer that vanished without a word is noticed within 25 seconds. Durability is not the
# server's default to decide: an acknowledged append is on disk.
_OPTIONS = (
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
    " -c synchronous_commit=on -c timezone=UTC -c datestyle=ISO -c standard_conforming_strings=on"
    " -c idle_in_transaction_session_timeout=20s"
)


def conninfo(dsn: str, *, role: str | None) -> str:
    """Return connection parameters under which every statement runs as `role`.

    The local stack's login is a superuser, so the role is put on with the first packet: the
    service never runs a statement with more rights than its role has.
    """
    given = _given(dsn)
    options = " ".join(filter(None, (str(given.get("options") or ""), _OPTIONS)))
    if role is not None:
        options += f" -c role={role}"
    timeout = given.get("connect_timeout") or CONNECT_TIMEOUT_S
    return make_conninfo(
        dsn, options=options, connect_timeout=timeout, application_name="penstock-service"
    )


def _given(dsn: str) -> dict[str, Any]:
    malformed = Misconfigured("postgres.dsn is not a PostgreSQL connection string", remedy=SPELLING)
    try:
        given = dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        raise malformed from None
    if ends_early(dsn, given.get("port")):
        raise malformed
    return given


async def connect(
    dsn: str,
    *,
    role: str | None = SERVICE_ROLE,
    cursor: type[psycopg.AsyncCursor[Any]] = psycopg.AsyncCursor,
) -> Connection:
    """Open a connection in autocommit mode. Raises `Unavailable` when nobody answers."""
    with wrapped("connecting to PostgreSQL"):
        return await psycopg.AsyncConnection.connect(
            conninfo(dsn, role=role), autocommit=True, cursor_factory=cursor
        )


class Pool:
    """Connections to lend, under the service's role. Survives restarts of PostgreSQL."""

    def __init__(
        self,
        dsn: str,
        *,
        name: str,
        connections: int,
        cursor: type[psycopg.AsyncCursor[Any]] = psycopg.AsyncCursor,
        first: str | None = None,
    ) -> None:
        """`first`: a statement that each new connection runs."""
        self._connections = connections
        self._refused: BaseException | None = None
        """Why the newest connection could not be made: the pool keeps it to itself."""
        pool = self

        class Connecting(psycopg.AsyncConnection[tuple[Any, ...]]):
            @classmethod
            async def connect(cls, *args: Any, **kwargs: Any) -> Self:
                try:
                    made = await super().connect(*args, **kwargs)
                except BaseException as error:
                    pool._refused = error
                    raise
                pool._refused = None
                return made

        async def configure(connection: Connection) -> None:
            await connection.execute(_STATEMENT_TIMEOUT.encode())
            if first is not None:
                await connection.execute(first.encode())

        self._pool = AsyncConnectionPool(
            conninfo(dsn, role=SERVICE_ROLE),
            connection_class=Connecting,
            kwargs={"autocommit": True, "cursor_factory": cursor},
            configure=configure,
            min_size=1,
            max_size=connections,
            open=False,
            timeout=_POOL_TIMEOUT_S,
            reconnect_timeout=2.0,
            check=_check,
            name=name,
        )

    async def open(self) -> None:
        """Begin to connect; does not wait for PostgreSQL."""
        await self._pool.open(wait=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    @asynccontextmanager
    async def lend(self, doing: str) -> AsyncIterator[Connection]:
        """Lend a connection; its errors become ours, `Unavailable` when there is none in time."""
        with wrapped(doing):
            try:
                async with self._pool.connection() as connection:
                    yield connection
            except PoolTimeout as error:
                if isinstance(self._refused, (psycopg.Error, OSError)):
                    raise self._refused from error
                raise Unavailable(
                    f"{doing}: PostgreSQL does not answer, or each of {self._connections} "
                    f"connections was in use for {_POOL_TIMEOUT_S:.0f} s"
                ) from error


async def _check(connection: Connection) -> None:
    """Raise an error for a connection that leads nowhere any more.

    A server that ends one says so, and its system does when it cannot: there is something to read
    then. Where there is not, nobody is asked: that would double what a short read costs.
    """
    heard = select.poll()
    heard.register(connection.fileno(), select.POLLIN)
    if heard.poll(0):
        await AsyncConnectionPool.check_connection(connection)


class StoreIdentity:
    """The id of the store that connections lead to, asked once."""

    def __init__(self) -> None:
        self._id: str | None = None

    async def of(self, connection: Connection) -> str:
        """Return the id."""
        if self._id is None:
            cursor = await connection.execute("SELECT store_id::text FROM es.store")
            row = await cursor.fetchone()
            self._id = "" if row is None else str(row[0])
        return self._id


@contextmanager
def wrapped(doing: str) -> Iterator[None]:
    """Turn the driver's errors into ours; others pass unchanged.

    Errors in the data itself (`DataError`, `IntegrityError`) stay the driver's: only the caller
    knows whose data it was.
    """
    try:
        yield
    except psycopg.errors.DiskFull as error:
        raise StorageFull(f"{doing}: {_cause(error)}") from error
    except (psycopg.DataError, psycopg.IntegrityError):
        raise
    except psycopg.errors.InsufficientPrivilege as error:
        if is_closed(error):
            raise half_filled() from error
        raise Misconfigured(f"{doing}: {_cause(error)}", remedy=_RIGHTS) from error
    except psycopg.ProgrammingError as error:
        raise Misconfigured(f"{doing}: {_cause(error)}") from error
    except (psycopg.Error, OSError) as error:
        if _lacks_role(str(error)):
            raise Misconfigured(f"{doing}: {_cause(error)}", remedy=_RIGHTS) from error
        raise Unavailable(f"{doing}: {_cause(error)}") from error


def is_closed(error: psycopg.errors.InsufficientPrivilege) -> bool:
    """Say whether PostgreSQL refused all of the event store: see `restoring`."""
    # No field of the error has the schema, and its text is in the language of the server.
    return _SCHEMA.search(error.diag.message_primary or "") is not None


def _lacks_role(told: str) -> bool:
    """Say whether a login may not become the service's role.

    While it connects the driver has the text alone, which is in the language of the server.
    """
    return SERVICE_ROLE in told and _OTHER_REFUSALS.search(told) is None


def half_filled() -> Unavailable:
    """Return the error for whoever would use a store while it is filled."""
    return Unavailable(
        "the store is being filled, and has only a part of its events (or the login has no right "
        "to use its schema)",
        remedy="Wait until that is done. If it died, give the same command again, which goes on "
        "where it was: penstock store rebuild, or penstock store import FOLDER",
    )


def _cause(error: BaseException) -> str:
    return first_line(error) or type(error).__name__
