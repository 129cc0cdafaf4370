"""Whatever stands still is seen at every door: status, doctor, wait, health, metrics, alerts."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from apps.accounts import account, standing_still
from apps.capture import capture_site
from apps.cli import build, source, source_topics
from apps.cli.stack import explained
from apps.pipeline.metrics import PipelineMetrics
from apps.settings import Settings, load
from cdc.declarations import FILES
from cdc.site import CaptureSite
from cdc.upkeep.topic_sources import TopicState
from cdc.verification.verifier import Verifying, VerifyMetrics
from kernel.errors import EXIT_UNHEALTHY, NotFound, Unavailable
from lake.layout import Lake
from lake.tables import Tables
from lake.upkeep.compaction import Upkeep
from pipeline.commit.folds_beside import BESIDE
from pipeline.history.shape import HistoryOf
from pipeline.process.health import waiting_in
from pipeline.read.stuck_sources import STUCK_AFTER_S, StuckSources, poisoned
from projections.run.catalog import CAPTURE, LIVE, DeployedCatalog, Entry
from projections.run.projection_rounds import held_documents
from projections.serve.lake_tables import list_tables
from schemas.registry import MemoryRegistry
from service import caught_up
from service.access import Access
from service.pipeline_endpoint import serve
from service.standstills import Standstill, of_pipeline, of_service, of_source
from tests.support.lake.folding import Done
from tests.support.lake.poisoned import ENDS, GOODS, ITEMS, PoisonedShop, topic_of
from tests.support.lake.telling import BreakingRegistry, ToldLake

WHY = "the cause | fix: penstock mend it"
HOLD = {"from_epoch": 3, "reason": "the cause", "diff": [], "command": "penstock mend it"}
STOPPED: dict[str, dict[str, Any]] = {
    "ingest": {"ingest": {"state": "failed", "reason": WHY}},
    "projecting": {"projecting": {"state": "restarting", "reason": WHY}},
    "table": {"held": {"typed/events.order.paid": HOLD}},
    "projection": {"projections": {"latest": {"epoch": 1, "error": WHY, "run_ms": 0}}},
    "sink": {"sinks": {"latest": {"topic": "latest", "error": WHY}}},
    "source": {"stuck": {"shop": WHY}},
    "gap": {"gaps": {"shop": WHY}},
    "connector": {"connectors": {"shop": WHY}},
    "copy": {"copies": {"shop": f"waits: {WHY}"}},
    "slot": {"slot_alarms": {"shop": WHY}},
    "verification": {"verify": {"shop": WHY}},
    "part": {"parts": {"registry": WHY}},
    "loop": {"loops": {"connectors": WHY}},
    "upkeep": {"upkeep": {"epochs": WHY}},
    "lag": {"lag_unknown": {"store": WHY}},
    "delivery": {"deliveries": [{"name": "mail", "state": "failing", "reason": WHY}]},
}
MOVING: dict[str, Any] = {
    "ingest": {"state": "running", "reason": None},
    "projecting": {"state": "running", "reason": None},
    "connectors": {"shop": "running"},
    "copies": {"shop": "copies 3 tables"},
    "slot_alarms": {},
    "verify": {"shop": {"public.items": {"note": None}}},
    "held": {},
    "quarantine": {},
    "stuck": {},
    "upkeep": {},
    "lag_unknown": {},
    "gaps": {},
    "projections": {"latest": {"epoch": 1, "error": None, "first_row": "waits", "run_ms": 0}},
    "sinks": {"latest": {"topic": "latest", "error": None}},
    "deliveries": [{"name": "mail", "state": "running", "reason": None}],
}

Serve = Callable[[dict[str, Any]], Settings]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serve]:
    """Serve what pipeline and service say of themselves; return the settings that lead there."""
    servers: list[ThreadingHTTPServer] = []

    def start(state: dict[str, Any]) -> Settings:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        servers.append(serve("127.0.0.1", port, Access(), PipelineMetrics(), lambda: (True, state)))
        url = f"http://127.0.0.1:{port}"
        text = f'[pipeline]\nurl = "{url}"\n[service]\nurl = "{url}"\n'
        (tmp_path / "penstock.toml").write_text(text)
        return load(tmp_path)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("component", STOPPED)
def test_what_stands_still_is_seen_at_every_door(served: Serve, component: str) -> None:
    settings = served(MOVING | STOPPED[component])
    (still,) = standing_still(settings)
    assert still.component == component
    assert "the cause" in still.cause
    assert still.command == "penstock mend it"
    assert_shown(settings, still)


def assert_shown(settings: Settings, still: Standstill) -> None:
    """Look at status, doctor and metrics for one thing that stands still."""
    folder = str(settings.workspace)
    ran = CliRunner().invoke(build(), ["status", "--json", "--workspace", folder])
    assert ran.exit_code == EXIT_UNHEALTHY
    assert json.loads(ran.stdout)["standing_still"] == [still.document()]
    if still.component != "delivery":
        metrics = httpx.get(f"{settings.text('pipeline.url')}/metrics").text
        line = f'penstock_standing_still{{component="{still.component}",name="{still.name}"}} 1.0'
        assert line in metrics


def a_lost_schema(lake: Lake) -> tuple[dict[str, Any], str]:
    """Stop a typed table: the registry has lost the schema of its newest event."""
    registry = BreakingRegistry()
    told = ToldLake(lake, registry=registry)
    told.tell("paid", {"n": 1})
    told.epoch()
    latest = registry.latest("order.paid")
    assert latest is not None
    registry.broken[latest.id] = NotFound("the registry has no such schema")
    told.bring()
    return {"held": held_documents(told.derived)}, "penstock table retry typed/events.order.paid"


def a_record_in_quarantine(lake: Lake) -> tuple[dict[str, Any], str]:
    """Stop a captured table, its typed table with it: a transaction lacks what cannot be read."""
    shop = PoisonedShop(lake)
    shop.commit({ITEMS: [Done("c", 1)], GOODS: [Done("c", 1)]}, spoil={(ITEMS, 0)})
    for _ in range(3):
        done = shop.epoch()
    held, quarantine = waiting_in(done)
    assert quarantine == {topic_of(ITEMS): 1}
    return {"held": held, "quarantine": quarantine}, f"penstock quarantine retry shop.{ITEMS}"


def an_end_in_quarantine(lake: Lake) -> tuple[dict[str, Any], str]:
    """Stop a source: it cannot be told where a transaction ends."""
    shop = PoisonedShop(lake)
    shop.commit({ITEMS: [Done("c", 1)]}, spoil={(ENDS, 0)})
    shop.commit({ITEMS: [Done("c", 2)]})
    for _ in range(3):
        shop.epoch()
    stuck = StuckSources()
    reasons = {source: poisoned(topic) for source, topic in shop.ingest.poisoned().items()}
    stuck.look(shop.ingest.waiting_for(), {}, reasons)
    return {"stuck": stuck.reasons()}, f"penstock quarantine retry {ENDS}"


def a_torn_manifest(lake: Lake) -> tuple[dict[str, Any], str]:
    """Stop upkeep: it cannot read a table's log."""
    tear(lake, "epochs")
    upkeep = Upkeep(lake, retention=timedelta(days=1))
    upkeep.look()
    return {"upkeep": upkeep.troubles}, "penstock logs pipeline"


