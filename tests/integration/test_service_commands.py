"""Commands and entities over HTTP, with the payments of the examples."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from schemas.registry import MemoryRegistry
from tests.architecture.tree import ROOT
from tests.support.services.http import service_in_thread

PAYMENTS = ROOT / "examples/payments"


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    """A strict service with the payments, all their schemas registered."""
    registry = MemoryRegistry()
    with service_in_thread(
        postgres_dsn, registry=registry, mode="strict", workspace=PAYMENTS
    ) as client:
        release(client)
        yield client


def release(http: httpx.Client) -> None:
    """Register every version of every schema, oldest first."""
    for folder in sorted((PAYMENTS / "schemas").iterdir()):
        for file in sorted(folder.glob("v*.avsc")):
            schema = json.loads(file.read_text())
            added = http.post("/v1/schemas", json={"subject": folder.name, "schema": schema})
            assert added.status_code == 201, added.text


def send(
    http: httpx.Client,
    command: str,
    data: Mapping[str, object] | None = None,
    *,
    id_: str = "1",
    **headers: str,
) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post(f"/v1/commands/account/{id_}/{command}", json=data or {}, headers=names)


def opened(http: httpx.Client, balance: str = "100.00", id_: str = "1") -> None:
    assert send(http, "open", {"owner": "Ada"}, id_=id_).status_code == 201
    assert send(http, "deposit", {"amount": balance}, id_=id_).status_code == 201


def state(http: httpx.Client, id_: str = "1", **query: Any) -> Any:
    answer = http.get(f"/v1/entities/account/{id_}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["state"]


def test_commands_become_events_and_events_state(http: httpx.Client) -> None:
    opened(http)
    paid = send(http, "pay", {"amount": "12.50", "payee": "shop"})
    assert paid.status_code == 201
    assert paid.headers["etag"] == '"2"'
    document = paid.json()
    assert (document["stream"], document["version"], document["position"]) == ("account-1", 2, 3)
    (event,) = document["events"]
    assert event == http.get(f"/v1/events/{event['id']}").json()
    assert event["type"] == "paid"
    assert event["data"]["amount"] == "12.50"
    assert event["tags"] == ["payee:shop"]
    answer = http.get("/v1/entities/account/1")
    assert answer.headers["etag"] == '"2"'
    entity = answer.json()
    assert (entity["version"], entity["position"], entity["decider_version"]) == (2, 3, 1)
    assert entity["state"]["balance"] == "87.50"


EXPLAIN = "/v1/entities/account/1/explain"


def test_an_entity_tells_which_event_changed_which_field(http: httpx.Client) -> None:
    opened(http)
    send(http, "pay", {"amount": "12.50", "payee": "shop"})
    whole = http.get(EXPLAIN, params={"limit": 500})
    assert whole.headers["etag"] == '"2"'
    found = whole.json()
    assert [step["event"]["version"] for step in found["events"]] == [0, 1, 2]
    assert found["state"] == state(http)
    assert ("balance" in found["before"], found["earlier"]) == (False, None)
    before = http.get(EXPLAIN, params={"version": 1, "limit": 1}).json()
    assert (before["version"], before["earlier"]) == (1, 0)
    (deposited,) = before["events"]
    assert deposited["event"]["type"] == "deposited"
    assert deposited["event"] == http.get(f"/v1/events/{deposited['event']['id']}").json()
    at = deposited["event"]["recorded_at"]
    assert http.get(EXPLAIN, params={"at": at}).json()["version"] == 1
    (last,) = http.get(EXPLAIN, params={"limit": 1}).json()["events"]
    changes = {change.pop("field"): change for change in last["changes"]}
    assert changes["/balance"] == {"from": "100.00", "to": "87.50"}
    assert "events" not in http.get("/v1/entities/account/1").json()
    for query, status in (
        ({"limit": 501}, 422),
        ({"limit": 0}, 422),
        ({"version": 3}, 404),
        ({"version": 1, "at": at}, 422),
        ({"at": "2013-01-01T00:00:00Z"}, 404),
    ):
        assert http.get(EXPLAIN, params=query).status_code == status, query
    assert http.get("/v1/entities/account/9/explain").status_code == 404


@pytest.mark.matrix
def test_events_say_which_command_made_them(http: httpx.Client) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    sent = send(http, "open", {"owner": "Ada"}, traceparent=trace, x_correlation_id="order 7")
    metadata = sent.json()["events"][0]["metadata"]
    assert metadata["command"] == "open"
    assert metadata["traceparent"] == trace
    assert metadata["correlation_id"] == "order 7"
    assert metadata["causation_id"]


def test_a_refused_command_changes_nothing_and_says_why(http: httpx.Client) -> None:
    opened(http, "5.00")
    refused = send(http, "pay", {"amount": "12.50", "payee": "shop"})
    assert (refused.status_code, refused.json()["type"]) == (422, "command-refused")
    assert refused.json()["detail"] == "the balance is 5.00 EUR"
    assert http.get("/v1/events").json()["head"] == 2


@pytest.mark.matrix
def test_a_command_that_leads_to_nothing_answers_where_the_entity_is(http: httpx.Client) -> None:
    opened(http)
    nothing = send(http, "set_limit", {"daily_limit": None})
    assert nothing.status_code == 200
    assert nothing.json() == {"stream": "account-1", "version": 1, "position": 2, "events": []}
    assert http.get("/v1/events").json()["head"] == 2


def test_p1_a_repeated_key_happens_once_and_answers_the_same(http: httpx.Client) -> None:
    opened(http)
    first = send(http, "pay", {"amount": "10", "payee": "shop"}, idempotency_key="k1")
    send(http, "deposit", {"amount": "1.00"})
    again = send(http, "pay", {"payee": "shop", "amount": "10"}, idempotency_key="k1")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert state(http)["balance"] == "91.00"
    for other in ({"amount": "11", "payee": "shop"}, {"amount": "10", "payee": "bar"}):
        reused = send(http, "pay", other, idempotency_key="k1")
        assert (reused.status_code, reused.json()["type"]) == (409, "id-reused")
    elsewhere = send(http, "pay", {"amount": "10", "payee": "shop"}, id_="2", idempotency_key="k1")
    assert (elsewhere.status_code, elsewhere.json()["type"]) == (409, "id-reused")


@pytest.mark.matrix
def test_a_key_keeps_the_answer_that_nothing_was_to_do(http: httpx.Client) -> None:
    opened(http)
    first = send(http, "set_limit", {"daily_limit": None}, idempotency_key="k")
    send(http, "set_limit", {"daily_limit": "5.00"})
    again = send(http, "set_limit", {"daily_limit": None}, idempotency_key="k")
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json() == first.json()
    assert state(http)["daily_limit"] == "5.00"
    other = send(http, "set_limit", {"daily_limit": "7.00"}, idempotency_key="k")
    assert (other.status_code, other.json()["type"]) == (409, "id-reused")


def test_one_key_from_many_at_once(http: httpx.Client) -> None:
    opened(http)

    def pay(_: int) -> httpx.Response:
        return send(http, "pay", {"amount": "10.00", "payee": "shop"}, idempotency_key="once")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(pay, range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [201]
    assert len({answer.text for answer in answers}) == 1
    assert state(http)["balance"] == "90.00"


def test_rivals_decide_again_and_never_overdraw(http: httpx.Client) -> None:
    opened(http, "50.00")

    def pay(number: int) -> int:
        answer = send(http, "pay", {"amount": "10.00", "payee": f"shop{number}"})
        assert answer.status_code in (201, 409, 422), answer.text
        return answer.status_code

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(pay, range(12)))
    paid = codes.count(201)
    assert paid <= 5
    assert state(http)["balance"] == f"{50 - 10 * paid}.00"
    assert codes.count(422) == 0 or paid == 5


@pytest.mark.matrix
def test_a_precondition_is_met_or_refused_with_412(http: httpx.Client) -> None:
    opened(http)
    assert send(http, "deposit", {"amount": "1"}, if_match='"1"').status_code == 201
    stale = send(http, "deposit", {"amount": "1"}, if_match='"1"')
    assert (stale.status_code, stale.json()["type"]) == (412, "version-conflict")
    assert (stale.json()["expected"], stale.json()["actual"]) == (1, 2)
    assert send(http, "open", {"owner": "B"}, id_="2", if_match="*").status_code == 412
    assert send(http, "open", {"owner": "B"}, id_="2", if_none_match="*").status_code == 201
    assert send(http, "open", {"owner": "B"}, id_="2", if_none_match="*").status_code == 412


JSON = {"content-type": "application/json"}


def test_what_is_no_command_is_refused(http: httpx.Client) -> None:
    for path, body, status, kind in (
        ("account/1/pay", b"{", 400, "malformed-body"),
        ("account/1/pay", b"[]", 422, "invalid-request"),
        ("account/1/pay", b'{"amount": "x", "payee": "y"}', 422, "schema-violation"),
        ("account/1/pay", b'{"amount": "1"}', 422, "schema-violation"),
        ("account/1/pay", b'{"amount": "1", "payee": "y", "z": 1}', 422, "schema-violation"),
        ("account/1/steal", b"{}", 404, "not-found"),
        ("order/1/pay", b"{}", 404, "not-found"),
        ("account-1/1/pay", b"{}", 422, "invalid-request"),
        ("account/a%20b/pay", b"{}", 422, "invalid-request"),
    ):
        refused = http.post(f"/v1/commands/{path}", content=body, headers=JSON)
        assert (refused.status_code, refused.json()["type"]) == (status, kind), refused.text


def test_state_at_each_version_and_time(http: httpx.Client) -> None:
    opened(http)
    for amount in ("10.00", "20.00"):
        send(http, "pay", {"amount": amount, "payee": "shop"})
    events = http.get("/v1/streams/account-1").json()["events"]
    balances = ["0.00", "100.00", "90.00", "70.00"]
    assert [state(http, version=n)["balance"] for n in range(4)] == balances
    assert [state(http, at=event["recorded_at"])["balance"] for event in events] == balances
    before = datetime.fromisoformat(events[0]["recorded_at"]) - timedelta(seconds=1)
    for query, status in (
        ({"version": 4}, 404),
        ({"at": before.isoformat()}, 404),
        ({"at": "yesterday"}, 422),
        ({"at": "2013-01-01T00:00:00"}, 422),
        ({"at": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}, 422),
        ({"at": before.isoformat(), "version": 1}, 422),
    ):
        answer = http.get("/v1/entities/account/1", params=query)
        assert answer.status_code == status, answer.text
    assert http.get("/v1/entities/account/9").status_code == 404
    assert http.get("/v1/entities/order/9").status_code == 404


@pytest.mark.matrix
def test_the_deciders_are_listed(http: httpx.Client) -> None:
    (decider,) = http.get("/v1/deciders").json()["deciders"]
    assert decider["category"] == "account"
    assert decider["commands"] == ["deposit", "open", "pay", "set_limit"]


def test_events_of_any_writer_are_folded(http: httpx.Client) -> None:
    """A decider owns no stream: what was appended without it counts as well."""
    opened(http)
    http.post(
        "/v1/streams/account-1",
        json={"events": [{"type": "deposited", "data": {"amount": "1.00"}}]},
    ).raise_for_status()
    assert state(http)["balance"] == "101.00"


NOTED = {"events": [{"type": "noted", "data": {"n": 1}}]}
HANGS = """
from eventstore.deciders import Decider, Event

