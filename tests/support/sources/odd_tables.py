"""Tables of odd names and types, and whoever writes and alters them: everything from one seed.

A statement that PostgreSQL refuses (a key that is there already, a value that a cast cannot take)
is no difference: its transaction is rolled back, and the next one comes.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import LiteralString

import psycopg
from psycopg import sql

from schemas.lake_columns import OF_CHANGES
from tests.support.sources.pg_values import KINDS, SETUP, drawn

SCHEMA = 'od"d /sch`ema'
TABLES = (
    *("a/b", "a b", "a_b", 'q"uote', "per%cent%2F", "über straße", "it's", "-dash", "1digit"),
    *("back\\slash", "Message", "x" * 63, "transaction", "two  blanks"),
)
COLUMNS = (
    *("größe", "order-id", "order_id", "order id", "first name", "2nd", "a.b", "per%cent", "$"),
    *("it's", "back\\slash", "`tick`", 'q"uote', "SELECT", "Name", "x" * 63, "😀", "valid_from"),
    *("data_valid_from", "valid_to", "__op", "__row", "__deleted", "_n", "_exact_", "before", "op"),
    *("name", "NAME", "name__2", "GRÖSSE", "First Name", "_EPOCH", "__OP"),
    *sorted(OF_CHANGES),
)
KEYS = ("größe", "order-id", 'i"d`', "2nd", "committed_at", "_lsn", "__op", "Key", "valid_from")
CASTS = {
    "int2": ("int4", "int8", "numeric", "decimal_38"),
    "int4": ("int8", "numeric", "decimal_38", "int2"),
    "int8": ("numeric", "decimal_38", "int4"),
    "positive": ("int4", "int8"),
    "float4": ("float8",),
    "price": ("numeric", "decimal", "dear", "decimal_38"),
    "dear": ("price", "numeric"),
    "decimal": ("price", "numeric", "decimal_38", "numeric_60"),
    "decimal_small": ("numeric", "decimal_38"),
    "decimal_38": ("numeric", "price"),
    "numeric": ("decimal_38", "numeric_60"),
    "varchar": ("text", "char"),
    "char": ("text",),
    "date": ("timestamp", "timestamptz"),
    "timestamp": ("timestamptz", "timestamp_3", "date"),
    "timestamp_3": ("timestamp",),
    "timestamptz": ("timestamptz_0", "timestamp", "date"),
    "time": ("timetz",),
    "timetz": ("clock", "time"),
    "clock": ("timetz",),
    "marks": ("grid",),
    "grid": ("marks",),
    "mood": ("feeling", "text"),
    "feeling": ("mood", "text"),
    "json": ("jsonb", "text"),
    "bit_7": ("varbit",),
    "bit_1": ("varbit",),
}
"""Kinds that may become other ones. Some with every value kept, some where PostgreSQL takes what
there is, some never: it refuses those."""
REFUSED = (
    psycopg.IntegrityError,
    psycopg.DataError,
    psycopg.errors.SyntaxErrorOrAccessRuleViolation,
)
VALUES_OF_A_KIND = 12
LARGE = 200_000
"""Characters of a large value; PostgreSQL keeps it outside of its row."""


@dataclass(slots=True)
class Column:
    """A column under its name of now, and the kind of its values (`pg_values.KINDS`)."""

    name: str
    kind: str


@dataclass(slots=True)
class Table:
    """A table as it is by now; `key` is the name of its key column, an integer's."""

    schema: str
    name: str
    key: str
    columns: list[Column]
    last: int = 0
    full: bool = False
    unused: list[str] = field(default_factory=list)

    @property
    def full_name(self) -> str:
        """`schema.table`, as sources name it."""
        return f"{self.schema}.{self.name}"


