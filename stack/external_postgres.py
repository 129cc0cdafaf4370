"""A PostgreSQL of the user's own instead of the local one: look before relying on it."""

from __future__ import annotations

from urllib.parse import quote

import psycopg
from psycopg import conninfo, sql

from kernel.dsn import SPELLING, ends_early
from kernel.errors import Misconfigured, Unavailable
from stack.parts import with_database

_TIMEOUT_S = 10


def prepare_external(dsn: str, database: str) -> str:
    """Make sure that `database` exists on the server of `dsn`; return the URL that leads to it.

    Raises `Unavailable` when the server does not answer, `Misconfigured` when it has no logical
    decoding or the database can be neither found nor made.
    """
    _refuse_malformed(dsn)
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=_TIMEOUT_S) as connection:
            level = connection.execute("SHOW wal_level").fetchone()
            if level != ("logical",):
                raise Misconfigured(
                    f"wal_level is {level and level[0]} on {described(dsn)}; capture needs logical",
                    remedy="ALTER SYSTEM SET wal_level = 'logical'; then restart that server.",
                )
            query = "SELECT 1 FROM pg_database WHERE datname = %s"
            if connection.execute(query, (database,)).fetchone() is None:
                _create(connection, database)
    except psycopg.OperationalError as error:
        raise Unavailable(
            f"PostgreSQL at {described(dsn)} does not answer: {str(error).strip()}",
            remedy="Check --postgres DSN, or leave it out to run a local PostgreSQL.",
        ) from error
    return with_database(as_url(dsn), database)


def _refuse_malformed(dsn: str) -> None:
    """Raise `Misconfigured` for what is no connection string: it may quote the password's parts."""
    malformed = Misconfigured("--postgres is not a PostgreSQL connection string", remedy=SPELLING)
    try:
        port = conninfo.conninfo_to_dict(dsn).get("port")
    except psycopg.ProgrammingError:
        raise malformed from None
    if ends_early(dsn, port):
        raise malformed


def as_url(dsn: str) -> str:
    """Return a libpq connection string (URL or key=value) as a URL."""
    if "://" in dsn:
        return dsn
    parts = conninfo.conninfo_to_dict(dsn)
    known = {key: str(value) for key, value in parts.items() if value is not None}
    user, host = known.get("user", "postgres"), known.get("host", "127.0.0.1")
    password = f":{quote(known['password'], safe='')}" if "password" in known else ""
    path = f"{host}:{known.get('port', '5432')}/{known.get('dbname', user)}"
    return f"postgresql://{quote(user, safe='')}{password}@{path}"


def described(dsn: str) -> str:
    """Return a DSN's server for messages, without its password."""
    parts = conninfo.conninfo_to_dict(dsn)
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}"


def _create(connection: psycopg.Connection[tuple[object, ...]], database: str) -> None:
    try:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    except psycopg.errors.DuplicateDatabase:
        return
    except psycopg.errors.InsufficientPrivilege as error:
        raise Misconfigured(
            f"the registry needs a database {database}, which this user may not make",
            remedy=f'Have it made: CREATE DATABASE "{database}" OWNER <user of the DSN>',
        ) from error
