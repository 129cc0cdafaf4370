"""Changes of captured tables as they happen: order, keys, TRUNCATE, large values, columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise

import psycopg
import pytest

from apps.settings import Settings
from cdc.connectors import replication_name
from cdc.database import connected
from cdc.replication import slot
from kernel.positions import lsn_from_text
from schemas.records import MESSAGES, Operation
from tests.support.services.waiting import until
from tests.support.sources.capturing import Captured, prepare
from tests.support.sources.databases import databases

SHOP = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer int NOT NULL, status text DEFAULT 'new',
    note varchar(20) DEFAULT 'none', updated_at timestamptz DEFAULT now()
);
CREATE TABLE lines (order_id bigint, line int, item text, PRIMARY KEY (order_id, line));
CREATE TABLE nothing_yet (id int PRIMARY KEY);
INSERT INTO orders (id, customer) SELECT i, i % 3 FROM generate_series(1, 20) i;
INSERT INTO lines SELECT i, 1, 'thing' FROM generate_series(1, 10) i;
"""
TABLES = ("public.orders", "public.lines", "public.nothing_yet")
OTHERS = """
CREATE TABLE blanks (LIKE orders INCLUDING ALL);
INSERT INTO blanks SELECT * FROM orders WHERE id <= 5;
UPDATE blanks SET status = NULL WHERE id = 2;
CREATE TABLE emptied (LIKE lines INCLUDING ALL);
INSERT INTO emptied SELECT * FROM lines;
CREATE TABLE emptied_too (LIKE orders INCLUDING ALL);
INSERT INTO emptied_too SELECT * FROM orders;
CREATE TABLE visits ("visitor (no.)" int NOT NULL, at timestamp NOT NULL, page text);
ALTER TABLE visits REPLICA IDENTITY FULL;
INSERT INTO visits VALUES (1, '2024-01-01', 'a'), (2, '2024-01-01', 'b');
CREATE TABLE pages (
    id int PRIMARY KEY, visits int, body text, raw bytea, doc jsonb, digits numeric,
    tags text[], numbers int[], ids uuid[], days date[]
);
ALTER TABLE pages ALTER body SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL,
    ALTER doc SET STORAGE EXTERNAL, ALTER digits SET STORAGE EXTERNAL,
    ALTER tags SET STORAGE EXTERNAL, ALTER numbers SET STORAGE EXTERNAL,
    ALTER ids SET STORAGE EXTERNAL, ALTER days SET STORAGE EXTERNAL;
INSERT INTO pages SELECT 1, 0, repeat('x', 9000), decode(repeat('00ff', 4000), 'hex'),
    to_jsonb(repeat('j', 9000)), repeat('1234567890', 1000)::numeric,
    array(SELECT 'tag ' || i FROM generate_series(1, 2000) i),
    array(SELECT generate_series(1, 4000)),
    array(SELECT gen_random_uuid() FROM generate_series(1, 1000)),
    array(SELECT date '2000-01-01' + i FROM generate_series(1, 4000) i);
"""
"""Tables of single tests: what one does to its own is nothing to the others."""
OWN = ("blanks", "emptied", "emptied_too", "visits", "pages")

VISITOR = "visitor (no.)"

Start = Callable[..., Captured]


@pytest.fixture(scope="module")
def shop(stack: Settings) -> Iterator[Captured]:
    """Capture one database for all tests that look at their own rows of it."""
    tables = (*TABLES, *(f"public.{name}" for name in OWN))
    with databases(stack) as make:
        shop = prepare(stack, make(SHOP + OTHERS), tables, {"public.visits": (VISITOR, "at")})
        try:
            shop.start()
            shop.await_snapshot()
            yield shop
        finally:
            shop.remove()


@pytest.fixture
def start(stack: Settings, new_source: Callable[[str], str]) -> Iterator[Start]:
    """Capture tables of a new database and wait for its snapshot."""
    with ExitStack() as after:

        def begin(statements: str, tables: Sequence[str], **keys: tuple[str, ...]) -> Captured:
            captured = prepare(
                stack,
                new_source(statements),
                tables,
                {f"public.{table}": columns for table, columns in keys.items()},
            )
            after.callback(captured.remove)
            captured.start()
            captured.await_snapshot()
            return captured

        yield begin


