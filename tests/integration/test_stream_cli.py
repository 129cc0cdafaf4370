"""`penstock stream …` and reading commands against a running service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from apps.cli import build
from kernel.errors import Conflict, ContractViolation, InvalidRequest, NotFound, StreamGone
from tests.support.lake.archiving import into_the_log
from tests.support.services.http import service_in_thread


@pytest.fixture
def http(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn) as client:
        monkeypatch.setenv("PENSTOCK_SERVICE_URL", str(client.base_url))
        for first in range(0, 1_500, 750):
            events = [
                {"type": "placed", "data": {"n": n, "t": "\u2028\x85"}, "tags": [f"n:{n % 2}"]}
                for n in range(first, first + 750)
            ]
            assert client.post("/v1/streams/order-1", json={"events": events}).status_code == 201
        yield client


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build(), list(arguments))


def answered(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_what_a_stream_shows(http: httpx.Client) -> None:
    assert answered("stream", "show", "order-1")["truncate_before"] == 0
    answered("stream", "bound", "order-1", "--max-count", "30", "--max-age", "3600")
    cut = answered("stream", "truncate", "order-1", "--before", "1490")
    assert (cut["truncate_before"], cut["max_age_s"], cut["max_count"]) == (1490, 3600, 30)
    told = run("stream", "show", "order-1").output
    assert told == (
        "order-1: version 1499, shows versions from 1490, shows the last 3600 s, "
        "shows the newest 30\n"
    )
    free = answered("stream", "bound", "order-1")
    assert (free["truncate_before"], free["max_age_s"], free["max_count"]) == (1490, None, None)
    assert len(answered("read", "order-1", "--limit", "5000")["events"]) == 10
    back = run("stream", "truncate", "order-1", "--before", "3").exception
    assert isinstance(back, ContractViolation)


def test_deleting_wants_a_confirmation(http: httpx.Client) -> None:
    asked = run("stream", "delete", "order-1", "--tombstone")
    assert asked.exit_code == 3
    assert "order-1 would be gone for good" in asked.output
    assert http.get("/v1/streams/order-1").status_code == 200
    stale = run("stream", "delete", "order-1", "--expect", "7", "--yes")
    assert isinstance(stale.exception, Conflict)
    assert answered("stream", "delete", "order-1", "--expect", "1499", "--yes")["deleted"]
    assert isinstance(run("read", "order-1").exception, NotFound)
    assert answered("stream", "delete", "order-1", "--tombstone", "--yes")["tombstoned"]
    assert isinstance(run("read", "order-1").exception, StreamGone)
    assert run("stream", "show", "order-1").output.startswith("order-1: version 1499, gone for")


@pytest.mark.parametrize("suffix", ["ndjson", "avro"])
def test_a_stream_goes_out_and_into_another_store(
    suffix: str,
    http: httpx.Client,
    tmp_path: Path,
    new_database: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / f"order-1.{suffix}"
    assert answered("stream", "export", "order-1", "--file", str(file))["events"] == 1_500
    if suffix == "ndjson":
        assert run("stream", "export", "order-1").output == file.read_text()
        assert run("stream", "export", "order-1", "--file", "-").output == file.read_text()
    before = http.get("/v1/streams/order-1", params={"limit": 1_000}).json()["events"]
    with service_in_thread(new_database()) as other:
        monkeypatch.setenv("PENSTOCK_SERVICE_URL", str(other.base_url))
        assert answered("stream", "import", str(file))["appended"] == 1_500
        again = answered("stream", "import", str(file))
        assert (again["appended"], again["repeated"]) == (0, 1_500)
        after = other.get("/v1/streams/order-1", params={"limit": 1_000}).json()["events"]
        kept = ("id", "version", "type", "data", "metadata", "tags", "occurred_at")
        assert [[e[key] for key in kept] for e in after] == [
            [e[key] for key in kept] for e in before
        ]
        other.delete("/v1/streams/order-1")


def test_a_line_that_is_no_event_is_named(http: httpx.Client, tmp_path: Path) -> None:
    file = tmp_path / "broken.ndjson"
    file.write_text('{"type": "placed"\n')
    refused = run("stream", "import", str(file)).exception
    assert isinstance(refused, InvalidRequest)
    assert "broken.ndjson line 1" in refused.message


def test_following_ends_lines_at_line_feeds_alone(http: httpx.Client) -> None:
    done = run("tail", "--after", "1490", "--tag", "n:1", "--until-caught-up", "--json")
    documents = [json.loads(line) for line in done.output.split("\n") if line]
    assert [document["data"]["n"] for document in documents] == [1491, 1493, 1495, 1497, 1499]


def test_a_list_of_streams_and_categories(http: httpx.Client) -> None:
    placed = {"events": [{"type": "placed", "data": {"n": 0, "t": ""}}]}
    for name in ("order-10", "order-2", "cart-1"):
        assert http.post(f"/v1/streams/{name}", json=placed).status_code == 201
    assert http.delete("/v1/streams/order-2").status_code == 200
    everything = answered("stream", "list")
    shown = [
        (s["stream"], s["version"], s["position"], s["deleted"]) for s in everything["streams"]
    ]
    assert shown == [
        ("cart-1", 0, 1503, False),
        ("order-1", 1499, 1500, False),
        ("order-10", 0, 1501, False),
        ("order-2", 0, 1502, True),
    ]
    assert everything["next_after"] is None
    first = answered("stream", "list", "--category", "order", "--limit", "2")
    assert [s["stream"] for s in first["streams"]] == ["order-1", "order-10"]
    assert first["next_after"] == "order-10"
    assert "--after order-10" in run("stream", "list", "--prefix", "order", "--limit", "2").output
    rest = run("stream", "list", "--category", "order", "--after", "order-10").output
    assert rest.splitlines()[1].split()[0::4] == ["order-2", "deleted"]
    assert answered("stream", "list", "--category", "order", "--prefix", "cart")["streams"] == []
    counts = answered("stream", "categories")["categories"]
    # The deletion is recorded in the category of the stream.
    assert [(c["category"], c["streams"], c["position"]) for c in counts] == [
        ("cart", 1, 1503),
        ("order", 3, 1504),
    ]
    refused = http.get("/v1/streams", params={"limit": 1_001})
    assert (refused.status_code, refused.json()["type"]) == (422, "invalid-request")


def test_one_stream_is_followed_and_not_those_that_begin_so(http: httpx.Client) -> None:
    placed = {"events": [{"type": "placed", "data": {"n": 7, "t": ""}}]}
    assert http.post("/v1/streams/order-10", json=placed).status_code == 201
    done = run("tail", "--after", "1498", "--stream", "order-1", "--until-caught-up", "--json")
    documents = [json.loads(line) for line in done.output.split("\n") if line]
    assert [document["stream"] for document in documents] == ["order-1", "order-1"]
    for after in (0, 1490):
        page = http.get("/v1/events", params={"stream": "order-10", "after": after}).json()
        assert [event["position"] for event in page["events"]] == [1501]
    lines = http.get(
        "/v1/events", params={"stream": "order-10"}, headers={"accept": "application/x-ndjson"}
    )
    assert len(lines.text.splitlines()) == 1


@pytest.mark.matrix
def test_reading_more_than_a_page(http: httpx.Client) -> None:
    def versions(*arguments: str) -> list[int]:
        return [e["version"] for e in answered("read", *arguments)["events"]]

    everything = list(range(1_500))
    assert versions("order-1", "--limit", "5000") == everything
    assert versions("order-1", "--limit", "5000", "--backward") == everything[::-1]
    assert versions("order-1", "--limit", "1200", "--from-version", "5") == everything[5:1_205]
    assert versions("--limit", "1200", "--tag", "n:1") == everything[1::2]


@pytest.mark.matrix
def test_archiving_counts_first_and_says_what_stays(
    http: httpx.Client, postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_POSTGRES_DSN", postgres_dsn)
    monkeypatch.setenv("PENSTOCK_WORKSPACE", str(tmp_path))
    into_the_log(postgres_dsn, tmp_path / "lake", up_to=1_200)
    assert answered("stream", "archive", "--dry-run")["planned"] == 0
    answered("stream", "bound", "order-1", "--max-count", "100")
    would = run("stream", "archive", "--dry-run").output
    assert would == "1,400 events of 1 streams would leave PostgreSQL\n"
    done = run("stream", "archive")
    assert done.exit_code == 6, done.output
    assert "1,200 events of 1 streams are in the archive" in done.output
    assert "order-1 from version 1200: not in the log yet" in done.output
    assert "below 1200 in the archive" in run("stream", "show", "order-1").output
    into_the_log(postgres_dsn, tmp_path / "lake", after=1_200)
    assert answered("stream", "archive")["events"] == 200
    assert isinstance(run("stream", "archive", "--before", "3").exception, InvalidRequest)
