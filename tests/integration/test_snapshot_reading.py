"""Bulk reading from a real PostgreSQL: the LSN is exact, chunks make the table, text is whole."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import psycopg
import pyarrow as pa
import pytest

from cdc.database import connected
from cdc.options import TableOptions
from cdc.snapshot.chunks import chunk_condition, plan_chunks
from cdc.snapshot.copying import copied_columns, prepare, read, set_up
from cdc.snapshot.slot import adopt, exported_snapshot
from cdc.table_checks import table_checks
from cdc.verification.comparison import at_one_lsn
from cdc.verification.source_rows import count, describe
from kernel.errors import Conflict, Misconfigured, Unavailable
from kernel.positions import lsn_from_text
from tests.support.services.waiting import until

SMALL = 64 * 1024


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def read_all(dsn: str, snapshot: str, table: str) -> pa.Table:
    with connected(dsn) as connection:
        columns = copied_columns(connection, table)
        prepare(connection, snapshot)
        return pa.concat_tables(read(connection, table, columns))


def slots(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone()
    assert row is not None
    return int(row[0])


class Inserting(threading.Thread):
    """Inserts a row per transaction, each numbered, until it is told to end."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self.end = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self.end.is_set():
                connection.execute("INSERT INTO t DEFAULT VALUES")


def test_p4_a_transaction_is_in_the_snapshot_if_its_end_is_at_or_below_its_lsn(
    postgres_dsn: str,
) -> None:
    run(
        postgres_dsn,
        "CREATE TABLE t (id bigserial PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t",
        "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
    )
    writers = [Inserting(postgres_dsn) for _ in range(2)]
    for writer in writers:
        writer.start()
    seen: list[tuple[int, int]] = []
    for _ in range(15):
        with exported_snapshot(postgres_dsn) as exported, connected(postgres_dsn) as reader:
            adopt(reader, exported.name)
            row = reader.execute("SELECT count(*) AS n FROM t").fetchone()
            assert row is not None
            seen.append((exported.lsn, int(str(row["n"]))))
    for writer in writers:
        writer.end.set()
        writer.join()
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT lsn::text FROM pg_logical_slot_peek_binary_changes("
            "'s', NULL, NULL, 'proto_version', '1', 'publication_names', 'p')"
            " WHERE get_byte(data, 0) = ascii('C')"
        ).fetchall()
        connection.execute("SELECT pg_drop_replication_slot('s')")
    ends = [lsn_from_text(row[0]) for row in rows]

    assert [count for _, count in seen] == [sum(end <= lsn for end in ends) for lsn, _ in seen]
    assert all(one < other for (one, _), (other, _) in pairwise(seen))
    until(lambda: slots(postgres_dsn) == 0, "the temporary slot is gone")


@pytest.mark.matrix
def test_a_snapshot_that_must_wait_names_the_session_and_leaves_nothing(postgres_dsn: str) -> None:
    run(postgres_dsn, "CREATE TABLE t (id bigserial PRIMARY KEY)")
    with psycopg.connect(postgres_dsn) as open_one:
        open_one.execute("INSERT INTO t DEFAULT VALUES")
        with (
            pytest.raises(Unavailable, match=f"pid {open_one.info.backend_pid}"),
            exported_snapshot(postgres_dsn, timeout_s=1.0),
        ):
            pass
    until(lambda: slots(postgres_dsn) == 0, "the temporary slot is gone")


