"""Plans that are kept say what they would if they were made anew, whatever came since."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from projections.run import kept_statements
from projections.run.database import Database
from projections.run.kept_statements import PLANNED_ANEW

PAIRS = pa.schema([("id", pa.int64()), ("word", pa.string())])


@pytest.fixture
def database() -> Database:
    return Database()


def pairs(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "word": [f"w{each}" for each in ids]}, PAIRS)


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


def test_a_plan_does_not_depend_on_the_rows_that_there_were(database: Database) -> None:
    """DuckDB may leave out a filter, or all rows, by what it knows of a table when it plans."""
    database.make("numbers", {"id": "BIGINT", "word": "VARCHAR"})
    asked = (
        "SELECT id FROM numbers WHERE id > 50",
        "SELECT id FROM numbers WHERE word IS NOT NULL",
        "SELECT n.id FROM numbers n SEMI JOIN (SELECT max(id) AS id FROM numbers) g USING (id)",
    )
    seen: list[int] = []
    for number in range(2 * PLANNED_ANEW + 2):
        if number % 3 == 0:
            seen.append(number)
            database.insert("numbers", [pairs(number)])
        found = [ids(database.kept.rows(text)) for text in asked]
        assert found == [[each for each in seen if each > 50], seen, [max(seen)]]


def test_rows_behind_a_view_are_exchanged(database: Database) -> None:
    for number in range(6):
        database.views.put("arrived", pairs(*range(number)))
        assert ids(database.kept.rows("SELECT id FROM arrived")) == [*range(number)]
        assert database.views.rows_of("arrived").num_rows == number
    database.views.empty_all()
    assert ids(database.kept.rows("SELECT id FROM arrived")) == []


def test_a_view_whose_columns_change_is_read_anew(database: Database) -> None:
    text = "SELECT * FROM arrived"
    for rows in (pairs(1), pairs(2), pa.table({"id": ["three"]}), pairs(4), pairs(5)):
        database.views.put("arrived", rows)
        assert database.kept.rows(text).to_pylist() == rows.to_pylist()


def test_a_table_that_is_made_anew_is_read_anew(database: Database) -> None:
    for number in range(4):
        database.make("numbers", {"id": "BIGINT", "word": "VARCHAR"})
        assert database.insert("numbers", [pairs(number)]) == 1
        assert ids(database.kept.rows("SELECT id FROM numbers")) == [number]
    database.make("numbers", {"id": "VARCHAR", "word": "VARCHAR"})
    assert database.kept.rows("SELECT id FROM numbers").schema.field("id").type == pa.string()


def test_sessions_have_names_of_their_own(database: Database) -> None:
    first, second = Database(of=database), Database(of=database)
    for number in range(4):
        first.views.put("rows", pairs(number))
        second.views.put("rows", pa.table({"id": [f"s{number}"]}))
        assert first.kept.rows("FROM rows").to_pylist() == pairs(number).to_pylist()
        assert second.kept.rows("FROM rows")["id"].to_pylist() == [f"s{number}"]
    first.close()
    assert second.kept.rows("SELECT spark_upper(id) AS id FROM rows")["id"].to_pylist() == ["S3"]


def test_texts_that_never_come_again_are_forgotten(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_statements, "MOST_KEPT", 3)
    for number in range(10):
        for _ in range(3):
            assert database.kept.rows(f"SELECT {number} AS n")["n"].to_pylist() == [number]
    assert len(database.kept._used) <= 3


def test_an_error_leaves_the_plan(database: Database) -> None:
    text = "SELECT CASE WHEN id = 7 THEN error('seven') ELSE word END AS word FROM arrived"
    for number in (1, 2, 7, 3, 7, 4):
        database.views.put("arrived", pairs(number))
        if number == 7:
            with pytest.raises(duckdb.Error, match="seven"):
                database.kept.rows(text)
        else:
            assert database.kept.rows(text)["word"].to_pylist() == [f"w{number}"]


def test_an_error_of_a_plan_is_told_each_time(database: Database) -> None:
    """A pattern that stands in the text is read where it is planned, and not where it is run."""
    database.views.put("arrived", pairs(1))
    for _ in range(6):
        with pytest.raises(duckdb.Error, match="missing"):
            database.kept.rows("SELECT regexp_matches(word, '(') FROM arrived")
    database.kept.forget()
    assert ids(database.kept.rows("SELECT id FROM arrived")) == [1]


def test_an_emptied_table_gives_its_blocks_back(database: Database) -> None:
    database.make("numbers", {"id": "BIGINT", "word": "VARCHAR"})
    many, sizes = pairs(*range(50_000)), []
    for _ in range(40):
        database.insert("numbers", [many])
        (size,) = database.connection.execute(
            "SELECT sum(memory_usage_bytes) FROM duckdb_memory()"
        ).fetchone() or (0,)
        sizes.append(int(size))
        database.kept.execute("TRUNCATE numbers")
    # It is done now and then.
    assert max(sizes[20:]) <= max(sizes[:20]) * 1.2