def test_a_snapshot_says_how_many_rows_each_table_has(shop: Captured) -> None:
    ends = {end.table: end.rows for end in shop.snapshots}
    rows = {"orders": 20, "lines": 10, "nothing_yet": 0, "blanks": 5, "emptied": 10}
    rows |= {"emptied_too": 20, "visits": 2, "pages": 1}
    assert ends == {None: 0, **{f"public.{table}": count for table, count in rows.items()}}
    reads = [change for _, change in shop.changes if change.snapshot]
    assert len(reads) == sum(rows.values())
    assert {c.operation for c in reads} == {Operation.READ}
    assert {(c.transaction_id, c.total_order, c.snapshot) for c in reads} == {(None, 0, True)}
    assert len({c.commit_order for c in reads}) == 1
    assert [shop.differing(table) for table in TABLES[:2]] == [[], []]


def test_order_grows_strictly_in_every_partition(shop: Captured) -> None:
    before, ended = len(shop.changes), len(shop.transactions)
    with psycopg.connect(shop.dsn) as early, psycopg.connect(shop.dsn) as late:
        # Written first, committed last; and the other way round.
        early.execute("UPDATE orders SET status = 'early' WHERE id <= 5")
        late.execute("UPDATE orders SET status = 'late' WHERE id > 15")
        late.execute("INSERT INTO lines SELECT 30, i, 'x' FROM generate_series(1, 50) i")
        late.commit()
        early.execute("UPDATE orders SET status = 'early again' WHERE id <= 5")
        with early.cursor().copy("COPY lines FROM STDIN") as copy:
            for line in range(300):
                copy.write_row((40, line, "copied"))
    shop.execute("UPDATE orders SET customer = 9", "DELETE FROM lines WHERE order_id = 30")
    shop.await_stream()

    last: dict[tuple[str, int], tuple[int, int]] = {}
    streamed = shop.changes[before:]
    assert not any(change.snapshot for _, change in streamed)
    for record, change in streamed:
        place, order = (record.topic, record.partition), (change.commit_order, change.total_order)
        assert order > last.get(place, (0, 0))
        last[place] = order
    # Rows of one COPY share an LSN: only total_order tells them apart.
    copied = [c for _, c in streamed if c.table == "public.lines"]
    assert len({c.lsn for c in copied}) < len(copied)
    assert len({(c.commit_order, c.total_order) for _, c in streamed}) == len(streamed)
    counts = {end.transaction_id: sum(end.counts.values()) for end in shop.transactions[ended:]}
    for transaction in {c.transaction_id for _, c in streamed}:
        rows = [c for _, c in streamed if c.transaction_id == transaction]
        assert counts[str(transaction)] == len(rows)
        assert sorted(c.total_order for c in rows) == list(range(1, len(rows) + 1))
    assert [shop.differing(table) for table in TABLES[:2]] == [[], []]


@pytest.mark.matrix
def test_commits_follow_each_other(start: Start) -> None:
    shop = start(SHOP, TABLES)
    for status in ("a", "b", "c"):
        shop.execute(f"UPDATE orders SET status = '{status}' WHERE id = 1")
    shop.await_stream()
    ends = [end for end in shop.transactions if end.counts.keys() - {MESSAGES}]
    assert [end.commit_lsn for end in ends] == sorted({end.commit_lsn for end in ends})
    order = {c.transaction_id: c.commit_order for _, c in shop.changes if not c.snapshot}
    for earlier, later in pairwise(ends):
        assert earlier.commit_lsn <= order[later.transaction_id] < later.commit_lsn


def test_an_end_counts_rows_and_no_messages_of_others(shop: Captured) -> None:
    ended = len(shop.transactions)
    shop.execute("SELECT pg_logical_emit_message(true, 'anyone', 'anything')")
    shop.execute(
        "WITH told AS (SELECT pg_logical_emit_message(true, 'anyone', 'more')) "
        "UPDATE orders SET status = 'told' FROM told WHERE id = 1"
    )
    shop.await_stream()
    counts = [end.counts for end in shop.transactions[ended:]]
    assert {} in counts
    assert {name for each in counts for name in each} - {MESSAGES} == {"public.orders"}


def test_a_changed_key_is_a_delete_and_an_insert(shop: Captured) -> None:
    before = len(shop.changes)
    shop.execute("UPDATE orders SET id = 999 WHERE id = 20")
    shop.await_stream()
    found = [c for _, c in shop.changes[before:] if c.table == "public.orders"]
    old, new = sorted(found, key=lambda change: change.total_order)
    assert (old.operation, new.operation) == (Operation.DELETE, Operation.INSERT)
    assert old.transaction_id == new.transaction_id
    assert shop.differing("public.orders") == []