def decide(command, state):
    if command.name == "fail":
        return [1 / len(state)]
    if command.name == "lie":
        return "an event"
    if command.name == "hang":
        while True:
            pass
    if command.name == "grow":
        held = []
        while True:
            held.append(bytearray(2**28))
    return [Event(command.name, {})]

def evolve(state, event):
    while event.type == "spun":
        pass
    return {}

broken, sound = (
    Decider(
        category=category, version=1, initial_state={}, decide=decide, evolve=evolve,
        commands=dict.fromkeys(("do", "fail", "lie", "hang", "grow", "spun")),
    )
    for category in ("broken", "sound")
)
"""


@pytest.fixture
def hanging(postgres_dsn: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A service with a decider that does what no code should."""
    (tmp_path / "deciders").mkdir()
    (tmp_path / "deciders" / "broken.py").write_text(HANGS)
    with service_in_thread(
        postgres_dsn, workspace=tmp_path, decider_seconds=2, decider_memory_bytes=256 * 2**20
    ) as http:
        yield http


def test_code_that_fails_is_told_by_file_and_line(hanging: httpx.Client, tmp_path: Path) -> None:
    file = tmp_path / "deciders" / "broken.py"
    for command, line, word in (("fail", 6, "ZeroDivisionError"), ("lie", 4, "returned str")):
        failed = hanging.post(f"/v1/commands/broken/1/{command}")
        assert failed.status_code == 500
        problem = failed.json()
        assert problem["type"] == "decider-failed"
        assert word in problem["detail"]
        assert (problem["file"], problem["line"]) == (str(file), line)
    assert hanging.get("/health/ready").json()["status"] == "ready"


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        pytest.param("hang", "took longer than 2 s", marks=pytest.mark.matrix),
        ("grow", "needed more than 256 MiB"),
    ],
)
def test_code_that_does_not_end_is_named_and_stops_nothing_else(
    hanging: httpx.Client, command: str, cause: str
) -> None:
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(hanging.post, f"/v1/commands/broken/1/{command}") for _ in range(4)]
        done = 0
        while not all(call.done() for call in calls):
            appended = hanging.post("/v1/streams/some-1", json=NOTED)
            assert appended.status_code == 201, appended.text
            assert hanging.post(f"/v1/commands/sound/{done}/do").status_code == 201
            assert hanging.get(f"/v1/entities/sound/{done}").json()["state"] == {}
            done += 1
        problems = [call.result().json() for call in calls]
    assert done
    assert {(p["type"], p["detail"]) for p in problems} == {
        ("decider-stopped", f"decider broken {cause}")
    }
    assert problems[0]["of"] == "decider broken"
    assert hanging.get("/v1/events").json()["head"] == 2 * done
    health = hanging.get("/health/ready").json()
    assert (health["status"], health["deciders"]["state"]) == ("degraded", "stopped")
    assert health["deciders"]["stopped"] == [{"name": "decider broken", "calls": 4, "cause": cause}]
    metrics = hanging.get("/metrics").text
    assert 'penstock_standing_still{component="deciders",name="decider broken"} 1.0' in metrics
    assert 'penstock_decider_calls_killed_total{name="decider broken"} 4.0' in metrics
    # It goes on itself, too: what hangs is a call and not the decider.
    assert hanging.post("/v1/commands/broken/1/do").status_code == 201


