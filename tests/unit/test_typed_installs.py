"""Rows of installs enter typed tables as reads, in their place between the changes."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.install_book import HEAL
from pipeline.installs.installation import generation_root
from pipeline.typed.columns import Visible
from pipeline.typed.installs import TypedInstalls, moments
from pipeline.typed.tables import TypedTables
from tests.support.lake.bulk import NAME, HandLake, some
from tests.support.lake.folding import SOURCE, TABLE, Done, registry

TYPED = f"typed/{SOURCE}.{TABLE}"


@pytest.fixture
def hand(lake: Lake) -> HandLake:
    found = HandLake(lake)
    found.copy(*some(1, 2, 3))
    found.source.commit(Done("u", 2, name="after"))
    found.epoch()
    return found


def bring(hand: HandLake) -> list[dict[str, object]]:
    """Append all installs, as derived tables do; return the typed rows in their order."""
    taken = {n: done.epoch for done in hand.manifest.between(0, 99) for n in done.installs}
    typed = TypedInstalls(hand.lake, hand.tables)
    for install in hand.book.installs():
        if install.number in taken:
            typed.add(install, taken[install.number])
            typed.add(install, taken[install.number])
    rows = Tables().read(hand.lake.path(TYPED))
    assert rows is not None
    order = [("_seq_hi", "ascending"), ("_seq_lo", "ascending"), ("id", "ascending")]
    return list(rows.sort_by(order).to_pylist())


def test_reads_come_once_with_the_place_and_the_epoch_of_their_install(hand: HandLake) -> None:
    first = bring(hand)

    assert [(r["id"], r["name"], r["_operation"]) for r in first] == [
        (1, "n", "r"),
        (2, "n", "r"),
        (3, "n", "r"),
    ]
    lsn = hand.book.installs()[0].lsn
    assert {(r["_seq_hi"], r["_seq_lo"], r["_lsn"], r["_epoch"]) for r in first} == {
        (lsn, -1, lsn, 1)
    }


def test_a_declared_column_is_the_event_time_of_what_was_read() -> None:
    moment = datetime(2013, 1, 1, 11, tzinfo=UTC)
    texts = pa.chunked_array([["2013-01-01T11:00:00", "2013-01-01T11:00:00+00:00", None]])
    plain = pa.chunked_array([pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us"))])
    aware = pa.chunked_array([pa.array([moment], pa.timestamp("us", "UTC"))])
    days = pa.chunked_array([pa.array([moment.date()], pa.date32())])
    assert moments(texts).to_pylist() == [moment, moment, None]
    assert moments(plain).to_pylist() == [moment, None]
    assert moments(aware).to_pylist() == [moment]
    assert moments(days).to_pylist() == [moment.replace(hour=0)]
    for strange in (["noon", None], [1, None]):
        assert moments(pa.chunked_array([strange])).to_pylist() == [None, None]


@pytest.mark.parametrize(("column", "warned"), [("gone", 0), ("name", 1), ("size", 1)])
def test_reads_whose_declared_column_says_no_time_have_the_moment_of_reading(
    hand: HandLake, column: str, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    (install,) = hand.book.installs()
    TypedInstalls(hand.lake, hand.tables).add(install, Epoch(1), event_time=column)
    rows = Tables().read(hand.lake.path(TYPED))
    assert rows is not None
    assert rows["_time"].to_pylist() == [install.read_at] * 3
    said = [record.getMessage() for record in caplog.records]
    # Once, not once per row.
    assert sum("is declared as event time" in each for each in said) == warned


def test_reads_stand_behind_the_transactions_that_they_have_seen(hand: HandLake) -> None:
    seen = hand.source.commit(Done("u", 1, name="seen"))
    hand.announce(hand.stage())
    later = hand.source.commit(Done("u", 1, name="later"))
    hand.epoch()
    (read,) = [r for r in bring(hand) if r["id"] == 1 and r["name"] == "seen"]

    orders = {
        row["transaction_id"]: (row["commit_order"], row["total_order"]) for row in hand.source.rows
    }
    place = (read["_seq_hi"], read["_seq_lo"])
    assert orders[str(seen)] < place < orders[str(later)]


@pytest.mark.parametrize("kind", ["all", HEAL])
def test_keys_that_an_install_took_away_come_as_deletes(hand: HandLake, kind: str) -> None:
    strange = pa.table({"id": [4], "part": ["a"], "name": ["strange"], "size": [1]}).cast(
        Tables().columns(hand.lake.path(NAME), 0)
    )
    write_deltalake(hand.lake.path(NAME), strange, mode="append")
    bounds = {"low": ("2", ""), "high": ("9", "")} if kind == HEAL else {}
    hand.announce(hand.stage(kind=kind, **bounds))
    hand.source.commit(Done("d", 3))
    hand.epoch()
    deletes = [r for r in bring(hand) if r["_operation"] == "d"]

    assert [(r["id"], r["part"], r["name"]) for r in deletes] == [(4, "a", None)]
    assert hand.state() == hand.source.state


def test_values_left_alone_by_the_first_changes_come_from_the_copied_rows(hand: HandLake) -> None:
    fresh = HandLake(Lake(f"{hand.lake.root}-other"))
    fresh.copy(*some(1, 2))
    fresh.source.commit(Done("u", 1, name=None, size=7))
    done = fresh.epoch()
    (install,) = fresh.book.installs()
    staged = (generation_root(fresh.lake, install), 2)

    TypedTables(fresh.lake, fresh.tables, registry()).add_changes(
        SOURCE,
        Visible(install.lsn, [(done.epoch, done.cuts[SOURCE])]),
        done.epoch,
        pending_from=1,
        snapshot_lsn=0,
        current={},
        staged={NAME: staged},
    )

    rows = Tables().read(fresh.lake.path(TYPED))
    assert rows is not None
    assert rows.select(["id", "name", "size"]).to_pylist() == [{"id": 1, "name": "n", "size": 7}]


def test_soft_deleted_rows_outlive_a_copy(lake: Lake) -> None:
    hand = HandLake(lake, soft=True)
    hand.copy(*some(1, 2, 3))
    hand.source.commit(Done("d", 2))
    hand.epoch()
    hand.announce(hand.stage())
    hand.source.commit(Done("d", 3))
    hand.epoch()

    rows = hand.tables.read(lake.path(NAME))
    assert rows is not None
    assert {r["id"]: r["_deleted"] for r in rows.to_pylist()} == {1: False, 2: True, 3: True}
    assert {r["id"]: r["name"] for r in rows.to_pylist()} == {1: "n", 2: "n", 3: "n"}
