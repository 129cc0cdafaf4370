"""A source that keeps text in another encoding than UTF-8 hashes its rows as the lake does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from psycopg import sql

from cdc.columns import set_text_output
from cdc.database import Connection, connected
from cdc.snapshot.copying import copied_columns, read, set_up
from cdc.verification.source_rows import (
    Split,
    column_hashes,
    describe,
    group_hashes,
    row_hashes,
    split_of,
)
from pipeline.verification.hashing import LakeRows
from pipeline.verification.lake_state import LakeState
from schemas.key_ranges import WHOLE
from schemas.pg_text import text_to_lake
from schemas.row_hash import table_hash
from tests.support.sources import source_hashes
from tests.support.store.postgres import Cluster

NAMES = {
    "LATIN1": ("Zürich", "Ærø", "aÿ", "a", "b", "Ñandú"),
    "WIN1252": ("€uro", "“quoted”", "Œuvre", "a", "ÿ", "Zürich"),
}


@pytest.fixture(params=sorted(NAMES))
def source(request: pytest.FixtureRequest, postgres_cluster: Cluster) -> Iterator[Connection]:
    encoding = str(request.param)
    name = f"t_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(postgres_cluster.dsn("postgres"), autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0").format(
                sql.Identifier(name), sql.Literal(encoding)
            )
        )
        with connected(postgres_cluster.dsn(name)) as connection, connection.transaction():
            set_text_output(connection)
            set_up(connection)
            connection.execute("CREATE TABLE places (name text, n int, PRIMARY KEY (name, n))")
            connection.execute(
                "INSERT INTO places SELECT name, n FROM unnest(%s::text[]) name,"
                " generate_series(1, 100) n",
                (list(NAMES[encoding]),),
            )
            yield connection
        admin.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


def test_rows_of_another_encoding_hash_as_they_do_in_the_lake(source: Connection) -> None:
    table = describe(source, "public.places", ("name", "n"))
    columns = copied_columns(source, "public.places")
    rows = pa.concat_tables(
        text_to_lake(columns, block) for block in read(source, "public.places", columns)
    )
    state = LakeState(key=("name", "n"), base=ds.dataset(rows))
    lake = LakeRows(state, table.names, table.ordered)

    assert dict(row_hashes(source, table, within=WHOLE)) == dict(lake.row_hashes(within=WHOLE))
    keys = [key for key, _ in lake.row_hashes(within=WHOLE)][:5]
    assert column_hashes(source, table, within=WHOLE, keys=keys) == lake.column_hashes(
        within=WHOLE, keys=keys
    )
    for split in (split_of(source, table, 8, 600), Split(buckets=5)):
        ours = group_hashes(source, table, split)
        found = {number: (each.rows, each.hash) for number, each in ours.items()}
        assert found == lake.group_hashes(split.bounds, split.buckets)
        assert len(found) > 3
    compared = source_hashes.compared_columns(source, "public.places")
    assert source_hashes.hash_of(source, "public.places", compared) == table_hash(rows, table.names)
