"""What PostgreSQL prints becomes what it has: random values of every type.

PostgreSQL renders the rows twice, in ways that share nothing: as the text of COPY, which goes
through `text_to_lake`, and as the canonical text of its own values, which it hashes itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from cdc.columns import columns_of
from cdc.database import Connection
from schemas.pg_text import text_to_lake
from schemas.row_hash import table_hash
from tests.support.sources.pg_copies import copied
from tests.support.sources.pg_values import DELIMITERS, KINDS, NO_ARRAY, SETUP, array_of
from tests.support.sources.source_hashes import hash_of

Row = tuple[str | None, ...]


@pytest.fixture(scope="module")
def source(postgres_cluster: object) -> Iterator[Connection]:
    from tests.support.store.postgres import Cluster, admin

    assert isinstance(postgres_cluster, Cluster)
    admin(postgres_cluster, "DROP DATABASE IF EXISTS pg_values")
    admin(postgres_cluster, "CREATE DATABASE pg_values")
    dsn = postgres_cluster.dsn("pg_values")
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        connection.execute(SETUP.encode())
        yield connection


def filled(connection: Connection, types: Sequence[str], rows: Sequence[Row]) -> None:
    columns = ", ".join(f"c{place} {sql}" for place, sql in enumerate(types))
    connection.execute("DROP TABLE IF EXISTS kept")
    connection.execute(f"CREATE TABLE kept ({columns})".encode())
    with connection.cursor().copy(b"COPY kept FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def check(connection: Connection) -> pa.Table:
    """Compare every column's hash; returns what came out."""
    columns = columns_of(connection, "kept")
    texts = copied(connection, "kept")
    lake = text_to_lake(columns, texts)
    for column in columns:
        assert table_hash(lake, [column.name]) == hash_of(connection, "kept", [column]), column
    return lake


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_type_and_its_arrays(name: str, source: Connection) -> None:
    kind = KINDS[name]
    one = st.one_of(st.none(), kind.literals)
    types = [kind.sql]
    parts: list[st.SearchStrategy[str | None]] = [one]
    if name not in NO_ARRAY:
        mark = DELIMITERS.get(name, ",")
        types += [f"{kind.sql}[]", f"{kind.sql}[][]"]
        parts += [
            st.one_of(st.none(), array_of(kind.literals, delimiter=mark)),
            st.one_of(st.none(), array_of(kind.literals, dimensions=2, delimiter=mark)),
        ]

    # A batch is many examples; to shrink one would ask PostgreSQL a thousand times.
    @settings(
        max_examples=2,  # The first one is the simplest: all the same.
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.tuples(*parts), min_size=60, max_size=80))
    def batch(rows: list[Row]) -> None:
        filled(source, types, rows)
        check(source)

    batch()
