"""PostgreSQL and the lake cut, hash and name rows alike: ranges, buckets, veiled columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from cdc.columns import set_text_output
from cdc.database import Connection, connected
from cdc.options import PLAIN, TableOptions
from cdc.snapshot.copying import copied_columns, read
from cdc.verification.source_rows import (
    SourceTable,
    Split,
    column_hashes,
    count,
    describe,
    estimated,
    group_hashes,
    next_bound,
    row_hashes,
    split_of,
)
from cdc.verification.table_shapes import same_shape
from kernel.errors import InvalidRequest, NotFound
from pipeline.verification.hashing import LakeRows
from pipeline.verification.lake_state import LakeState
from schemas.key_ranges import KeyRange, cut_at
from schemas.pg_text import text_to_lake

TABLE = "public.Odd names"
ROWS = """
CREATE TYPE mood AS ENUM ('z', 'a');
CREATE TABLE "Odd names" (
    "the key's" text, n int, phone text, mail text, card text, at timestamptz,
    amount numeric(9, 2), tags text[], twice int GENERATED ALWAYS AS (n * 2) STORED,
    PRIMARY KEY ("the key's", n));
INSERT INTO "Odd names"
  SELECT (array['a', 'B', 'ä', 'Z', '', 'a b', 'it''s', '😀', '\\', 'aa'])[g % 10 + 1], g,
         '030' || g, g || '@example', 'card', '2024-01-01'::timestamptz + g * interval '1.5 s',
         CASE WHEN g % 7 = 0 THEN NULL ELSE g / 3.0 END, array['x', g::text, NULL]
    FROM generate_series(1, 3000) g;
CREATE TABLE moods (mood mood PRIMARY KEY, n double precision);
INSERT INTO moods VALUES ('z', 'NaN'), ('a', '-0');
CREATE TABLE numbers (at timestamp, raw bytea, day date, u uuid, d numeric(12, 3), i smallint,
    PRIMARY KEY (at, raw, day, u, d, i));
INSERT INTO numbers SELECT '2024-01-01'::timestamp + g * interval '1 minute',
    decode(md5(g::text), 'hex'), date '2020-01-01' + g % 100, md5(g::text)::uuid, g / 7.0, g % 30
  FROM generate_series(1, 1000) g;
INSERT INTO numbers VALUES ('0044-03-15 BC', '', '-infinity', gen_random_uuid(), -1, 0),
    ('infinity', '\\xff', 'infinity', gen_random_uuid(), 1, 0);
"""
KEYS = {TABLE: ("the key's", "n"), "public.moods": ("mood",)}
NUMBERS = ("at", "raw", "day", "u", "d", "i")
VEILED = TableOptions(exclude=("card",), mask=("phone",), hash=("mail",))


@pytest.fixture
def source(postgres_dsn: str) -> Iterator[Connection]:
    with connected(postgres_dsn) as connection:
        set_text_output(connection)
        connection.execute(ROWS.encode())
        with connection.transaction():
            yield connection


def both(
    source: Connection, table: str, key: tuple[str, ...], options: TableOptions = PLAIN
) -> tuple[SourceTable, LakeRows]:
    """Describe a table, and copy it to where the lake's side reads it."""
    salt = "0123456789abcdef" if options.hash else ""
    described = describe(source, table, key, options=options, salt=salt)
    columns = copied_columns(source, table, options)
    blocks = list(read(source, table, columns, options=options, salt=salt))
    rows = pa.concat_tables(
        [text_to_lake(columns, block) for block in blocks], promote_options="permissive"
    )
    state = LakeState(key=key, base=ds.dataset(rows))
    return described, LakeRows(state, described.names, described.ordered)


def equal_by_groups(source: Connection, table: SourceTable, lake: LakeRows, split: Split) -> int:
    ours = group_hashes(source, table, split)
    theirs = lake.group_hashes(split.bounds, split.buckets)
    assert {n: (each.rows, each.hash) for n, each in ours.items()} == theirs
    assert sum(each.rows for each in ours.values()) == count(source, table)
    return len(ours)