def a_torn_history(lake: Lake) -> tuple[dict[str, Any], str]:
    """Stop a history: its own log cannot be read. What it is folded from goes on."""
    told = ToldLake(lake)
    told.tell("paid", {"n": 1})
    told.epoch()
    last = told.manifest.last()
    assert last is not None
    tear(lake, "history/order.paid")
    name, typed = "history/order.paid", "typed/events.order.paid"
    of = HistoryOf(name=name, typed=typed, key=("n",), identity=("n",), by_row=True)
    brought = told.derived.bring(told.derived.at(), last, [of])
    assert typed in brought.tables
    return {"held": held_documents(told.derived)}, f"penstock table retry {name}"


def tear(lake: Lake, name: str) -> None:
    """Leave half a commit where a table's first one ought to be."""
    torn = Path(lake.path(name)) / "_delta_log"
    torn.mkdir(parents=True)
    (torn / "00000000000000000000.json").write_bytes(b"{torn")


@pytest.mark.parametrize(
    "stop",
    [a_lost_schema, a_torn_history, a_record_in_quarantine, an_end_in_quarantine, a_torn_manifest],
)
def test_what_was_really_stopped_is_seen_at_every_door(
    served: Serve, lake: Lake, stop: Callable[[Lake], tuple[dict[str, Any], str]]
) -> None:
    state, command = stop(lake)
    settings = served(MOVING | state)
    (still,) = standing_still(settings)
    assert still.command == command
    assert still.cause
    assert "<unknown>" not in still.cause, "no stack of a library"
    assert_shown(settings, still)
    looked = CliRunner().invoke(build(), ["doctor", "--workspace", str(settings.workspace)])
    assert still.command in looked.output
    of_shop = of_source([still], "shop")
    assert of_shop == ([still] if "quarantine" in command else [])


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_people_read_every_cause_and_every_command(served: Serve, command: str) -> None:
    state = dict(MOVING)
    for stopped in STOPPED.values():
        state |= stopped
    folder = str(served(state).workspace)
    ran = CliRunner().invoke(build(), [command, "--workspace", folder])
    assert ran.exit_code == EXIT_UNHEALTHY, ran.output
    for component in STOPPED:
        (line,) = [row for row in ran.output.splitlines() if f"{component} " in row[:20]]
        assert "the cause" in line
        assert "penstock mend it" in line


