"""A write that ends in an error behind its commit was made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from kernel.errors import Unavailable
from kernel.positions import Epoch
from lake import ledger, writer
from lake.ledger import Ledger
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard

ROWS = pa.table({"n": [1, 2]})
GUARD = Guard(app_id="written", epoch=Epoch(7))


@pytest.fixture(autouse=True)
def by_deltalake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no commit be our own: those do not clean the log."""
    monkeypatch.setattr(writer, "appended", lambda *_, **__: False)


def gone(path: str) -> FileNotFoundError:
    """Return what deltalake raises of a file of the log that another writer removed first."""
    return FileNotFoundError(
        f"Object at location {path}/_delta_log/00000000000000000291.json not found"
    )


def ending_badly(path: str, *, committed: bool) -> Callable[..., None]:
    def write(table: DeltaTable, rows: pa.Table, **named: object) -> None:
        if committed:
            write_deltalake(DeltaTable(path), rows, **named)
        raise gone(path)

    return write


def test_p1_a_write_whose_cleaning_up_failed_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    tables = Tables(owned=lambda _: True)
    arrow = ArrowWriter(tables)
    tables.ensure(path, ROWS.schema)
    monkeypatch.setattr(writer, "write_deltalake", ending_badly(path, committed=True))

    assert arrow.append(path, ROWS, GUARD) == DeltaTable(path).version() == 1
    assert arrow.append(path, ROWS, GUARD) == 1
    assert tables.read(path) == ROWS


def test_a_write_that_was_not_made_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    arrow = ArrowWriter(Tables())
    Tables().ensure(path, ROWS.schema)
    monkeypatch.setattr(writer, "write_deltalake", ending_badly(path, committed=False))

    with pytest.raises(Unavailable, match="291"):
        arrow.append(path, ROWS, GUARD)
    assert DeltaTable(path).version() == 0


def test_a_rival_s_commit_under_the_same_guard_is_not_taken_for_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    arrow = ArrowWriter(Tables())
    Tables().ensure(path, ROWS.schema)
    rival = CommitProperties(app_transactions=[Transaction(GUARD.app_id, int(GUARD.epoch))])

    def overtaken(*_: object, **__: object) -> None:
        write_deltalake(DeltaTable(path), ROWS, mode="append", commit_properties=rival)
        raise gone(path)

    monkeypatch.setattr(writer, "write_deltalake", overtaken)
    with pytest.raises(Unavailable, match="291"):
        arrow.append(path, ROWS, GUARD)


def test_an_entry_of_a_book_whose_cleaning_up_failed_is_put_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "book")
    book = Ledger(path, Tables(), ROWS.schema, "book")
    monkeypatch.setattr(ledger, "write_deltalake", ending_badly(path, committed=True))

    assert book.put(lambda number: [{"n": number}]) == 1
    assert book.put(lambda number: [{"n": number}]) == 2
    rows = Tables().read(path)
    assert rows is not None
    assert sorted(rows["n"].to_pylist()) == [1, 2]
