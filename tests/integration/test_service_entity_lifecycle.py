"""Entities whose streams are truncated, bounded, deleted or ended: snapshots follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from typer.testing import CliRunner

from apps.cli import build
from kernel.errors import InvalidRequest
from tests.support.services.http import service_in_thread

DECIDER = "from tests.support.store.deciding import counter\n\ncounters = counter(every=3)\n"


@pytest.fixture
def http(postgres_dsn: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A service with a counter that keeps a snapshot every three events; six were added."""
    (tmp_path / "deciders").mkdir()
    (tmp_path / "deciders" / "counters.py").write_text(DECIDER)
    with service_in_thread(postgres_dsn, workspace=tmp_path) as client:
        for by in (1, 2, 3, 4, 5, 6):
            add(client, by).raise_for_status()
        assert steps(client) == [1, 2, 3, 4, 5, 6]
        with psycopg.connect(postgres_dsn) as connection:
            kept = connection.execute("SELECT version FROM es.snapshots").fetchall()
        assert sorted(kept) == [(2,), (5,)]
        yield client


def add(http: httpx.Client, by: int, **headers: str) -> httpx.Response:
    return http.post("/v1/commands/counter/1/add", json={"by": by}, headers=headers)


def steps(http: httpx.Client) -> list[int] | None:
    """What the entity was counted up by, None when it is not there."""
    answer = http.get("/v1/entities/counter/1")
    assert answer.status_code in (200, 404), answer.text
    return answer.json()["state"]["steps"] if answer.status_code == 200 else None


def explained(http: httpx.Client, **query: int) -> list[tuple[int, list[int]]]:
    """Walk back through the pages: the version of each event, and what was added by then."""
    found: list[tuple[int, list[int]]] = []
    while query.get("version", 0) is not None:
        answer = http.get("/v1/entities/counter/1/explain", params={"limit": 2, **query})
        if answer.status_code == 404:
            return []
        page = answer.json()
        added: list[int] = page["before"]["steps"]
        here = []
        for step in page["events"]:
            added = [*added, *(c["to"] for c in step["changes"] if c["field"] != "/total")]
            here.append((step["event"]["version"], added))
        assert added == page["state"]["steps"]
        found, query = [*here, *found], {"version": page["earlier"]}
    return found


def bound(http: httpx.Client, **policy: int) -> None:
    http.put("/v1/streams/counter-1/metadata", json=policy).raise_for_status()


def test_a_truncated_stream_is_folded_from_its_new_beginning(http: httpx.Client) -> None:
    bound(http, truncate_before=2)
    assert steps(http) == [3, 4, 5, 6]
    assert add(http, 7).json()["version"] == 6
    assert steps(http) == [3, 4, 5, 6, 7]
    assert http.get("/v1/entities/counter/1", params={"version": 1}).status_code == 404
    middle = http.get("/v1/entities/counter/1", params={"version": 4}).json()
    assert (middle["version"], middle["state"]["steps"]) == (4, [3, 4, 5])
    assert explained(http, version=1) == []
    assert explained(http, version=4) == [(2, [3]), (3, [3, 4]), (4, [3, 4, 5])]
    bound(http, truncate_before=7)
    assert steps(http) is None
    assert add(http, 8).json()["version"] == 7
    assert steps(http) == [8]


@pytest.mark.matrix
def test_a_bounded_stream_is_folded_from_what_is_left(http: httpx.Client) -> None:
    bound(http, max_count=4)
    assert steps(http) == [3, 4, 5, 6]
    for by in (7, 8):
        assert add(http, by).status_code == 201
    assert steps(http) == [5, 6, 7, 8]
    assert explained(http)[0] == (4, [5])
    assert explained(http)[-1] == (7, [5, 6, 7, 8])


def test_a_deleted_entity_begins_again(http: httpx.Client) -> None:
    http.delete("/v1/streams/counter-1").raise_for_status()
    assert steps(http) is None
    assert explained(http) == []
    assert add(http, -1).status_code == 422
    again = add(http, 9)
    assert (again.status_code, again.json()["version"]) == (201, 6)
    assert steps(http) == [9]
    assert explained(http) == [(6, [9])]


def test_a_tombstone_takes_no_commands(http: httpx.Client) -> None:
    http.delete("/v1/streams/counter-1", params={"tombstone": "true"}).raise_for_status()
    shown = [http.get(f"/v1/entities/counter/1{of}") for of in ("", "/explain")]
    for answer in (add(http, 1), *shown):
        assert (answer.status_code, answer.json()["type"]) == (410, "stream-gone")


@pytest.mark.matrix
def test_a_key_is_known_after_its_stream_was_deleted(http: httpx.Client) -> None:
    assert add(http, 7, **{"idempotency-key": "k"}).status_code == 201
    http.delete("/v1/streams/counter-1").raise_for_status()
    again = add(http, 7, **{"idempotency-key": "k"})
    assert (again.status_code, again.json()["version"]) == (200, 6)
    assert steps(http) is None


def test_a_repeat_tells_all_events_of_its_command_whatever_is_hidden(http: httpx.Client) -> None:
    bound(http, max_count=1)
    three = {"json": {"by": 7, "times": 3}, "headers": {"idempotency-key": "k"}}
    first = http.post("/v1/commands/counter/1/add", **three)
    told = first.json()
    assert (first.status_code, told["version"]) == (201, 8)
    assert [event["version"] for event in told["events"]] == [6, 7, 8]
    for hide in (
        lambda: bound(http, truncate_before=8),
        lambda: http.delete("/v1/streams/counter-1").raise_for_status(),
    ):
        hide()
        again = http.post("/v1/commands/counter/1/add", **three)
        assert (again.status_code, again.json(), again.headers["etag"]) == (200, told, '"8"')


def test_the_command_tells_what_each_event_changed(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVICE_URL", str(http.base_url))
    entity = ["entity", "counter", "1"]
    told = CliRunner().invoke(build(), [*entity, "--explain", "--limit", "2"]).output
    assert told.startswith("counter-1 at version 5, position 6\n{")
    assert "\n4 added, recorded at " in told
    assert told.endswith(
        "\n  /total: 15 -> 21\n  /steps/5: not there -> 6\n"
        "\nwhat came before: --explain --version 3\n"
    )
    before = CliRunner().invoke(build(), [*entity, "--explain", "--version", "0", "--json"])
    assert json.loads(before.output)["events"][0]["changes"][0] == {
        "field": "/total",
        "from": 0,
        "to": 1,
    }
    alone = CliRunner().invoke(build(), [*entity, "--limit", "2"])
    assert isinstance(alone.exception, InvalidRequest)
