"""An ordinary PostgreSQL database, `flightops`, that knows nothing of Penstock.

Tables with real primary keys, loaded by COPY. An hour of weather is keyed by its UTC instant: in
local time the hour when clocks go back is there twice.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pyarrow import csv

from examples.flights import raw
from examples.flights.amendments import Amendment
from kernel.errors import Conflict, ContractViolation, PenstockError, Unavailable

NAME = "flightops"
_CONNECT_TIMEOUT_S = 10

DDL = """
CREATE TABLE airlines (
    carrier text PRIMARY KEY,
    name text NOT NULL
);
CREATE TABLE airports (
    faa text PRIMARY KEY,
    name text NOT NULL,
    lat double precision NOT NULL,
    lon double precision NOT NULL,
    alt integer,
    tz smallint,
    dst text,
    tzone text
);
CREATE TABLE planes (
    tailnum text PRIMARY KEY,
    year smallint,
    type text,
    manufacturer text,
    model text,
    engines smallint,
    seats smallint,
    speed smallint,
    engine text
);
CREATE TABLE weather (
    origin text NOT NULL REFERENCES airports,
    time_hour timestamptz NOT NULL,
    temp double precision,
    dewp double precision,
    humid double precision,
    wind_dir smallint,
    wind_speed double precision,
    wind_gust double precision,
    precip double precision,
    pressure double precision,
    visib double precision,
    PRIMARY KEY (origin, time_hour)
);
"""
TABLES: Mapping[str, tuple[str, ...]] = {
    "airlines": ("carrier", "name"),
    "airports": ("faa", "name", "lat", "lon", "alt", "tz", "dst", "tzone"),
    "planes": (
        *("tailnum", "year", "type", "manufacturer", "model"),
        *("engines", "seats", "speed", "engine"),
    ),
    "weather": (
        *("origin", "time_hour", "temp", "dewp", "humid", "wind_dir"),
        *("wind_speed", "wind_gust", "precip", "pressure", "visib"),
    ),
}
"""The columns of each table, in the order in which they are loaded; a parent before its child."""


def create(admin_dsn: str, name: str = NAME) -> str:
    """Create the database beside the one that `admin_dsn` names, load it, return its DSN.

    Raises `Conflict` when there is a database of that name, `Unavailable` when the server does
    not answer.
    """
    with (
        _errors(),
        psycopg.connect(admin_dsn, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S) as admin,
    ):
        if admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
            raise Conflict(
                f"there is a database {name} already",
                remedy=f"The demo makes its own: drop it (dropdb {name}) or take another server.",
            )
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    dsn = make_conninfo(admin_dsn, dbname=name)
    with _errors(), psycopg.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S) as connection:
        connection.execute(DDL)
        for table in TABLES:
            _load(connection, table)
    return dsn


def row_counts(dsn: str) -> dict[str, int]:
    """Count the rows of every table, in one transaction."""
    with _errors(), psycopg.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S) as connection:
        return {table: _count(connection, table) for table in TABLES}


def amend(dsn: str, amendment: Amendment) -> None:
    """Commit one amendment.

    Raises `ContractViolation` when a statement touches other than the rows that it names: then
    nothing is committed, and the recorded amendments would not be what happened.
    """
    with _errors(), psycopg.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S) as connection:
        for statement in amendment.statements:
            done = connection.execute(statement.sql.encode(), statement.parameters)
            if done.rowcount != statement.rows:
                raise ContractViolation(
                    f"{amendment.title}: touched {done.rowcount} rows, not {statement.rows}",
                    remedy="The source database is not the demo's own; start from an empty one.",
                )


def _load(connection: psycopg.Connection, table: str) -> None:
    columns = TABLES[table]
    content = io.BytesIO()
    csv.write_csv(raw.read_table(table).select(list(columns)), content)
    command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv, HEADER true)").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with connection.cursor() as cursor, cursor.copy(command) as copy:
        copy.write(content.getvalue())


def _count(connection: psycopg.Connection, table: str) -> int:
    query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
    row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except PenstockError:
        raise
    except psycopg.OperationalError as error:
        raise Unavailable(f"the source database does not answer: {error}") from error
    except psycopg.Error as error:
        raise ContractViolation(f"the source database refused: {error}") from error