def asked(served: Settings) -> tuple[CaptureSite, caught_up.Accounts]:
    """Return whom a command asks that waits."""
    found = load(served.workspace)
    still = partial(standing_still, found)
    accounts = caught_up.Accounts(pipeline=partial(account, found, "pipeline"), still=still)
    return capture_site(found), accounts


@pytest.mark.parametrize("component", STOPPED)
def test_wait_names_it_at_once_and_ends_for_what_does_not_move_by_itself(
    served: Serve, component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = served(MOVING | STOPPED[component])
    shown: list[str] = []
    behind = caught_up.Behind(missing=("events: position 1 of 2",), events=1, seconds=0.0)
    closed: list[str] = []
    heads = SimpleNamespace(close=lambda: closed.append("heads"))
    monkeypatch.setattr(caught_up, "PostgresHeads", lambda dsn: heads)
    monkeypatch.setattr(caught_up, "goal_of", lambda site: None)
    monkeypatch.setattr(caught_up.Waiting, "look", lambda self: behind)
    monkeypatch.setenv("PENSTOCK_POSTGRES_DSN", "postgresql://nowhere")
    lasting = any(each.lasting for each in standing_still(settings))
    with pytest.raises(Unavailable) as ended:
        caught_up.wait(
            *asked(settings),
            timeout_s=3600 if lasting else 0.0,
            show=lambda found: shown.extend(found.missing),
        )
    assert "the cause" in ended.value.message
    assert lasting == (component in ("ingest", "table", "source", "gap"))
    assert closed == ["heads"], "no connection to the store is left open"


@pytest.mark.parametrize("now", ["running", "failed", "restarting"])
def test_a_connector_that_failed_over_and_over_and_runs_sends_nobody_away(now: str) -> None:
    (found,) = of_pipeline({"failing": {"shop": WHY}, "connectors": {"shop": now}})
    assert found.lasting == (now != "running")


def test_a_service_that_takes_no_appends_says_why() -> None:
    (found,) = of_service({"reasons": [{"part": "store", "reason": "the disk is full"}]})
    assert (found.component, found.name, found.cause) == ("service", "store", "the disk is full")
    assert found.command == "penstock logs service"


def test_only_what_belongs_to_a_source_is_told_of_it() -> None:
    """A delivery, a projection or a part may be called as a source is."""
    state = MOVING | {"projections": {"shop": {"epoch": 1, "error": WHY, "run_ms": 0}}}
    others = of_service({"deliveries": [{"name": "shop", "state": "failing", "reason": WHY}]})
    own = of_pipeline(state | {"copies": {"shop": f"waits: {WHY}"}})
    assert [each.component for each in of_source([*others, *own], "shop")] == ["copy"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"ingest": {"state": "starting", "reason": "the begin of a run"}}, "the begin of a run"),
        ({"ingest": {"state": "restarting", "reason": WHY}}, "the cause | fix: penstock mend it"),
        ({"reasons": [{"part": "store", "reason": "the cause"}]}, "the cause"),
    ],
)
def test_a_stack_that_is_late_is_told_with_what_its_programs_say(
    served: Serve, state: dict[str, Any], said: str
) -> None:
    settings = served(state)
    late = Unavailable(
        "not ready within 9 s: it", remedy="penstock logs it", late="kafka pipeline service"
    )
    with pytest.raises(Unavailable) as told, explained(settings.workspace):
        raise late
    assert told.value.message.startswith("not ready within 9 s: it; ")
    assert said in told.value.message
    assert told.value.remedy == "penstock logs it"


