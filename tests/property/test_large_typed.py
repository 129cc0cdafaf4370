"""Facts of a large transaction, brought in slices or by key, are those that come at once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from kernel import failpoints
from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.executor_tasks import Executors, Tasks, TasksHere
from lake.layout import Lake, changes_log
from lake.table_columns import CHANGES, TRANSACTIONS_TABLE
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.current.tables import CurrentTables
from pipeline.log import large_folds
from pipeline.log.large_folds import LogRows
from pipeline.typed.changes import TypedChanges
from pipeline.typed.columns import Visible, truncates_name
from tests.support.lake.folding import AT, SOURCE, TABLE, Done, apply, changes, registry
from tests.support.lake.one_transaction import one_transaction
from tests.support.services.tier import examples

TYPED = f"typed/{SOURCE}.{TABLE}"
END = 100_000
CHANGE = st.builds(
    Done,
    st.sampled_from("cuuuud"),
    st.integers(1, 4),
    st.sampled_from("ab"),
    st.sampled_from(["x", "y", None]),
    st.integers(1, 9),
)
BEFORE = [Done("c", i, part, f"old {i}{part}") for i in range(1, 5) for part in "ab"]
Fact = tuple[Any, ...]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def prepared(lake: Lake, done: Sequence[Done]) -> Mapping[str, TableAt]:
    """Fold rows that are there before, and log one transaction behind them."""
    tables = Tables()
    current = CurrentTables(lake, tables, registry())
    at = current.fold(SOURCE, TABLE, changes(BEFORE, first=1), Epoch(1))
    current.close()
    end = {"epoch": 2, "table": TRANSACTIONS_TABLE, "transaction_id": "1", "lsn": END}
    end |= {"counts": "{}", "committed_at": AT, "snapshot": False}
    rows = one_transaction(done, epoch=2)
    log = pa.concat_tables([rows, pa.Table.from_pylist([end], CHANGES)])
    ArrowWriter(tables).append(lake.path(changes_log(SOURCE)), log, Guard("log", Epoch(2)))
    return at


def brought(
    lake: Lake, at: Mapping[str, TableAt], *, most: int, part: int, tasks: Tasks | None = None
) -> list[Fact]:
    """Bring the typed table to the transaction, and return its facts in order."""
    done = attempted(lake, at, most=most, part=part, tasks=tasks)
    assert not done.failed, done.failed
    return facts(lake)


def attempted(
    lake: Lake, at: Mapping[str, TableAt], *, most: int, part: int, tasks: Tasks | None = None
) -> Attempts:
    typed = TypedChanges(
        lake,
        Tables(),
        registry(),
        most=most,
        slice_rows=part,
        executors=Executors(tasks=tasks),
    )
    visible = Visible(50, [(Epoch(2), END)])
    return typed.add(SOURCE, visible, Epoch(2), pending_from=2, snapshot_lsn=0, current=at)


def facts(lake: Lake) -> list[Fact]:
    rows = Tables().read(lake.path(TYPED))
    assert rows is not None
    names = ("_seq_hi", "_seq_lo", "id", "part", "name", "size", "_operation", "_epoch")
    return sorted(tuple(row[name] for name in names) for row in rows.to_pylist())


def possible(drawn: Sequence[Done]) -> list[Done]:
    """Turn changes into those that a database can make; one of a key that is there may move it."""
    there = {(change.id, change.part) for change in BEFORE}
    done: list[Done] = []
    for change in drawn:
        key = (change.id, change.part)
        if key not in there:
            done.append(replace(change, op="c", name=change.name or "new"))
            there.add(key)
        elif change.op == "c" and (free := (change.id + 4, change.part)) not in there:
            done += [Done("d", *key), replace(change, id=free[0])]
            there = (there - {key}) | {free}
        elif change.op == "d":
            done.append(change)
            there.remove(key)
        else:
            done.append(replace(change, op="u"))
    return done


@settings(max_examples=examples(4, matrix=25), phases=[Phase.explicit, Phase.generate])
@given(st.lists(CHANGE, min_size=7, max_size=30), st.booleans())
@example([Done("u", i, part, None, 7) for i in range(1, 5) for part in "ab"] * 2, False)
@example([Done("u", i % 4 + 1, "a", f"n{i}", i) for i in range(12)], False)
@example([Done("u", 1, "a", None, 7), Done("c", 1, "a", None), Done("u", 5, "a", None)] * 3, True)
def test_facts_in_parts_equal_those_at_once(drawn: list[Done], moving: bool) -> None:
    done = possible(drawn if moving else [replace(d, op=d.op.replace("c", "u")) for d in drawn])
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.at(Path(folder) / "one")
        at = prepared(lake, done)
        shutil.copytree(lake.root, Path(folder) / "other")
        shutil.copytree(lake.root, Path(folder) / "third")
        at_once = brought(lake, at, most=1_000, part=1_000)
        assert len(at_once) == len(done)
        third = Lake.at(Path(folder) / "third")
        assert brought(third, at, most=5, part=3, tasks=TasksHere()) == at_once
        names = [Tables().columns(each.path(TYPED), 0) for each in (lake, third)]
        assert names[0].equals(names[1])
        assert brought(Lake.at(Path(folder) / "other"), at, most=5, part=3) == at_once


def test_values_that_a_large_update_left_alone_are_read_in_one_pass(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the number of slices, what is stored is read once, and a crash loses nothing."""
    done = [Done("u", i, part, None, 7) for i in range(1, 5) for part in "ab"]
    at = prepared(lake, done)
    read: list[str] = []
    reading = Tables.read

    def counted(tables: Tables, path: str, **options: Any) -> pa.Table | None:
        read.append(path)
        return reading(tables, path, **options)

    monkeypatch.setattr(Tables, "read", counted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    failpoints.arm(failpoints.TYPED_AFTER_PART, hit=1)
    with pytest.raises(failpoints.Crash):
        brought(lake, at, most=5, part=2)
    assert 0 < len(facts(lake)) < len(done)
    read.clear()
    found = brought(lake, at, most=5, part=2)
    state = apply(apply({}, BEFORE), done)
    assert [fact[2:6] for fact in found] == [state[change.id, change.part] for change in done]
    assert not [path for path in read if "/current/" in path], "by no look-up of a slice"
    assert not list((tmp_path / "scratch").iterdir()), "the files go with the fold"


@pytest.mark.parametrize("tasks", [None, TasksHere()])
def test_a_table_of_which_nothing_but_a_truncate_came_does_not_stand_still(
    lake: Lake, tasks: Tasks | None
) -> None:
    """Where executors do everything, one row is large: a TRUNCATE has none of its table."""
    at = prepared(lake, [Done("t")])
    done = attempted(lake, at, most=0, part=3, tasks=tasks)
    assert not done.failed, done.failed
    assert list(done.done) == [truncates_name(SOURCE)]
    assert Tables().open(lake.path(TYPED)) is None


def test_wide_rows_become_facts_in_slices_and_no_value_is_read_to_find_a_truncate(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, sizes, read = 100_000, list[int](), LogRows.read

    def counted(rows: LogRows, columns: Sequence[str] | None = None) -> pa.Table:
        found = read(rows, columns)
        assert columns is None or "value" not in columns
        sizes.append(found.nbytes if columns is None else 0)
        return found

    for bound in ("LARGE_BYTES", "SLICE_BYTES"):
        monkeypatch.setattr(large_folds, bound, most)
    monkeypatch.setattr(LogRows, "read", counted)
    at = prepared(lake, [Done("u", 1 + i % 4, "a", f"{i:04} " * 1_280) for i in range(100)])
    assert len(brought(lake, at, most=1_000, part=1_000)) == 100
    assert (len(sizes) > 6, max(sizes) <= 1.5 * most, 0 in sizes) == (True, True, True)
