"""A walk over a whole stack in which one component after the other stands still, door by door.

By a fault of its own each: first what may stand still while all others move, all of it at once,
then ingest, then a lane, the parts of the stack, and the loops of the pipeline.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from kernel.errors import EXIT_UNHEALTHY, Misconfigured, PenstockError, Unavailable
from tests.support.lake.topic_stream import reading
from tests.support.services.standstill_walk import HISTORY, KEPT_UP, LANE, TYPED, Walk, assert_told
from tests.support.services.waiting import until
from tests.support.services.whole_stack import WholeStack

pytestmark = pytest.mark.timeout(600)
FILES = "sources/*.toml"
HELD = "sink.before_commit=hold,projection.before_commit=hold@2,quarantine.after_outcomes=hold"
"""Where the loops of sinks, of projections and of ingest are held, in this order."""
HANGS = ("kafka", "connect", "pipeline", "service")
STOPPED = {
    ("connector", FILES): "penstock doctor",
    ("copy", FILES): "penstock doctor",
    ("verification", FILES): "penstock doctor",
    ("projection", "walked"): "penstock projection status walked",
    ("table", TYPED): f"penstock table retry {TYPED}",
    ("table", HISTORY): f"penstock table retry {HISTORY}",
    ("sink", "walked_as_of"): "penstock projection status walked_as_of",
    ("upkeep", KEPT_UP): "penstock logs pipeline",
    ("delivery", "walked"): "penstock status",
    ("deciders", "workspace"): "penstock logs service",
}
"""What is made to stand still, and a part of the command that leads on."""


@pytest.fixture
def walk(whole_stack: Path) -> Iterator[Walk]:
    made = Walk(WholeStack(whole_stack, ""))
    made.until_all_moves()
    try:
        yield made
    finally:
        made.mend_all()


def test_each_component_that_stands_still_is_seen_at_every_door(walk: Walk) -> None:
    walk.stop_all()
    until(lambda: walk.stands(*STOPPED), "all stand still", deadline_s=180)
    told = assert_told(walk, STOPPED)
    doors = {part: walk.asked(part, "/health/ready").json() for part in ("pipeline", "service")}
    assert {part: door["status"] for part, door in doors.items()} == dict.fromkeys(
        doors, "degraded"
    )
    metrics = "".join(walk.asked(part, "/metrics").text for part in doors)
    for component, name in STOPPED:
        labels = f'component="{component}",name="{name}"'
        assert f"penstock_standing_still{{{labels}}} 1.0" in metrics
    (projection,) = (p for p in walk.stack.command("projection", "list") if p["name"] == "walked")
    assert projection["stands_still"] == told["projection", "walked"]["cause"]
    tables = {t["name"]: t for t in walk.stack.command("table", "list")}
    assert tables[TYPED]["held"]
    assert tables[HISTORY]["held"]
    with pytest.raises(Misconfigured, match=r"walked\.toml"):
        walk.stack.command("wait", "--timeout", "60")
    (walk.stack.workspace / "sources" / "walked.toml").unlink()
    with pytest.raises(Unavailable, match="it does not go on by itself"):
        walk.stack.command("wait", "--timeout", "60")

    walk.mend_all()
    walk.until_all_moves()
    assert walk.stack.command("status")["state"] == "ready"


@pytest.mark.matrix
def test_ingest_that_stands_still_is_seen_at_every_door(walk: Walk) -> None:
    walk.tear("epochs")
    walk.append("stepped", 3)
    # Not ready for its supervisor either, which asks now and then.
    stopped = {("ingest", "ingest"): "penstock ", ("part", "pipeline"): "penstock restart pipeline"}
    until(lambda: walk.stands(*stopped), "it stands still", deadline_s=60)
    assert_told(walk, stopped, state="unready")
    health = walk.asked("pipeline", "/health/ready")
    assert (health.status_code, health.json()["status"]) == (503, "unready")
    labels = 'component="ingest",name="ingest"'
    metrics = walk.asked("pipeline", "/metrics").text
    assert f"penstock_standing_still{{{labels}}} 1.0" in metrics
    with pytest.raises(PenstockError, match="epochs"):
        walk.stack.command("wait", "--timeout", "0")
    walk.mend_all()
    walk.until_all_moves()
    walk.stack.command("wait", "--timeout", "60")


@pytest.mark.matrix
def test_a_lane_whose_registry_hangs_is_seen_at_every_door(walk: Walk) -> None:
    walk.declare_readings()
    before = walk.records()
    walk.send("walk-readings", reading(walk.schema(), 1, 20.5))
    until(lambda: walk.records() > before, "what all know is read", deadline_s=120)
    read, new = walk.records(), walk.schema(f"more_{uuid.uuid4().hex[:8]}")
    go_on = walk.freeze("registry")
    walk.send("walk-readings", reading(new, 2, 20.5) + b"\0")
    lane = ("source", LANE)
    stopped = {("part", "registry"): "penstock restart registry", lane: "penstock status"}
    until(lambda: walk.stands(*stopped), "the lane is held", deadline_s=120)
    told = assert_told(walk, stopped, state="unready")
    assert "does not answer" in told[lane]["cause"]
    # The run that found it out ends, and the next one goes on without the lane.
    health = partial(walk.asked, "pipeline", "/health/ready")
    until(lambda: health().json()["status"] == "degraded", "the others go on", deadline_s=60)
    labels = f'component="source",name="{LANE}"'
    assert f"penstock_standing_still{{{labels}}} 1.0" in walk.asked("pipeline", "/metrics").text
    (listed,) = (t for t in walk.stack.command("source", "list")["topics"] if t["source"] == LANE)
    assert listed["standing_still"] == [told[lane]]
    shown = walk.stack.command("source", "status", LANE, code=EXIT_UNHEALTHY)
    assert shown["standing_still"] == [told[lane]]
    with pytest.raises(Unavailable, match=f"source {LANE} stands still"):
        walk.stack.command("wait", "--timeout", "1")
    go_on()
    until(lambda: walk.records() > read, "the lane is read again", deadline_s=120)
    walk.mend_all()
    walk.until_all_moves()


@pytest.mark.matrix
def test_parts_that_hang_are_seen_at_every_door(walk: Walk) -> None:
    stopped = {("part", name): f"penstock restart {name}" for name in HANGS}
    for name in HANGS:
        if name == "service":
            walk.append("stepped", 3)  # What nobody takes in any more is waited for in vain.
        walk.freeze(name)
    until(lambda: walk.stands(*stopped), "all hang", deadline_s=30)
    assert_told(walk, stopped, state="unready")
    with pytest.raises(Unavailable, match="part pipeline stands still"):
        walk.stack.command("wait", "--timeout", "1")
    walk.mend_all()
    walk.until_all_moves()


@pytest.mark.matrix
def test_a_store_that_hangs_is_seen_at_every_door(walk: Walk) -> None:
    walk.freeze("postgres")
    stopped = {("part", "postgres"): "penstock restart postgres"}
    until(lambda: walk.stands(*stopped), "it hangs", deadline_s=30)
    assert_told(walk, stopped, state="unready")
    health = walk.asked("service", "/health/ready")
    assert (health.status_code, health.json()["status"]) == (503, "unready")
    labels = 'component="service",name="store"'
    assert f"penstock_standing_still{{{labels}}} 1.0" in walk.asked("service", "/metrics").text
    with pytest.raises(Unavailable, match="part postgres stands still"):
        walk.stack.command("wait", "--timeout", "1")
    walk.mend_all()
    walk.until_all_moves()


@pytest.mark.matrix
def test_loops_that_hang_are_seen_at_every_door(walk: Walk) -> None:
    walk.append("stepped", 3)
    walk.keep_a_history()
    walk.restart_with(PENSTOCK_FAILPOINTS=HELD, PENSTOCK_PIPELINE_STANDSTILL_SECONDS="5")
    waive = ("quarantine", "waive", "walk-places", "--reason", "the walk", "--yes")

    def refuse_a_record() -> None:
        walk.send("walk-places", b"{torn")
        there = partial(walk.stack.health)
        until(lambda: "walk-places" in there()["quarantine"], "it is refused", deadline_s=60)
        walk.stack.command(*waive)

    numbers = count(5)

    def held_in_a_second_round() -> bool:
        # What came along with the event before makes no second round.
        walk.append("stepped", next(numbers))
        return walk.stands(("projecting", "projecting"))

    faults: dict[tuple[str, str], Callable[[], None]] = {
        ("loop", "sinks"): partial(walk.append, "stepped", 4),
        ("projecting", "projecting"): partial(
            until, held_in_a_second_round, "projecting is held", deadline_s=60
        ),
        ("ingest", "ingest"): refuse_a_record,
    }
    for held, fault in faults.items():
        fault()
        until(partial(walk.stands, held), f"{held} stands still", deadline_s=60)
    told = assert_told(walk, dict.fromkeys(faults, "penstock restart pipeline"))
    health = walk.asked("pipeline", "/health/ready").json()
    metrics = walk.asked("pipeline", "/metrics").text
    assert health["status"] == "degraded"
    for component, name in faults:
        assert "has not moved on for" in told[component, name]["cause"]
        labels = f'component="{component}",name="{name}"'
        assert f"penstock_standing_still{{{labels}}} 1.0" in metrics
    with pytest.raises(Unavailable, match="ingest stands still"):
        walk.stack.command("wait", "--timeout", "60")
    walk.mend_all()
    walk.until_all_moves()
