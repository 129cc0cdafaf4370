"""The source database: one connection, errors of ours, and what a DSN says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from cdc.connectors import ConnectorDatabase
from kernel.dsn import SPELLING, ends_early
from kernel.errors import InvalidRequest, Misconfigured, PenstockError, Unavailable

Row = dict[str, object]
Connection = psycopg.Connection[Row]

_CONNECT_TIMEOUT_S = 10
_SETTINGS = {
    "client_encoding": "UTF8",
    "quote_all_identifiers": "off",
    "default_transaction_read_only": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
}
"""What a role or a database may have set otherwise, for the applications that use it: names that
have no letters in its encoding, texts of the catalog that are written in another way, an end amid
a wait of ours. A server that does not know one of them has none."""
_SET = """
SELECT set_config(wanted.name, wanted.setting, false)
  FROM unnest(%s::text[], %s::text[]) AS wanted (name, setting)
 WHERE current_setting(wanted.name, true) IS NOT NULL
"""


@contextmanager
def connected(dsn: str) -> Iterator[Connection]:
    """Open an autocommit connection; its errors come out as errors of ours.

    Raises `Unavailable` when the server does not answer, `InvalidRequest` for a malformed DSN,
    `Misconfigured` for the rest.
    """
    _parts(dsn)
    try:
        with psycopg.connect(
            dsn,
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
            application_name="penstock",
            row_factory=dict_row,
        ) as connection:
            connection.execute(_SET, (list(_SETTINGS), list(_SETTINGS.values())))
            yield connection
    except psycopg.Error as error:
        raise _wrapped(error, dsn) from error


def database_of(dsn: str, version: int = 0) -> ConnectorDatabase:
    """Read a libpq URL or key=value string as a connector needs it; `version` is the server's.

    Raises `InvalidRequest` when it is malformed or names no database.
    """
    parts = _parts(dsn)
    name = parts.get("dbname")
    if not name:
        raise InvalidRequest(
            "the DSN names no database", remedy="Write postgresql://USER@HOST:PORT/DATABASE"
        )
    return ConnectorDatabase(
        host=str(parts.get("host") or "127.0.0.1"),
        port=int(str(parts.get("port") or 5432)),
        name=str(name),
        user=str(parts.get("user") or "postgres"),
        password=str(parts.get("password") or ""),
        sslmode=str(parts.get("sslmode") or "prefer"),
        version=version,
    )


def split_password(dsn: str) -> tuple[str, str | None]:
    """Part a DSN from its password: the first may be written to a file, the second not."""
    parts = _parts(dsn)
    password = parts.pop("password", None)
    rest = {key: str(value) for key, value in parts.items() if value is not None}
    return make_conninfo("", **rest), None if password is None else str(password)


def with_password(dsn: str, password: str | None) -> str:
    """Put a password back into a DSN."""
    if password is None:
        return dsn
    _parts(dsn)
    return make_conninfo(dsn, password=password)


def split_table(table: str) -> tuple[str, str]:
    """Part `schema.table`; a bare name is in `public`. Raises `InvalidRequest`."""
    schema, dot, name = table.rpartition(".")
    if not name or (dot and not schema) or "." in schema:
        raise InvalidRequest(
            f"{table!r} is not a table name",
            remedy="Write schema.table. Names that have a dot cannot be captured: rename it.",
        )
    return schema or "public", name


def _parts(dsn: str) -> dict[str, object]:
    """Take a DSN apart: one host and one port, since a connector reads from one server."""
    try:
        parts: dict[str, object] = dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        raise _malformed() from None
    port = parts.get("port")
    if ends_early(dsn, port) or not 0 < _number(port or 5432) <= 65535:
        raise _malformed()
    return parts


def _number(port: object) -> int:
    return int(str(port)) if str(port).isdigit() else 0


def _malformed() -> InvalidRequest:
    return InvalidRequest("not a PostgreSQL DSN, with one host and one port", remedy=SPELLING)


def _wrapped(error: psycopg.Error, dsn: str) -> PenstockError:
    where = database_of(dsn)
    place = f"{where.host}:{where.port}/{where.name} as {where.user}"
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    match error:
        case psycopg.errors.InvalidPassword() | psycopg.errors.InsufficientPrivilege():
            return Misconfigured(f"{place}: {first}", remedy="Grant the role what it lacks.")
        case psycopg.OperationalError() if error.sqlstate is None:
            return Unavailable(
                f"the source database does not answer at {place}: {first}",
                remedy="Check host, port, database, role and password of the DSN.",
            )
        case psycopg.OperationalError():
            return Unavailable(f"{place}: {first}")
        case _:
            return Misconfigured(f"{place}: {first}")