class OddTables:
    """Makes tables in a database, and then transactions and DDL in them."""

    def __init__(self, dsn: str, seed: int, *, tables: int = 6) -> None:
        self.dsn = dsn
        self.transactions = 0
        self.ddl: list[str] = []
        self._rng = random.Random(seed)
        # Values are drawn once: what a seed gives must not hang on the number of statements.
        self._values = {
            name: drawn(kind.literals, VALUES_OF_A_KIND, seed=seed) for name, kind in KINDS.items()
        }
        self.tables = [self._table(name) for name in self._rng.sample(TABLES, tables)]

    @property
    def names(self) -> list[str]:
        """Names of the tables, as sources name them."""
        return [table.full_name for table in self.tables]

    def create(self) -> None:
        """Make all types and tables, with rows."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute(SETUP.encode())
            connection.execute(_sql("CREATE SCHEMA {}", sql.Identifier(SCHEMA)))
            for table in self.tables:
                connection.execute(self._creation(table))
                if table.full:
                    name = sql.Identifier(table.schema, table.name)
                    connection.execute(_sql("ALTER TABLE {} REPLICA IDENTITY FULL", name))
                for _ in range(5):
                    for statement in self._insert(table):
                        connection.execute(statement)

    def write(self, transactions: int) -> None:
        """Write rows: some statements over some tables in each transaction."""
        with psycopg.connect(self.dsn) as connection:
            for _ in range(transactions):
                tables = self._rng.choices(self.tables, k=self._rng.randrange(1, 4))
                statements = [each for table in tables for each in self._change(table)]
                self._run(connection, statements)

    def alter(self, commands: int) -> None:
        """Run DDL, with rows before and behind it in its transaction."""
        with psycopg.connect(self.dsn) as connection:
            for _ in range(commands):
                table = self._rng.choice(self.tables)
                before = [*self._insert(table), *self._update(table)]
                columns, key = [Column(c.name, c.kind) for c in table.columns], table.key
                altering = self._alter(table)
                statements = [*before, altering, *self._insert(table), *self._update(table)]
                if self._run(connection, statements):
                    self.ddl.append(altering.as_string(connection))
                else:
                    table.columns, table.key = columns, key

    def _run(
        self, connection: psycopg.Connection[tuple[object, ...]], all_: Sequence[sql.Composed]
    ) -> bool:
        try:
            with connection.transaction():
                for statement in all_:
                    connection.execute(statement)
        except REFUSED:
            return False
        self.transactions += 1
        return True

    def _table(self, name: str) -> Table:
        names = self._rng.sample(COLUMNS, len(COLUMNS))
        key = self._rng.choice(KEYS)
        names = [each for each in names if each.lower() != key.lower()]
        kinds = self._rng.sample(sorted(KINDS), 8)
        columns = [Column(names.pop(), kind) for kind in [*kinds, "text"]]
        schema = self._rng.choice(("public", SCHEMA))
        full = self._rng.random() < 0.3
        return Table(schema, name, key, columns, full=full, unused=names)

    def _creation(self, table: Table) -> sql.Composed:
        columns = [_sql("{} int PRIMARY KEY", sql.Identifier(table.key))]
        columns += [_sql("{} {}", sql.Identifier(c.name), _type(c.kind)) for c in table.columns]
        name = sql.Identifier(table.schema, table.name)
        return _sql("CREATE TABLE {} ({})", name, sql.SQL(", ").join(columns))

    def _change(self, table: Table) -> Iterator[sql.Composed]:
        name, key = sql.Identifier(table.schema, table.name), sql.Identifier(table.key)
        some = sql.Literal(self._rng.randrange(1, table.last + 1))
        match self._rng.choices(("insert", "update", "delete", "move", "empty"), (8, 8, 3, 2, 0.1))[
            0
        ]:
            case "insert":
                yield from self._insert(table)
            case "update":
                yield from self._update(table)
            case "delete":
                yield _sql("DELETE FROM {} WHERE {} = {}", name, key, some)
            case "move":
                table.last += 1
                last = sql.Literal(table.last)
                yield _sql("UPDATE {} SET {} = {} WHERE {} = {}", name, key, last, key, some)
            case _:
                yield _sql("TRUNCATE {}", name)

    def _insert(self, table: Table) -> Iterator[sql.Composed]:
        table.last += 1
        columns = self._rng.sample(table.columns, self._rng.randrange(0, len(table.columns) + 1))
        names = [sql.Identifier(table.key), *(sql.Identifier(c.name) for c in columns)]
        values = [sql.Literal(table.last), *map(self._value, columns)]
        yield _sql(
            "INSERT INTO {} ({}) VALUES ({})",
            sql.Identifier(table.schema, table.name),
            sql.SQL(", ").join(names),
            sql.SQL(", ").join(values),
        )

    def _update(self, table: Table) -> Iterator[sql.Composed]:
        if not table.columns:
            return
        most = min(3, len(table.columns))
        columns = self._rng.sample(table.columns, self._rng.randrange(1, most + 1))
        setting = [_sql("{} = {}", sql.Identifier(c.name), self._value(c)) for c in columns]
        yield _sql(
            "UPDATE {} SET {} WHERE {} % 3 = {}",
            sql.Identifier(table.schema, table.name),
            sql.SQL(", ").join(setting),
            sql.Identifier(table.key),
            sql.Literal(self._rng.randrange(3)),
        )

    def _value(self, column: Column) -> sql.Composable:
        if column.kind == "text" and self._rng.random() < 0.1:
            # Compressed it would lie in its row.
            letters = self._rng.choices(string.ascii_letters, k=1000)
            return sql.Literal("".join(self._rng.choices(letters, k=LARGE)))
        return sql.Literal(self._rng.choice(self._values[column.kind]))

    def _alter(self, table: Table) -> sql.Composed:
        """Return DDL, and take it in as if it were done."""
        name = sql.Identifier(table.schema, table.name)
        ways = ("add", "drop", "rename", "cast", "replace", "retype", "key")
        way = self._rng.choices(ways, (5, 2, 4, 3, 1, 1, 1))[0]
        if way == "add" or not table.columns:
            return _sql("ALTER TABLE {} ADD {}", name, self._added(table))
        if way == "key":
            old, table.key = table.key, self._unused(table)
            pair = sql.Identifier(old), sql.Identifier(table.key)
            return _sql("ALTER TABLE {} RENAME {} TO {}", name, *pair)
        castable = [column for column in table.columns if column.kind in CASTS]
        column = self._rng.choice(castable if way == "cast" and castable else table.columns)
        own = sql.Identifier(column.name)
        if way == "cast" and castable:
            column.kind = self._rng.choice(CASTS[column.kind])
            return _sql("ALTER TABLE {} ALTER {} TYPE {}", name, own, _type(column.kind))
        if way == "drop":
            table.columns.remove(column)
            return _sql("ALTER TABLE {} DROP {}", name, own)
        if way == "replace":
            column.kind = self._rng.choice(sorted(KINDS))
            kind = _type(column.kind)
            return _sql("ALTER TABLE {} DROP {}, ADD {} {}", name, own, own, kind)
        if way == "retype":
            column.kind = "text"
            return _sql("ALTER TABLE {} ALTER {} TYPE text USING upper({}::text)", name, own, own)
        column.name = self._unused(table)
        return _sql("ALTER TABLE {} RENAME {} TO {}", name, own, sql.Identifier(column.name))

    def _added(self, table: Table) -> sql.Composed:
        column = Column(self._unused(table), self._rng.choice(sorted(KINDS)))
        table.columns.append(column)
        added = _sql("{} {}", sql.Identifier(column.name), _type(column.kind))
        if self._rng.random() < 0.5:
            return added
        return _sql("{} DEFAULT {}", added, self._value(column))

    def _unused(self, table: Table) -> str:
        """Return a name that no column of the table has or had."""
        return table.unused.pop() if table.unused else f"n {len(self.ddl)} {self._rng.random()}"


def _type(kind: str) -> sql.Composed:
    return sql.Composed([sql.SQL(KINDS[kind].sql)])


def _sql(text: LiteralString, *parts: sql.Composable) -> sql.Composed:
    return sql.SQL(text).format(*parts)