@pytest.mark.parametrize("options", [PLAIN, VEILED], ids=["plain", "veiled"])
def test_ranges_of_text_keys_are_the_same_on_both_sides(
    source: Connection, options: TableOptions
) -> None:
    table, lake = both(source, TABLE, KEYS[TABLE], options)
    split = split_of(source, table, 20, 3000)
    assert 10 <= len(split.bounds) <= 40
    assert equal_by_groups(source, table, lake, split) == split.groups
    for area in cut_at(split.bounds)[::5]:
        ours = dict(row_hashes(source, table, within=area))
        assert ours == dict(lake.row_hashes(within=area))
        some = sorted(ours)[:3]
        assert column_hashes(source, table, within=area, keys=some) == lake.column_hashes(
            within=area, keys=some
        )
    assert dict(table.left_out) == {
        "twice": "generated: not in the stream of changes",
        **({"card": "excluded"} if options is VEILED else {}),
    }


def test_keys_of_every_order_have_ranges(source: Connection) -> None:
    table, lake = both(source, "public.numbers", NUMBERS)
    assert table.ordered is not None
    assert equal_by_groups(source, table, lake, split_of(source, table, 8, 1000)) > 4


def test_a_key_without_an_order_is_cut_by_its_hash(source: Connection) -> None:
    table, lake = both(source, "public.moods", ("mood",))
    assert table.ordered is None
    assert equal_by_groups(source, table, lake, split_of(source, table, 7, 2)) in (1, 2)


def test_a_table_is_walked_range_by_range(source: Connection) -> None:
    table, lake = both(source, TABLE, KEYS[TABLE])
    seen: set[str] = set()
    low, steps = None, 0
    while True:
        high = next_bound(source, table, low, 700)
        found = dict(row_hashes(source, table, within=KeyRange(low=low, high=high)))
        assert found == dict(lake.row_hashes(within=KeyRange(low=low, high=high)))
        assert not seen & set(found)
        seen |= set(found)
        low, steps = high, steps + 1
        if high is None:
            break
    assert (len(seen), steps) == (3000, 5)


def test_the_size_of_a_table_is_known_before_and_after_it_was_analysed(source: Connection) -> None:
    table = describe(source, TABLE, KEYS[TABLE])
    assert estimated(source, table) == 3000
    source.execute('ANALYZE "Odd names"')
    source.execute('DELETE FROM "Odd names" WHERE n > 2000')
    assert estimated(source, table) == 3000
    assert count(source, table) == 2000


def test_what_cannot_be_compared_says_why(source: Connection) -> None:
    with pytest.raises(InvalidRequest, match="its key"):
        describe(source, "public.moods", ("absent",))
    with pytest.raises(NotFound):
        describe(source, "public.nothing", ("id",))


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE moods",
        "ALTER TABLE moods RENAME n TO m",
        "ALTER TABLE moods ALTER n TYPE text",
        "ALTER TABLE moods ADD m int",
        "ALTER TYPE mood RENAME VALUE 'z' TO 'y'",
        "DROP TABLE moods",
    ],
)
def test_a_snapshot_of_before_is_known_to_read_a_table_otherwise(
    postgres_dsn: str, statement: str
) -> None:
    with connected(postgres_dsn) as snapshot, connected(postgres_dsn) as now:
        now.execute(ROWS.encode())
        with snapshot.transaction():
            snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            snapshot.execute("SELECT 1")
            now.execute("INSERT INTO moods VALUES ('z', 1) ON CONFLICT DO NOTHING")
            assert same_shape(snapshot, now, "public.moods")
            now.execute(statement.encode())
            assert not same_shape(snapshot, now, "public.moods")
            assert same_shape(snapshot, now, "public.numbers")