def test_truncate_is_not_lost(shop: Captured) -> None:
    shop.execute("INSERT INTO emptied VALUES (77, 1, 'gone')", "TRUNCATE emptied, emptied_too")
    shop.execute("INSERT INTO emptied VALUES (78, 1, 'stays')")
    shop.await_stream()
    (truncate,) = shop.of("public.emptied", Operation.TRUNCATE)
    assert (truncate.key, truncate.key_schema_id) == (None, None)
    assert shop.current("public.emptied").to_pylist() == [
        {"order_id": 78, "line": 1, "item": "stays"}
    ]
    assert shop.current("public.emptied_too").num_rows == 0
    assert shop.differing("public.emptied") == []


def test_a_null_is_not_the_default(shop: Captured) -> None:
    assert shop.differing("public.blanks") == []
    shop.execute(
        "INSERT INTO blanks VALUES (100, 1, NULL, NULL, NULL)",
        "UPDATE blanks SET note = NULL, updated_at = NULL WHERE id = 3",
        "DELETE FROM blanks WHERE id = 4",
    )
    shop.await_stream()
    rows = {row["id"]: row for row in shop.current("public.blanks").to_pylist()}
    assert [rows[100][name] for name in ("status", "note", "updated_at")] == [None, None, None]
    assert (rows[2]["status"], rows[3]["note"], rows[5]["note"]) == (None, None, "none")
    assert shop.differing("public.blanks") == []


def test_a_large_value_that_was_left_alone_stays(shop: Captured) -> None:
    shop.execute("UPDATE pages SET visits = 1")
    shop.execute("UPDATE pages SET visits = 2, body = 'short'", "INSERT INTO pages VALUES (2, 0)")
    shop.await_stream()
    first, second = shop.of("public.pages", Operation.UPDATE)
    # With an array, what its column cannot hold stays, too.
    large_ones = ["body", "raw", "doc", "digits", "tags", "numbers", "ids", "days", "_exact"]
    assert shop.row(first)["__unchanged"].to_pylist() == [large_ones]
    assert shop.row(second)["__unchanged"].to_pylist() == [large_ones[1:]]
    assert shop.differing("public.pages") == []


@pytest.mark.matrix
def test_columns_come_go_and_change(start: Start) -> None:
    shop = start(SHOP, TABLES)
    shop.execute("ALTER TABLE lines ADD amount numeric(12, 2) DEFAULT 1.5")
    shop.execute("INSERT INTO lines VALUES (50, 1, 'new', 2.25), (50, 2, 'new', NULL)")
    shop.execute("UPDATE lines SET amount = 3 WHERE order_id = 1")
    shop.execute("ALTER TABLE lines DROP item", "ALTER TABLE lines RENAME amount TO price")
    shop.execute("UPDATE lines SET price = price + 1")
    shop.await_stream()
    assert shop.rejected == []
    assert shop.differing("public.lines") == []
    newest = shop.row(shop.of("public.lines")[-1])
    assert newest.column_names == ["order_id", "line", "price"]


def test_a_table_without_primary_key_has_a_declared_one(shop: Captured) -> None:
    shop.execute(
        f"""UPDATE visits SET page = 'c' WHERE "{VISITOR}" = 1""",
        f"""DELETE FROM visits WHERE "{VISITOR}" = 2""",
    )
    shop.await_stream()
    assert shop.current("public.visits")["page"].to_pylist() == ["c"]
    assert shop.differing("public.visits") == []


@pytest.mark.matrix
def test_a_source_at_rest_keeps_no_wal(start: Start) -> None:
    shop = start(SHOP, TABLES)
    shop.execute("CREATE TABLE elsewhere AS SELECT repeat('x', 500) FROM generate_series(1, 9000)")
    name = replication_name(shop.settings.name, shop.source.name)
    with connected(shop.dsn) as connection:
        row = connection.execute("SELECT pg_current_wal_lsn()::text AS lsn").fetchone()
        assert row is not None
        written = lsn_from_text(str(row["lsn"]))
        connection.execute("SELECT pg_logical_emit_message(false, 'test', '')")

        def followed() -> bool:
            at = slot(connection, name)
            return at is not None and lsn_from_text(at.confirmed_lsn or "0/0") >= written

        until(followed, "the slot follows, though no captured table changes", deadline_s=60)
    shop.read()
    assert all(change.snapshot for _, change in shop.changes)
