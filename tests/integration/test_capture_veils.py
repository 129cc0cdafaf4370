"""Columns that are excluded, masked or hashed: what arrives, and what never leaves the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from apps.settings import Settings
from cdc.connectors import replication_name
from cdc.database import connected
from cdc.masking import hand_salt, select_list
from cdc.options import MASK, TableOptions
from cdc.replication import published
from kernel.errors import Misconfigured
from schemas.records import Operation
from tests.support.sources.capturing import SALT, Captured, prepare

# Beyond 2,000 bytes PostgreSQL stores a value out of line: an UPDATE that leaves it alone does not
# send it, and what is hashed then must not be the placeholder.
LARGE = "é" * 6000
TABLES = """
CREATE TABLE people (id int PRIMARY KEY, email text, phone varchar(5), card text, note text);
ALTER TABLE people ALTER email SET STORAGE EXTERNAL;
ALTER TABLE people REPLICA IDENTITY FULL;
INSERT INTO people VALUES (1, 'zoë@plain', '55501', 'CARD-1', 'n'), (2, NULL, NULL, NULL, NULL);
CREATE TABLE kept (id int PRIMARY KEY, secret text, note text);
INSERT INTO kept VALUES (1, 'WITHHELD-1', 'n');
"""
OPTIONS = {
    "people": TableOptions(exclude=("card",), mask=("phone",), hash=("email",)),
    "kept": TableOptions(exclude=("secret",), withhold=True),
}
COLUMNS = ("id", "email", "phone", "card", "note")


@pytest.fixture
def veiled(stack: Settings, new_source: Callable[[str], str]) -> Iterator[Captured]:
    captured = prepare(stack, new_source(TABLES), ("people", "kept"), {}, OPTIONS)
    try:
        yield captured
    finally:
        captured.remove()


def test_veiled_values_are_the_same_by_snapshot_stream_and_select(veiled: Captured) -> None:
    veiled.start()
    veiled.await_snapshot()
    with psycopg.connect(veiled.dsn) as connection:
        connection.execute("INSERT INTO people VALUES (3, %s, '12', 'CARD-3', 'x')", (LARGE,))
        connection.execute("INSERT INTO kept VALUES (2, 'WITHHELD-2', 'm')")
    veiled.execute("UPDATE people SET note = 'y', card = 'CARD-4' WHERE id = 3")
    veiled.execute("UPDATE people SET id = 4 WHERE id = 1")
    veiled.execute("UPDATE kept SET note = 'z', secret = 'WITHHELD-3' WHERE id = 2")
    veiled.execute("DELETE FROM people WHERE id = 2", "DELETE FROM kept WHERE id = 1")
    veiled.await_stream()

    options = veiled.source.options_of("public.people")
    with connected(veiled.dsn) as connection:
        hand_salt(connection, options, SALT)
        query = sql.SQL("SELECT {} FROM people ORDER BY id").format(
            select_list("public.people", COLUMNS, options)
        )
        expected = connection.execute(query).fetchall()
    found = veiled.current("public.people").sort_by("id").to_pylist()
    assert found == expected
    assert [row["phone"] for row in found] == [MASK, MASK]
    assert veiled.current("public.kept").to_pylist() == [{"id": 2, "note": "z"}]
    assert len(veiled.of("public.people", Operation.READ)) == 2

    # Not in the rows, not in the images before a change, not in keys.
    sent = b"".join((r.value or b"") + (r.key or b"") for r, _ in veiled.changes)
    assert "é".encode() * 50 not in sent
    for secret in (b"CARD-", b"zo\xc3\xab@plain", b"55501", b"WITHHELD"):
        assert secret not in sent


@pytest.mark.matrix
def test_what_is_withheld_is_not_published(veiled: Captured) -> None:
    veiled.start()
    name = replication_name(veiled.settings.name, veiled.source.name)
    with connected(veiled.dsn) as connection:
        found = published(connection, name)
        assert found == {"public.people": None, "public.kept": ("id", "note")}


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (TableOptions(exclude=("id",)), "id: it is part of the key"),
        (TableOptions(mask=("id",)), "id: it is part of the key"),
        (TableOptions(hash=("nothing",)), "nothing: no such column"),
        (TableOptions(hash=("total",)), "total: hash does not work on numeric"),
        (TableOptions(mask=("tags",)), r"tags: mask does not work on text\[\]"),
        (TableOptions(hash=("code",)), r"a hash has 64 characters, varchar\(8\) would cut it"),
        (TableOptions(hash=("note",)), "REPLICA IDENTITY FULL, for large values"),
    ],
)
def test_what_cannot_be_veiled_is_refused(
    options: TableOptions, cause: str, stack: Settings, new_source: Callable[[str], str]
) -> None:
    dsn = new_source(
        "CREATE TABLE t (id int PRIMARY KEY, total numeric, tags text[],"
        " code varchar(8), note text)"
    )
    captured = prepare(stack, dsn, ("t",), {}, {"t": options})
    try:
        with pytest.raises(Misconfigured, match=cause):
            captured.start()
    finally:
        captured.remove()


def test_withholding_and_full_identity_do_not_go_together(
    stack: Settings, new_source: Callable[[str], str]
) -> None:
    dsn = new_source(
        "CREATE TABLE t (id int PRIMARY KEY, a text); ALTER TABLE t REPLICA IDENTITY FULL"
    )
    options = {"t": TableOptions(exclude=("a",), withhold=True)}
    captured = prepare(stack, dsn, ("t",), {}, options)
    try:
        with pytest.raises(Misconfigured, match="PostgreSQL would refuse each UPDATE"):
            captured.start()
    finally:
        captured.remove()