PINGS = {
    "source": "pings",
    "topic": "p",
    "format": "json",
    "state": "runs",
    "records": 1,
    "behind": 2,
    "quarantined": 0,
}


@pytest.mark.parametrize(
    ("state", "component"),
    [
        ({"stuck": {"pings": WHY, "shop": WHY}}, "source"),
        ({"held": {"typed/topics.pings": HOLD, "typed/topics.pings2": HOLD}}, "table"),
        ({"held": {"history/pings": HOLD, "history/shop.pings": HOLD}}, "table"),
    ],
)
def test_the_source_of_a_topic_that_stands_still_is_told_in_its_list_and_by_itself(
    served: Serve, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], component: str
) -> None:
    settings = served(MOVING | state)
    (still,) = of_source(standing_still(settings), "pings")
    assert still.component == component
    monkeypatch.setattr(source, "_documents", lambda found: [dict(PINGS)])
    monkeypatch.setattr(source_topics, "topic_state", lambda *_: TopicState(**PINGS))
    folder = ["--workspace", str(settings.workspace)]
    ran = CliRunner().invoke(build(), ["source", "list", "--json", *folder])
    assert json.loads(ran.stdout)["topics"] == [{**PINGS, "standing_still": [still.document()]}]
    ran = CliRunner().invoke(build(), ["source", "list", *folder])
    assert f"{component} {still.name}: {still.cause}" in ran.output
    ran = CliRunner().invoke(build(), ["source", "status", "pings", *folder])
    assert ran.exit_code == EXIT_UNHEALTHY
    assert f"{component} {still.name}: {still.cause}\n  fix: penstock mend it" in ran.output