@pytest.mark.matrix
def test_a_state_that_is_never_folded_is_named(hanging: httpx.Client) -> None:
    assert hanging.post("/v1/commands/broken/1/spun").status_code == 201
    stopped = hanging.get("/v1/entities/broken/1")
    assert stopped.status_code == 500
    assert stopped.json()["type"] == "decider-stopped"
    assert hanging.get("/v1/streams/broken-1").status_code == 200


@pytest.mark.matrix
def test_a_changed_decider_sees_its_own_states_only(postgres_dsn: str, tmp_path: Path) -> None:
    """Snapshots of the code before are neither used nor in the way."""
    registry = MemoryRegistry()
    workspace = tmp_path / "workspace"
    shutil.copytree(PAYMENTS, workspace)
    file = workspace / "deciders/payments.py"
    text = file.read_text().replace("version=1,", "version=1,\n    snapshot_every=5,")
    file.write_text(text)
    with service_in_thread(postgres_dsn, registry=registry, workspace=workspace) as http:
        release(http)
        opened(http)
        for _ in range(12):
            sent = send(http, "pay", {"amount": "1.00", "payee": "shop"})
            assert sent.status_code == 201, sent.text
        assert state(http)["balance"] == "88.00"
    assert _codes_with_snapshots(postgres_dsn) == 1
    file.write_text(text.replace("account.balance - amount", "account.balance - 2 * amount"))
    with service_in_thread(postgres_dsn, registry=registry, workspace=workspace) as http:
        assert state(http)["balance"] == "76.00"
        assert state(http, version=7)["balance"] == "88.00"
    assert _codes_with_snapshots(postgres_dsn) == 2


def _codes_with_snapshots(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(DISTINCT decider) FROM es.snapshots").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.matrix
def test_a_service_does_not_start_with_code_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "deciders").mkdir()
    file = tmp_path / "deciders" / "broken.py"
    file.write_text("import os\n\nfrom eventstore.deciders import Desider\n")
    settings = {
        "PENSTOCK_WORKSPACE": str(tmp_path),
        "PENSTOCK_POSTGRES_DSN": "postgresql://postgres@127.0.0.1:1/none",
        "PENSTOCK_REGISTRY_URL": "http://127.0.0.1:1",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "apps.service"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert f"error: {file}:3: " in ended.stderr
    assert "Desider" in ended.stderr
    assert "Traceback" not in ended.stderr
