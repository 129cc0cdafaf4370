"""Projections through the client: rows with their epoch, one's own write, changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kernel.positions import Epoch
from lake.layout import Lake
from lake.writer import UPSERT, Guard, with_op
from penstock_client import (
    BeyondHead,
    Conflict,
    NewEvent,
    NotFound,
    Penstock,
    RowChange,
    RowsCaughtUp,
    RowsReset,
)
from penstock_client._sync import projections
from penstock_client.projections import key_text
from penstock_client.testing import FakePenstock
from replay.generations import live_app
from tests.support.lake.handmade import HandMade, words
from tests.support.lake.swaps import swap
from tests.support.services.http import service_in_thread

ROWS = [(number, f"w{number}") for number in range(5)]


class RealService:
    def __init__(self, client: Penstock, made: HandMade, dsn: str) -> None:
        self.client, self._made = client, made
        with psycopg.connect(dsn) as connection:
            row = connection.execute("SELECT store_id::text FROM es.store").fetchone()
        assert row is not None
        self._store = row[0]

    def put(self, *rows: tuple[int, str], head: int = 0) -> None:
        epoch = self._made.epoch(head=head, store=self._store)
        app, path = live_app("report", 1), self._made.lake.path("projection/report")
        merged = with_op(words(*rows, epoch=epoch), UPSERT)
        version = self._made.writer.merge(path, merged, Guard(app, Epoch(epoch)), keys=["id"])
        self._made.note(app, {"projection/report": version}, epoch)

    def swap(self, *rows: tuple[int, str]) -> None:
        epoch = self._made.next_epoch - 1
        self._made.build("report", words(*rows, epoch=epoch), epoch)
        swap(self._made.site, "report", lambda replay: replay)


class FakeService:
    def __init__(self) -> None:
        self._fake = FakePenstock()
        self.client = self._fake.client()
        self._rows: dict[int, dict[str, Any]] = {}

    def put(self, *rows: tuple[int, str], head: int = 0) -> None:
        self._rows |= {number: {"id": number, "word": word} for number, word in rows}
        self._fake.put_rows("report", key=["id"], rows=self._rows.values())


@pytest.fixture
def real(postgres_dsn: str, tmp_path: Path) -> Iterator[RealService]:
    made = HandMade(Lake.at(tmp_path / "lake"))
    made.deploy("report")
    options = {"lake": made.lake.root, "workspace": tmp_path}
    with (
        service_in_thread(postgres_dsn, **options) as http,
        Penstock(str(http.base_url)) as client,
    ):
        yield RealService(client, made, postgres_dsn)


@pytest.fixture(params=["real", "fake"])
def service(request: pytest.FixtureRequest) -> Iterator[RealService | FakeService]:
    if request.param == "real":
        yield request.getfixturevalue("real")
    else:
        fake = FakeService()
        with fake.client:
            yield fake


def test_rows_are_read_by_key_and_all_of_them(service: RealService | FakeService) -> None:
    service.put(*ROWS)
    report = service.client.projection("report")
    first = report.row(3)
    assert (first.row, first.applied) == ({"id": 3, "word": "w3"}, None)
    assert report.row({"id": 4}).row == {"id": 4, "word": "w4"}
    assert report.row(9).row is None
    assert [row["id"] for row in report.rows()] == [0, 1, 2, 3, 4]
    none = report.page(keys=[])
    assert (none.rows, none.next_after, none.epoch) == ((), None, first.epoch)
    page = report.page(limit=2)
    assert ([row["id"] for row in page.rows], page.key) == ([0, 1], ("id",))
    assert [row["id"] for row in report.page(after=page.next_after, limit=9).rows] == [2, 3, 4]
    service.put((3, "changed"))
    assert report.row(3).row == {"id": 3, "word": "changed"}
    assert report.row(3).epoch == first.epoch + 1
    assert report.show()["key"] == ["id"]
    with pytest.raises(NotFound):
        service.client.projection("other").row(1)
    with pytest.raises(NotFound):
        report.row(1, epoch=99)


def test_pages_of_several_states_are_refused(
    real: RealService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections, "ROWS_OF_A_PAGE", 2)
    real.put(*ROWS)
    rows = real.client.projection("report").rows()
    assert [next(rows)["id"] for _ in range(3)] == [0, 1, 2]
    real.put((4, "of a later epoch"))
    assert [row["word"] for row in rows] == ["w3", "w4"]
    rows = real.client.projection("report").rows()
    assert [next(rows)["id"] for _ in range(2)] == [0, 1]
    real.swap((0, "x"), (9, "y"))
    with pytest.raises(Conflict, match="are those of version"):
        next(rows)


def test_ones_own_write_is_waited_for(real: RealService) -> None:
    position = real.client.append("order-1", NewEvent(type="placed", data={"n": 1})).last_position
    real.put((1, "before"))
    report = real.client.projection("report")
    assert report.row(1, after_position=position).applied is False
    real.put((1, "after"), head=position)
    found = report.row(1, after_position=position, wait_s=20)
    assert (found.applied, found.row) == (True, {"id": 1, "word": "after"})
    with pytest.raises(BeyondHead):
        report.row(1, after_position=position + 1)


def test_changes_are_folded_and_gone_on_with(real: RealService) -> None:
    real.put(*ROWS)
    rows: dict[Any, Any] = {}

    def fold(after: str | None, count: int) -> str:
        with real.client.projection("report").changes(after=after) as feed:
            for item in feed:
                match item:
                    case RowChange():
                        assert rows.get(item.key["id"]) == item.old
                        rows[item.key["id"]] = item.new
                    case RowsCaughtUp():
                        assert feed.place == item.place
                        if len(rows) == count:
                            return item.place
                    case RowsReset():
                        rows.clear()
        raise AssertionError("it has no end")

    place = fold(None, 5)
    real.put((5, "five"))
    fold(place, 6)
    assert rows == {n: {"id": n, "word": w} for n, w in [*ROWS, (5, "five")]}


@pytest.mark.parametrize(
    ("key", "text"),
    [("UA", "UA"), (5, "5"), (True, "true"), ({"a": 1, "b": "x"}, '{"a":1,"b":"x"}')],
)
def test_keys_are_written_as_the_service_reads_them(key: object, text: str) -> None:
    assert key_text(key) == text
