"""SQL over the lake as of one epoch, by DuckDB; the stack may be stopped.

A table is written as its place in the lake, kind first: `current.shop.public.orders`,
`typed."events.flight.departed"`, `"log/events/<store>"` (dots or slashes, quoted or not). A bare
name is a projection, but for `epochs`, `catalog`, `replays`, `savepoints` and `verifications`. All
tables of one query are read at one epoch, so that they are functions of the same prefix of input.
`*` of a projection is the columns of its query; what it is kept by besides can be read by name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from kernel.errors import InvalidRequest, TooLarge
from kernel.positions import DeltaVersion, Epoch
from lake.datasets import for_duckdb, missing_file
from lake.layers import newest_of
from lake.layout import Lake
from lake.writer import OP, UPSERT
from projections.serve.lake_tables import table_name, unknown_table
from projections.serve.pinned_epochs import PinnedTables, pinned_by
from projections.serve.star_columns import shown_columns, without_hidden
from projections.serve.versions import not_kept
from projections.sql.words.tokens import why_unread
from schemas.identifiers import duckdb_name


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """Rows, and what they were computed from. `epoch` None: only tables without epochs."""

    rows: pa.Table
    epoch: Epoch | None
    tables: Mapping[str, DeltaVersion | None]

    def values(self) -> list[dict[str, object]]:
        """Return the rows. A column with times that Python has not (`infinity`) is text."""
        columns = {n: _values(c) for n, c in zip(self.rows.schema.names, self.rows, strict=True)}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def ask(
    lake: Lake,
    sql: str,
    *,
    epoch: Epoch | None = None,
    at: datetime | None = None,
    savepoint: str | None = None,
) -> QueryAnswer:
    """Answer one SELECT, as `LakeQueries.ask` does."""
    with LakeQueries(lake) as queries:
        return queries.ask(sql, epoch=epoch, at=at, savepoint=savepoint)


class LakeQueries:
    """Answers queries over one lake, for who has many: each one pays for what came since the last.

    Whatever was committed before a query is seen by it. Safe for use from several threads. Its
    database has nothing of a query once that is answered.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._pinned = PinnedTables(lake)
        self._database = duckdb.connect(config={"python_enable_replacements": "false"})
        # Only what was registered can be read: no files, no network, no Python variables.
        self._database.execute("SET enable_external_access = false")
        self._database.execute("SET GLOBAL TimeZone = 'UTC'")
        # No query sets anything for those behind it: `FROM enable_logging()` kept their texts.
        self._database.execute("SET lock_configuration = true")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the database."""
        self._database.close()

    def ask(
        self,
        sql: str,
        *,
        epoch: Epoch | None = None,
        at: datetime | None = None,
        savepoint: str | None = None,
    ) -> QueryAnswer:
        """Answer a SELECT at one epoch: the given one, or the greatest that all its tables have.

        `at` (commit time, with a time zone) limits which epochs count; `savepoint` names what was
        kept. Raises `NotFound` for a table that does not exist (naming the nearest) or does not
        have the epoch, `InvalidRequest` for SQL that cannot be read or does more than read.
        """
        if [epoch, at, savepoint].count(None) < 2:
            raise InvalidRequest(
                "--epoch, --at and --savepoint exclude each other", remedy="Give one of them."
            )
        statement = _parsed(sql)
        used = _tables_of(statement)
        names = sorted({name for _, name in used})
        for name in names:
            if not self._pinned.exists(name):
                raise unknown_table(self._lake, name)
        if savepoint is None:
            pinned = self._pinned.at(names, epoch, at)
        else:
            pinned = pinned_by(self._lake, names, savepoint)
        views = {name: f"__{number}" for number, name in enumerate(names)}
        _name_views(used, views)
        columns = {name: pinned.frames[name].schema.names for name in names}
        without_hidden(used, columns)
        frames = {views[name]: pinned.frames[name] for name in names}
        tails = {views[name]: rows for name, rows in pinned.tails.items() if rows.num_rows}
        over = {view: newest_of(rows) for view, rows in tails.items()}
        try:
            with self._database.cursor() as connection:
                written = statement.sql(dialect="duckdb")
                rows = _run(connection, written, frames, over, shown_columns(columns))
        except (InvalidRequest, FileNotFoundError):
            for name in names:
                if missing_file(frames[views[name]]):
                    raise not_kept(name, pinned.versions[name]) from None
            raise
        return QueryAnswer(rows=_told_apart(rows), epoch=pinned.epoch, tables=pinned.versions)


_ERROR_CLASS = re.compile(r"^[A-Z][A-Za-z ]* Error: ")
_NO_COLUMN = re.compile(
    r'Referenced column "(?P<name>.+)" not found'
    r'|".+" does not have a column named "(?P<other>.+)"'
)
_SHOWN_COLUMNS = 20
_LOOK = "To see a table's columns: penstock query 'SELECT * FROM TABLE LIMIT 1'"


def _parsed(sql: str) -> exp.Query:
    try:
        statements = [one for one in sqlglot.parse(sql, dialect="duckdb") if one is not None]
    except (ParseError, TokenError) as error:
        raise InvalidRequest(
            f"the SQL cannot be read: {why_unread(str(error))}",
            remedy="Write one SELECT, in DuckDB's SQL: penstock query 'SELECT 1'",
        ) from error
    if len(statements) != 1:
        raise InvalidRequest(
            f"expected one statement, found {len(statements)}",
            remedy="Write one SELECT; ask again for the next: penstock query 'SELECT 1'",
        )
    statement = statements[0]
    if not isinstance(statement, exp.Query):
        raise InvalidRequest(
            f"{statement.key.upper()} is not a query",
            remedy="The lake is read only here: write SELECT … or WITH … SELECT …",
        )
    return statement


def _tables_of(statement: exp.Query) -> list[tuple[exp.Table, str]]:
    """Find the lake's tables in a query: not its own WITH names, not table functions."""
    own = {cte.alias_or_name.lower() for cte in statement.find_all(exp.CTE)}
    found: list[tuple[exp.Table, str]] = []
    for table in statement.find_all(exp.Table):
        parts = [part.name for part in table.parts]
        if not isinstance(table.this, exp.Identifier | exp.Dot):
            continue
        if len(parts) == 1 and parts[0].lower() in own:
            continue
        found.append((table, table_name(parts)))
    return found