def test_wait_says_what_stands_still_where_nobody_answers_it(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = served(MOVING | {"loops": {"sinks": WHY}})

    def silent(_: CaptureSite) -> None:
        raise Unavailable("the event store's database does not answer: timeout")

    monkeypatch.setattr(caught_up, "goal_of", silent)
    monkeypatch.setenv("PENSTOCK_POSTGRES_DSN", "postgresql://nowhere")
    with pytest.raises(Unavailable) as ended:
        caught_up.wait(*asked(settings), timeout_s=3600, show=lambda found: None)
    assert "does not answer: timeout; loop sinks stands still: the cause" in ended.value.message
    assert ended.value.remedy == "penstock mend it"


def test_nothing_stands_still_where_all_moves(served: Serve) -> None:
    assert standing_still(served(MOVING)) == []
    assert of_pipeline({}) == of_service({}) == []


def test_a_snapshot_that_stays_open_is_named_with_the_statement_that_ends_it() -> None:
    held = {"holder": "session 7 of ann (psql)", "age_s": 4000.5, "ended_by": "SELECT end_it(7)"}
    (found,) = of_service({"old_snapshot": held})
    assert (found.component, found.name) == ("snapshot", "session 7 of ann (psql)")
    assert "open for 4000 s" in found.cause
    assert found.command == "SELECT end_it(7)"


def test_every_metric_of_a_standstill_has_an_alert() -> None:
    rules = yaml.safe_load(Path("deploy/prometheus/alerts.yml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for metric in (
        "penstock_standing_still",
        "penstock_part_up",
        "penstock_delivery_up",
        "penstock_oldest_snapshot_seconds",
    ):
        assert any(metric in expression for expression in expressions)


def test_a_cut_stands_still_after_a_minute_without_a_move() -> None:
    now = [0.0]
    stuck = StuckSources(lambda: now[0])
    waiting = {"shop": "transaction 7: expected 2", "mart": "its tables are being copied"}
    stuck.look({**waiting, "bulk": BESIDE}, {"shop": 5}, {})
    now[0] = STUCK_AFTER_S
    assert stuck.reasons() == {"shop": "transaction 7: expected 2"}
    stuck.look(waiting, {"shop": 6}, {"mart": "cannot be read"})
    assert stuck.reasons() == {"mart": "cannot be read"}
    stuck.look({}, {"shop": 6}, {})
    assert stuck.reasons() == {}


def test_a_fold_beside_that_does_not_end_is_told_after_an_hour() -> None:
    now = [0.0]
    stuck = StuckSources(lambda: now[0])
    for now[0], told in ((0.0, {}), (3_599.0, {}), (3_600.0, {"bulk": BESIDE})):
        stuck.look({"bulk": BESIDE}, {"bulk": 5}, {})
        assert stuck.reasons() == told


def test_a_table_that_cannot_be_read_is_listed_beside_the_others(lake: Lake) -> None:
    told = ToldLake(lake)
    told.tell("paid", {"n": 1})
    told.epoch()
    told.bring()
    tear(lake, "typed/events.order.torn")
    found, unreadable = list_tables(lake)
    assert "typed/events.order.paid" in [table.name for table in found]
    assert list(unreadable) == ["typed/events.order.torn"]


def test_the_verifier_outlives_a_source_file_that_cannot_be_read(tmp_path: Path) -> None:
    broken = tmp_path / "sources" / "broken.toml"
    broken.parent.mkdir()
    broken.write_text("[[torn")
    metrics = VerifyMetrics(CollectorRegistry())
    verifying = Verifying(capture_site(load(tmp_path)), MemoryRegistry(), metrics)
    verifying.step()
    (still,) = of_pipeline({"verify": verifying.states})
    assert (still.component, still.name) == ("verification", FILES)
    assert "broken.toml" in still.cause
    broken.unlink()
    verifying.step()
    assert verifying.states == {}


def test_upkeep_looks_after_the_others_and_names_the_one_that_fails(lake: Lake) -> None:
    tear(lake, "epochs")
    upkeep = Upkeep(lake, retention=timedelta(days=1))
    assert upkeep.look() == []
    assert list(upkeep.troubles) == ["epochs"]


def test_before_the_first_epoch_the_verifier_compares_nothing_and_nothing_is_wrong(
    tmp_path: Path,
) -> None:
    file = tmp_path / "sources" / "shop.toml"
    file.parent.mkdir()
    file.write_text('dsn = "dbname=shop"\ntables = ["public.orders"]\n')
    settings = load(tmp_path)
    lake = Lake.at(settings.lake)
    entry = Entry(
        kind=CAPTURE, name="shop", generation=1, status=LIVE, text='{"public.orders": []}'
    )
    DeployedCatalog(lake, Tables()).put([entry])
    verifying = Verifying(
        capture_site(settings), MemoryRegistry(), VerifyMetrics(CollectorRegistry())
    )
    verifying.step()
    assert verifying.states == {}
