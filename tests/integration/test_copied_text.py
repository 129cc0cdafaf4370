"""Text that begins with U+FEFF is copied whole: it is a value, not a mark of an encoding."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc.database import connected
from cdc.options import PLAIN, TableOptions
from cdc.snapshot import copying

MARK = "\ufeff"


@pytest.mark.parametrize("options", [PLAIN, TableOptions(mask=("note",))], ids=["plain", "veiled"])
def test_a_block_keeps_the_mark_that_its_first_value_begins_with(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, options: TableOptions
) -> None:
    monkeypatch.setattr(copying, "BLOCK_BYTES", 1)
    with connected(postgres_dsn) as connection, connection.transaction():
        connection.execute('CREATE TABLE marked ("the name" text, n int PRIMARY KEY, note text)')
        for n, value in enumerate([MARK, f"{MARK}a", "", None, 'q"x', f"b{MARK}"]):
            connection.execute("INSERT INTO marked VALUES (%s, %s, %s)", (value, n, MARK))
        columns = copying.copied_columns(connection, "public.marked", options)
        copying.set_up(connection)
        blocks = list(copying.read(connection, "public.marked", columns, options=options))
    assert len(blocks) == 6
    rows = sorted(pa.concat_tables(blocks).to_pylist(), key=lambda row: int(row["n"]))
    assert [row["the name"] for row in rows] == [MARK, f"{MARK}a", "", None, 'q"x', f"b{MARK}"]
    assert {row["note"] for row in rows} == {MARK if options is PLAIN else "********"}


def test_a_table_of_one_column_keeps_its_nulls(postgres_dsn: str) -> None:
    with connected(postgres_dsn) as connection, connection.transaction():
        connection.execute("CREATE TABLE single (a text)")
        connection.execute("INSERT INTO single VALUES (NULL), (''), (%s)", (MARK,))
        columns = copying.copied_columns(connection, "public.single")
        copying.set_up(connection)
        (block,) = copying.read(connection, "public.single", columns)
    assert block["a"].to_pylist() == [None, "", MARK]