def _name_views(used: Sequence[tuple[exp.Table, str]], views: Mapping[str, str]) -> None:
    """Have a query read views in place of tables, under the names that it has for these."""
    for table, name in used:
        alias = table.args.get("alias") or exp.TableAlias(
            this=exp.to_identifier(table.name, quoted=True)
        )
        table.set("db", None)
        table.set("catalog", None)
        table.set("this", exp.to_identifier(views[name], quoted=True))
        table.set("alias", alias)


def _run(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    frames: Mapping[str, ds.Dataset],
    over: Mapping[str, tuple[pa.Table, tuple[str, ...]]],
    columns: Sequence[str],
) -> pa.Table:
    """Answer a query of views that are this connection's alone, and end with it."""
    for view, frame in frames.items():
        connection.register(f"{view}_base" if view in over else view, for_duckdb(frame))
    for view, (newest, keys) in over.items():
        connection.register(f"{view}_tail", newest)
        connection.execute(_laid_over(view, keys))
    try:
        return connection.sql(sql).to_arrow_table()
    except duckdb.OutOfMemoryException as error:
        raise TooLarge(
            f"the query needs more memory than there is: {str(error).partition(chr(10))[0]}",
            remedy="Read fewer rows or columns, or ask another engine for more: penstock table "
            "path TABLE",
        ) from error
    except duckdb.Error as error:
        raise _refused(error, columns) from error


def _told_apart(rows: pa.Table) -> pa.Table:
    """Number columns of one name, as `*` of joined tables has them: a, a_1.

    By their names alone one of them would be left out of the answer.
    """
    names: list[str] = []
    for name in rows.schema.names:
        number, own = 0, name
        while own in names:
            number += 1
            own = f"{name}_{number}"
        names.append(own)
    return rows.rename_columns(names)


def _values(column: pa.ChunkedArray) -> list[object]:
    try:
        values: list[object] = column.to_pylist()
    except (OverflowError, ValueError):
        with duckdb.connect(config={"python_enable_replacements": "false"}) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("beyond", pa.table({"v": column}))
            written = connection.sql("SELECT CAST(v AS VARCHAR) FROM beyond").fetchall()
        return [value for (value,) in written]
    return values


def _refused(error: duckdb.Error, columns: Sequence[str]) -> InvalidRequest:
    """Say what is wrong with a query in words: no class of error, no text that nobody wrote."""
    # The place that DuckDB points at is in the statement with our names for its tables.
    told = _ERROR_CLASS.sub("", str(error)).partition("\n\nLINE ")[0]
    first, *more = (line.strip() for line in told.strip().splitlines())
    lacking = _NO_COLUMN.search(first)
    if lacking is not None:
        name = lacking["name"] or lacking["other"]
        near = difflib.get_close_matches(name, columns, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        rest = ", …" if len(columns) > _SHOWN_COLUMNS else ""
        return InvalidRequest(
            f"no column {name} in what the query reads",
            remedy=f"{meant}There are: {', '.join(columns[:_SHOWN_COLUMNS])}{rest}",
        )
    return InvalidRequest(
        f"the query failed: {first}",
        remedy=" ".join(
            [*(line if line[-1] in ".?!" else f"{line}." for line in more if line), _LOOK]
        ),
    )


def _laid_over(view: str, keys: Sequence[str]) -> str:
    """Make a view of base rows that the tail does not touch, and the tail's newest rows."""
    names = [duckdb_name(key) for key in keys]
    same = " AND ".join(f"b.{name} IS NOT DISTINCT FROM t.{name}" for name in names)
    return (
        f"CREATE TEMP VIEW {view} AS SELECT b.* FROM {view}_base b "
        f"ANTI JOIN {view}_tail t ON {same} "
        f"UNION ALL BY NAME SELECT * EXCLUDE ({OP}) FROM {view}_tail WHERE {OP} = '{UPSERT}'"
    )
