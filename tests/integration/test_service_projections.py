"""Projections, tables and epochs over HTTP: rows with their epoch, changes that can be resumed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from deltalake import DeltaTable

from lake.layout import Lake
from lake.writer import UPSERT, Guard, with_op
from projections.run.catalog import DROPPED
from replay.generations import live_app
from service.openapi import ANSWERS
from tests.support.lake.handmade import HandMade, words
from tests.support.lake.swaps import swap
from tests.support.services.http import service_in_thread

REPORT = "/v1/projections/report"
NEWEST = {"cache-control": "no-cache"}


class Served:
    """A service, and the lake that it reads."""

    def __init__(self, http: httpx.Client, made: HandMade, store: str) -> None:
        self.http, self.made, self.store = http, made, store

    def epoch(self, *rows: tuple[int, str], head: int = 0) -> int:
        """Commit an epoch that has the events up to `head`, and merge rows of it."""
        made = self.made
        epoch = made.epoch(head=head, store=self.store)
        app = live_app("report", 1)
        version = made.writer.merge(
            made.lake.path("projection/report"),
            with_op(words(*rows, epoch=epoch), UPSERT),
            Guard(app, epoch),
            keys=["id"],
        )
        made.note(app, {"projection/report": version}, epoch)
        return epoch

    def get(self, path: str, status: int = 200, **params: Any) -> Any:
        answer = self.http.get(path, params=params, headers=NEWEST)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
def served(postgres_dsn: str, tmp_path: Path) -> Iterator[Served]:
    made = HandMade(Lake.at(tmp_path / "lake"))
    made.deploy("report")
    options = {"lake": made.lake.root, "workspace": tmp_path, "heartbeat_s": 0.4}
    with service_in_thread(postgres_dsn, **options) as http:
        with psycopg.connect(postgres_dsn) as connection:
            row = connection.execute("SELECT store_id::text FROM es.store").fetchone()
        assert row is not None
        yield Served(http, made, row[0])


class Follower:
    """Reads a feed of changes as a browser does, and folds it."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.rows: dict[int, object] = {}
        self.last_id = ""
        self.heard: list[str] = []

    def until(self, event: str) -> dict[str, Any]:
        """Take messages up to one of this kind."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if line.startswith(":"):
                self.heard.append(line)
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                data, kind = json.loads(fields["data"]), fields.get("event", "change")
                self.last_id = fields.get("id", self.last_id)
                self.heard.append(kind)
                fields = {}
                if kind == "reset":
                    self.rows.clear()
                elif kind == "change":
                    self._fold(data)
                if kind == event:
                    return dict(data)
        raise AssertionError(f"the feed ended before {event}: {self.heard}")

    def _fold(self, change: dict[str, Any]) -> None:
        key = change["key"]["id"]
        assert self.rows.get(key) == change["old"]
        if change["new"] is None:
            del self.rows[key]
        else:
            self.rows[key] = change["new"]


@contextmanager
def following(served: Served, *, last_id: str | None = None, **params: str) -> Iterator[Follower]:
    headers = {} if last_id is None else {"last-event-id": last_id}
    with served.http.stream("GET", f"{REPORT}/changes", params=params, headers=headers) as answer:
        assert answer.status_code == 200
        yield Follower(answer.iter_lines())


def test_rows_come_with_the_epoch_that_they_belong_to(served: Served) -> None:
    assert served.get(f"{REPORT}/rows", 404)["type"] == "not-found"
    first = served.epoch((1, "one"), (2, "two"))
    answer = served.http.get(f"{REPORT}/rows", params={"key": 1}, headers=NEWEST)
    assert answer.headers["penstock-epoch"] == str(first)
    assert answer.headers["etag"]
    assert answer.json() == {
        "projection": "report",
        "generation": 1,
        "status": "live",
        "epoch": first,
        "version": 1,
        "key": ["id"],
        "rows": [{"id": 1, "word": "one"}],
        "next_after": None,
    }
    unmoved = NEWEST | {"if-none-match": answer.headers["etag"]}
    same = served.http.get(f"{REPORT}/rows", params={"key": 1}, headers=unmoved)
    assert (same.status_code, same.content) == (304, b"")
    second = served.epoch((1, "changed"))
    moved = served.http.get(f"{REPORT}/rows", params={"key": 1}, headers=unmoved)
    assert (moved.status_code, moved.json()["epoch"]) == (200, second)
    found = served.get(f"{REPORT}/rows", key=["1", '{"id": 2}', "3"])
    assert found["epoch"] == second
    assert sorted(row["word"] for row in found["rows"]) == ["changed", "two"]
    before = served.get(f"{REPORT}/rows", epoch=first, key="1")
    assert (before["epoch"], before["rows"]) == (first, [{"id": 1, "word": "one"}])


def test_pages_go_through_all_rows(served: Served) -> None:
    served.epoch(*((i, f"w{i}") for i in range(7)))
    after, found = None, []
    while True:
        page = served.get(f"{REPORT}/rows", limit=3, **({} if after is None else {"after": after}))
        found += [row["id"] for row in page["rows"]]
        after = page["next_after"]
        if after is None:
            break
    assert found == list(range(7))


def test_an_answer_has_no_more_bytes_than_a_page(served: Served) -> None:
    served.epoch(*((i, f"{i}" * 1_500_000) for i in range(4)))
    problem = served.get(f"{REPORT}/rows", 422, key=["0", "1", "2", "3"])
    assert (problem["type"], problem["remedy"]) == (
        "invalid-request",
        "Ask for fewer keys at a time.",
    )
    assert len(served.get(f"{REPORT}/rows", key=["0", "1"])["rows"]) == 2
    page = served.get(f"{REPORT}/rows")
    assert (len(page["rows"]), page["next_after"]) == (3, '{"id":2}')


def test_a_reader_waits_for_what_it_wrote(served: Served) -> None:
    """`Prefer: wait` is answered as soon as the projection has the event, or after the time."""
    body = {"events": [{"type": "placed", "data": {"total": 1}}]}
    position = served.http.post("/v1/streams/order-1", json=body).json()["last_position"]
    served.epoch((1, "before"))
    asked = {"key": "1", "after_position": position}
    late = served.http.get(f"{REPORT}/rows", params=asked, headers={"prefer": "wait=1"})
    assert late.json()["applied"] is False
    assert "preference-applied" not in late.headers
    assert late.json()["rows"] == [{"id": 1, "word": "before"}]
    answers: list[httpx.Response] = []

    def ask() -> None:
        prefer = [("prefer", "respond-async"), ("prefer", "wait=20")]
        answers.append(served.http.get(f"{REPORT}/rows", params=asked, headers=prefer))

    waiting = threading.Thread(target=ask)
    waiting.start()
    epoch = served.epoch((1, "after"), head=position)
    waiting.join(25)
    (answer,) = answers
    assert answer.headers["preference-applied"] == "wait=20"
    assert answer.json()["applied"] is True
    assert (answer.json()["epoch"], answer.json()["rows"][0]["word"]) == (epoch, "after")
    assert served.get(f"{REPORT}/rows", 409, after_position=position + 1)["type"] == "beyond-head"


MISTAKES: list[tuple[dict[str, Any], int, str]] = [
    ({"key": "one"}, 422, "invalid-request"),
    ({"key": "1", "after": "2"}, 422, "invalid-request"),
    ({"limit": "1001"}, 422, "invalid-request"),
    ({"key": ["1", "2"], "limit": "1"}, 422, "invalid-request"),
    ({"epoch": "99"}, 404, "not-found"),
    ({"epoch": "1", "after_position": "0"}, 422, "invalid-request"),
    ({"keys": "1"}, 400, "unknown-parameter"),
]


def test_mistakes_are_told_with_a_remedy(served: Served) -> None:
    served.epoch((1, "one"))
    for params, status, kind in MISTAKES:
        problem = served.get(f"{REPORT}/rows", status, **params)
        assert (problem["type"], bool(problem["remedy"])) == (kind, True), params


def test_the_feed_tells_each_change_and_can_be_resumed(served: Served) -> None:
    served.epoch((1, "one"), (2, "two"), (3, "three"))
    with following(served) as feed:
        feed.until("change")
        broken_off = feed.last_id
        feed.until("caught-up")
        assert len(feed.rows) == 3
        epoch = served.epoch((2, "changed"), (4, "four"))
        assert feed.until("change")["epoch"] == epoch
        amid = feed.last_id
        rows_amid = dict(feed.rows)
        feed.until("change")
        served.epoch()
        assert feed.until("checkpoint") == {"epoch": epoch + 1}
        whole = feed.last_id
        wanted = dict(feed.rows)
    served.epoch((5, "five"))
    for last_id, known in ((amid, rows_amid), (whole, wanted)):
        with following(served, last_id=last_id) as again:
            again.rows = dict(known)
            again.until("caught-up")
            assert "reset" not in again.heard
            assert again.rows == wanted | {5: {"id": 5, "word": "five"}}
    with following(served, last_id="", after=whole) as again:
        again.rows = dict(wanted)
        again.until("caught-up")
        assert "reset" not in again.heard
    with following(served, last_id=broken_off) as again:
        again.rows = {1: {"id": 1, "word": "one"}}
        again.until("caught-up")
        assert again.rows == wanted | {5: {"id": 5, "word": "five"}}


@pytest.mark.matrix
def test_the_feed_goes_on_after_a_swap_and_resets_where_differences_are_gone(
    served: Served,
) -> None:
    served.epoch((1, "one"), (2, "two"))
    with following(served, after="end") as feed:
        feed.until("caught-up")
        assert feed.rows == {}
        last_id, feed.rows = (
            feed.last_id,
            {1: {"id": 1, "word": "one"}, 2: {"id": 2, "word": "two"}},
        )
        made = served.made
        made.build("report", words((2, "second"), (3, "third"), epoch=1), 1)
        swap(made.site, "report", lambda replay: replay)
        for _ in range(3):
            feed.until("change")
        wanted = {2: {"id": 2, "word": "second"}, 3: {"id": 3, "word": "third"}}
        assert feed.rows == wanted
    # A step that nobody has taken: one that a reader still takes is shared, whatever a vacuum took.
    made.run("report", words((2, "second"), (3, "third"), epoch=2), made.epoch(), generation=2)
    table = DeltaTable(served.made.lake.path("projection/report"))
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    for lost in (last_id, f"00000000{last_id[8:]}"):
        with following(served, last_id=lost) as again:
            again.rows = {1: {"id": 1, "word": "one"}}
            again.until("caught-up")
            assert "reset" in again.heard
            assert again.rows == wanted


@pytest.mark.matrix
def test_the_feed_of_a_dropped_projection_ends_and_says_why(served: Served) -> None:
    served.epoch((1, "one"))
    with following(served) as feed:
        feed.until("caught-up")
        served.made.deployed.set_status("report", DROPPED)
        assert feed.until("failed")["type"] == "not-found"
    assert served.get(f"{REPORT}/changes", 404)["type"] == "not-found"
    assert served.get(f"{REPORT}/changes?after=nonsense", 404)["type"] == "not-found"


def test_lists_and_single_things_are_those_of_the_command_line(served: Served) -> None:
    epoch = served.epoch((1, "one"))
    (listed,) = served.get("/v1/projections")["projections"]
    assert (listed["name"], listed["epoch"], listed["behind"]) == ("report", epoch, 0)
    shown = served.get(REPORT)
    assert (shown["key"], shown["rows"], shown["error"]) == (["id"], 1, None)
    names = {each["name"] for each in served.get("/v1/tables")["tables"]}
    assert names == {"catalog", "epochs", "projection/report"}
    table = served.get("/v1/tables/projection/report")
    assert table == served.get("/v1/tables/report")
    assert table["commits"][0]["version"] == table["version"] == 1
    assert served.get("/v1/tables/reprot", 404)["detail"].endswith("projection/report?")
    assert served.get("/v1/tables/projection%2F..%2F..%2Fx", 422)["type"] == "invalid-request"
    served.epoch((2, "two"))
    newest = served.get("/v1/epochs", limit=1)
    assert ([e["epoch"] for e in newest["epochs"]], newest["next_before"]) == ([2], 2)
    older = served.get("/v1/epochs", before=2)
    assert ([e["epoch"] for e in older["epochs"]], older["next_before"]) == ([1], None)
    assert served.get("/v1/epochs/1") == older["epochs"][0]
    assert served.get("/v1/epochs/9", 404)["type"] == "not-found"


def test_a_service_without_a_lake_or_token_answers_as_other_routes(
    postgres_dsn: str, tmp_path: Path
) -> None:
    options = {"lake": str(tmp_path / "none"), "workspace": tmp_path, "token": "secret"}
    with service_in_thread(postgres_dsn, **options) as http:
        assert http.get("/v1/projections").json() == {"projections": []}
        assert http.get("/v1/tables").json() == {"tables": []}
        assert http.get("/v1/epochs").json() == {"epochs": [], "next_before": None}
        assert http.get(f"{REPORT}/rows").status_code == 404
        for route in ANSWERS:
            method, path = route.split()
            if method == "get" and ("projections" in path or "epochs" in path or "tables" in path):
                bare = httpx.get(f"{http.base_url}{path}", verify=False)
                assert bare.status_code == 401, path
