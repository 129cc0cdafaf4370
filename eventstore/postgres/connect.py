"""Connections to PostgreSQL, and the one seam at which its errors become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from kernel.errors import Misconfigured, StorageFull, Unavailable

SERVICE_ROLE = "penstock_service"
CONNECT_TIMEOUT_S = 5
Connection = psycopg.AsyncConnection[tuple[Any, ...]]

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
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise Misconfigured(f"postgres.dsn is not a connection string: {error}") from error
    options = " ".join(filter(None, (str(given.get("options") or ""), _OPTIONS)))
    if role is not None:
        options += f" -c role={role}"
    timeout = given.get("connect_timeout") or CONNECT_TIMEOUT_S
    return make_conninfo(
        dsn, options=options, connect_timeout=timeout, application_name="penstock-service"
    )


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
    except psycopg.ProgrammingError as error:
        raise Misconfigured(f"{doing}: {_cause(error)}") from error
    except (psycopg.Error, OSError) as error:
        raise Unavailable(f"{doing}: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