TABLES = {
    "bigint": ("id bigint PRIMARY KEY", "i", ["id"]),
    "text of another collation": (
        'id text COLLATE "pg_c_utf8" PRIMARY KEY',
        "chr(97 + i % 26) || CASE WHEN i % 2 = 0 THEN 'É' ELSE 'e' END || i",
        ["id"],
    ),
    "enum and number": (
        "mood mood, n numeric, PRIMARY KEY (mood, n)",
        "(ARRAY['sad','ok','glad']::mood[])[1 + i % 3], i / 7.0",
        ["mood", "n"],
    ),
    "padded": ("id char(12) PRIMARY KEY", "i::text", ["id"]),
    "timestamps": (
        "at timestamptz, n int, PRIMARY KEY (at, n)",
        "'2024-01-01'::timestamptz + (i / 10) * interval '1.000007 s', i",
        ["at", "n"],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_chunks_hold_every_row_once(postgres_dsn: str, name: str) -> None:
    columns, values, key = TABLES[name]
    run(
        postgres_dsn,
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad')",
        f"CREATE TABLE t ({columns}, filler text)",
        f"INSERT INTO t SELECT {values}, repeat('x', 50) FROM generate_series(1, 20000) i",
        "ANALYZE t",
    )
    with exported_snapshot(postgres_dsn) as exported, connected(postgres_dsn) as connection:
        prepare(connection, exported.name)
        plan = plan_chunks(connection, "public.t", key, chunk_bytes=SMALL)
        wanted = copied_columns(connection, "public.t")
        chunks = [
            pa.concat_tables(
                read(connection, "public.t", wanted, condition=chunk_condition(r, key))
            )
            for r in plan.ranges
        ]
    found = [tuple(row.values()) for chunk in chunks for row in chunk.select(key).to_pylist()]

    assert len(plan.ranges) > 5
    assert len(found) == len(set(found)) == 20_000
    sizes = [chunk.num_rows for chunk in chunks]
    assert max(sizes) < 6 * 20_000 / len(sizes)


def test_a_table_without_a_usable_index_is_one_chunk(postgres_dsn: str) -> None:
    run(
        postgres_dsn,
        "CREATE TABLE t (id int, v text); CREATE INDEX ON t (id);"
        " INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1, 20000) i",
    )
    with connected(postgres_dsn) as connection:
        plan = plan_chunks(connection, "public.t", ["id"], chunk_bytes=SMALL)

    assert [str(range_) for range_ in plan.ranges] == ["(…, …)"]


def test_nulls_empty_texts_quotes_and_lines_are_kept_apart(postgres_dsn: str) -> None:
    values = [
        (None, ""),
        ("", None),
        ('a"b,c', "x\ny"),
        ("\r\n", "\\."),
        (None, None),
        ("\\N", "N"),
    ]
    run(postgres_dsn, "CREATE TABLE t (a text, b text)", "CREATE TABLE one (a text)")
    with psycopg.connect(postgres_dsn) as connection:
        connection.cursor().executemany("INSERT INTO t VALUES (%s, %s)", values)
        connection.cursor().executemany("INSERT INTO one VALUES (%s)", [(a,) for a, _ in values])
    with exported_snapshot(postgres_dsn) as exported:
        for table, width in (("public.t", 2), ("public.one", 1)):
            found = read_all(postgres_dsn, exported.name, table)
            assert [tuple(r.values()) for r in found.to_pylist()] == [v[:width] for v in values]


@pytest.mark.parametrize(
    "rewrite",
    ["TRUNCATE t", "ALTER TABLE t ALTER COLUMN v TYPE bigint", "VACUUM FULL t"],
)
def test_p8_a_table_with_new_files_is_not_read_in_an_old_snapshot(
    postgres_dsn: str, rewrite: str
) -> None:
    run(postgres_dsn, "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    with exported_snapshot(postgres_dsn) as exported, connected(postgres_dsn) as connection:
        columns = copied_columns(connection, "public.t")
        run(postgres_dsn, rewrite)
        set_up(connection)
        adopt(connection, exported.name)
        with pytest.raises(Conflict, match="rewritten"):
            list(read(connection, "public.t", columns))


def test_p8_a_policy_that_hides_rows_is_an_error(postgres_dsn: str) -> None:
    run(
        postgres_dsn,
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY ones ON t USING (id = 1)",
        "DO $$ BEGIN CREATE ROLE reading REPLICATION LOGIN;"
        " EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        "GRANT SELECT ON t TO reading",
    )
    dsn = postgres_dsn.replace("postgres@", "reading@")
    with (
        exported_snapshot(dsn) as exported,
        pytest.raises(Misconfigured, match="row-level security"),
    ):
        read_all(dsn, exported.name, "public.t")
    # Neither is a table compared with the rows that are left, nor healed by them.
    with (
        pytest.raises(Misconfigured, match="row-level security"),
        at_one_lsn(dsn, timeout_s=30) as (connection, _),
    ):
        count(connection, describe(connection, "public.t", ("id",)))


POLICIES = {
    "CREATE POLICY every ON t USING (true)": 2,
    "CREATE POLICY every ON t FOR SELECT TO reading USING (true)": 2,
    "CREATE POLICY every ON t USING (true); CREATE POLICY ones ON t USING (id = 1)": 2,
    "CREATE POLICY every ON t USING (true);"
    " CREATE POLICY ones ON t AS RESTRICTIVE FOR DELETE USING (id = 1)": 2,
    "CREATE POLICY every ON t USING (true); CREATE POLICY no ON t AS RESTRICTIVE USING (true)": 2,
    "CREATE POLICY every ON t USING (true);"
    " CREATE POLICY ones ON t AS RESTRICTIVE USING (id = 1)": None,
    "CREATE POLICY every ON t FOR UPDATE USING (true)": None,
    "CREATE POLICY every ON t TO postgres USING (true)": None,
    "CREATE POLICY every ON t FOR INSERT WITH CHECK (true)": None,
    "SELECT": None,
}


@pytest.mark.parametrize(("policies", "rows"), POLICIES.items())
def test_a_policy_that_hides_no_rows_is_none(
    postgres_dsn: str, policies: str, rows: int | None
) -> None:
    run(
        postgres_dsn,
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)",
        f"ALTER TABLE t ENABLE ROW LEVEL SECURITY; {policies}",
        "DO $$ BEGIN CREATE ROLE reading REPLICATION LOGIN;"
        " EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        "GRANT SELECT ON t TO reading",
    )
    dsn = postgres_dsn.replace("postgres@", "reading@")
    with connected(dsn) as connection:
        for copied in (True, False):
            found = table_checks(
                connection, "public.t", key=(), options=TableOptions(), copied=copied
            )
            lacks = {each.found for each in found if "row-level policy" in each.required}
            assert lacks == (
                {"row-level policies hide rows from reading"}
                if rows is None
                else set()
                if copied
                else {"row-level policies apply to reading: the connector copies under none"}
            )

    def told() -> AbstractContextManager[object]:
        if rows is not None:
            return nullcontext()
        return pytest.raises(Misconfigured, match="row-level security")

    with exported_snapshot(dsn) as exported, told():
        assert len(read_all(dsn, exported.name, "public.t")) == rows
    with told(), at_one_lsn(dsn, timeout_s=30) as (connection, _):
        assert count(connection, describe(connection, "public.t", ("id",))) == rows
        # It keeps them as they are while it looks.
        with pytest.raises(psycopg.errors.LockNotAvailable):
            run(postgres_dsn, "SET lock_timeout = 50", "DROP POLICY every ON t")


EVERY = "CREATE POLICY every ON t USING (true)"
CHANGES = (
    "ALTER POLICY every ON t USING (id = 1)",
    "ALTER POLICY every ON t USING (id = current_setting('app.id', true)::int)",
    "CREATE POLICY ones ON t AS RESTRICTIVE USING (id = 1)",
    "DROP POLICY every ON t",
)
KINDS = {
    "plain": "CREATE TABLE t (id int PRIMARY KEY)",
    "parts": "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY LIST (id);"
    " CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);"
    " CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_p8_a_policy_that_hides_rows_since_the_snapshot_is_an_error(
    postgres_dsn: str, kind: str, change: str
) -> None:
    """The snapshot has the policies of then; PostgreSQL reads under those of now."""
    run(
        postgres_dsn,
        f"{KINDS[kind]}; INSERT INTO t VALUES (1), (2)",
        f"ALTER TABLE t ENABLE ROW LEVEL SECURITY; {EVERY}",
        "DO $$ BEGIN CREATE ROLE reading REPLICATION LOGIN;"
        " EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        "GRANT SELECT ON t TO reading",
    )
    dsn = postgres_dsn.replace("postgres@", "reading@")
    with exported_snapshot(dsn) as exported:
        assert len(read_all(dsn, exported.name, "public.t")) == 2
        run(postgres_dsn, change)
        with pytest.raises(Misconfigured, match="row-level security"):
            read_all(dsn, exported.name, "public.t")
