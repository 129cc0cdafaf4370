"""Final rows by the pipeline's own loop: what waits, what is out, what a restart makes of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.clock import micros
from kernel.positions import Epoch
from lake.layout import Lake
from lake.writer import Guard
from pipeline.commit.manifest_rows import Committed
from pipeline.commit.retention import forget_corrections
from pipeline.position.progress import Progress
from pipeline.typed.columns import EVENT_COLUMNS
from projections.run.catalog import DROPPED, LIVE, PROJECTION, SOURCE, Entry
from projections.run.corrections import _json
from projections.run.projection_rounds import Projecting
from projections.run.projection_states import Run
from projections.run.projector import Projector
from projections.run.watermark import StreamTerms, ended_up_to
from projections.serve.keyed_rows import visible
from projections.serve.lake_tables import table_names
from projections.serve.query import ask
from replay.generations import live_app
from replay.subject import declaration, ended_before, generation_target, subject_of
from schemas.registry import MemoryRegistry
from tests.support.lake.handmade import HandMade, NoSpark
from tests.support.lake.noted_epochs import START, committed

TYPED = "typed/events.visit.seen"
LONG = timedelta(hours=3)
MOMENT = pa.timestamp("us", "UTC")
SEEN = pa.schema(
    [
        ("person", pa.string()),
        *EVENT_COLUMNS,
        ("_epoch", pa.int64()),
        ("_late", pa.bool_()),
        ("_time", MOMENT),
        ("_seq_hi", pa.int64()),
        ("_seq_lo", pa.int64()),
    ]
)
SOURCES = (
    "CREATE SOURCE visits ON events.visit WITH (lateness = '10 minutes', closed_after = '1 day');"
)
HOURS = """
CREATE PROJECTION hours WITH (key = 'window_end', emit = 'final') AS
SELECT window_end, COUNT(*) AS n FROM STREAM events.visit GROUP BY TUMBLE(occurred_at, '1 hour');
"""
SHAPE = pa.schema(
    [("window_end", MOMENT), ("n", pa.int64()), ("_end", pa.int64()), ("_epoch", pa.int64())]
)


class Hours:
    """A lake with visits, and a final projection that counts them by the hour."""

    def __init__(self, place: Path) -> None:
        self.lake = Lake.at(place)
        self.made = HandMade(self.lake)
        self.progress = Progress()
        self.position = 0
        kinds = {"visits": (SOURCE, SOURCES), "hours": (PROJECTION, HOURS)}
        self.made.deployed.put(
            [
                Entry(kind=kind, name=name, generation=1, status=LIVE, text=text)
                for name, (kind, text) in kinds.items()
            ]
        )
        self.made.run("hours", SHAPE.empty_table(), 0)
        self.restart()

    def restart(self) -> None:
        self.projecting = Projecting(NoSpark(), self.lake, MemoryRegistry(), on_run=lambda *_: None)

    def seen(self, *minutes: int, forgotten: bool = False) -> Epoch:
        """Commit an epoch with visits, and do a step of the loop.

        `forgotten`: the epoch before is gone by then, as retention leaves it to who stood still.
        """
        rows = []
        for minute in minutes:
            self.position += 1
            at = START + timedelta(minutes=minute)
            self.progress.watermarks.note("events.visit", "v/0", micros(at), partitions=1)
            rows.append(
                {name: None for name in SEEN.names}
                | {"person": "p", "occurred_at": at, "_epoch": self.made.next_epoch}
                | {"_late": False, "_time": at, "_seq_hi": self.position, "_seq_lo": 0}
            )
        epoch = self.made.epoch(progress=self.progress)
        self.made.derive({TYPED: pa.Table.from_pylist(rows, SEEN)}, epoch)
        if forgotten:
            manifest = DeltaTable(self.lake.epochs)
            manifest.delete(f"kind = 'committed' AND epoch = {epoch - 1}")
        if "hours" in self.projecting.states:
            self.projecting.states["hours"].due_at = 0.0
        self.projecting.step()
        assert self.projecting.states["hours"].error is None
        return epoch

    @property
    def rows(self) -> dict[int, int]:
        """How many visits are out, by the hour at which they end."""
        return by_hour(self.lake.path("projection/hours"))


class Rebuild:
    """A generation that is built beside the live one, up to an epoch at first."""

    def __init__(self, hours: Hours, epoch: Epoch) -> None:
        site = self.site = hours.made.site
        self.subject = subject_of(site, "hours")
        self.target = generation_target(
            site,
            self.subject,
            2,
            epoch,
            include_late=False,
            ended_us=ended_before(site, self.subject, epoch),
        )
        guard = Guard(self.target.app_id, Epoch(0))
        hours.made.writer.overwrite(self.target.path, SHAPE.empty_table(), guard)
        self.projector = Projector(NoSpark(), hours.lake, site.tables, site.manifest)

    def run(self, epoch: Epoch) -> Run:
        return self.projector.run(self.subject.plan, self.target, self.subject.catalog, epoch)

    @property
    def rows(self) -> dict[int, int]:
        return by_hour(self.target.path)


def by_hour(path: str) -> dict[int, int]:
    """How many visits a table has, by the hour at which they end."""
    table = DeltaTable(path).to_pyarrow_table()
    ends = [(end - START) // timedelta(hours=1) for end in table["window_end"].to_pylist()]
    return dict(zip(ends, table["n"].to_pylist(), strict=True))


@pytest.fixture
def hours(tmp_path: Path) -> Hours:
    return Hours(tmp_path)


def test_readers_are_given_the_columns_of_the_query_alone(hours: Hours) -> None:
    hours.seen(5, 75)
    table = DeltaTable(hours.lake.path("projection/hours"))
    assert "_end" in table.to_pyarrow_table().schema.names
    assert visible(table).names == ["window_end", "n"], "sinks, feeds and lookups have these"


def test_p6_a_window_is_out_when_the_watermark_has_passed_its_end(hours: Hours) -> None:
    hours.seen(5, 69)
    assert hours.rows == {}
    assert hours.projecting.states["hours"].waits == (
        "final rows are out up to 2013-01-01T00:59:00+00:00, 2 wait"
    )
    hours.seen(7, 70)
    assert hours.rows == {1: 2}
    hours.seen(8)
    assert hours.rows == {1: 3}, "a late row corrects what was given out"
    hours.seen()
    said = "final rows are out up to 2013-01-01T01:00:00+00:00"
    assert hours.projecting.states["hours"].waits == f"{said}, 1 wait", "nothing came, so it stays"
    hours.restart()
    hours.seen()
    assert hours.projecting.states["hours"].waits == said, "how many wait is not known yet"
    hours.seen(129)
    assert hours.rows == {1: 3}


def test_a_restart_and_rows_of_an_idle_hour_change_nothing(hours: Hours) -> None:
    hours.seen(5, 70, 75)
    hours.restart()
    hours.seen(9)
    assert hours.rows == {1: 2}
    before = DeltaTable(hours.lake.path("projection/hours")).version()
    hours.restart()
    hours.seen()
    assert DeltaTable(hours.lake.path("projection/hours")).version() == before


def test_a_watermark_that_goes_back_takes_nothing_back(hours: Hours) -> None:
    hours.seen(5, 70)
    assert hours.rows == {1: 1}
    # Another partition begins with old rows.
    hours.progress.watermarks.note("events.visit", "v/1", micros(START), partitions=2)
    hours.restart()
    hours.seen(80)
    assert hours.rows == {1: 1}


def test_a_rebuild_begins_with_the_watermark_of_the_table_it_replaces(hours: Hours) -> None:
    hours.seen(5, 70)
    hours.progress.watermarks.note("events.visit", "v/1", micros(START), partitions=2)
    epoch = hours.seen(80)
    # The live one goes on while the other is built.
    hours.progress.watermarks.note("events.visit", "v/1", micros(START + LONG), partitions=2)
    hours.seen(200)
    build = Rebuild(hours, epoch)
    run = build.run(epoch)
    live = hours.made.manifest.history_of(live_app("hours", 1))
    (then,) = [each for each in live if each.epoch == epoch]
    assert run.ended_us == then.counts["ended_us"] == micros(START + timedelta(hours=1))
    assert build.rows == {1: 1}


def test_a_rebuild_over_other_streams_begins_without_a_watermark(hours: Hours) -> None:
    epoch = hours.seen(5, 70)
    site = hours.made.site
    subject = subject_of(site, "hours")
    assert ended_before(site, subject, epoch) == micros(START + timedelta(hours=1))
    assert ended_before(site, subject, Epoch(epoch - 1)) is None
    other = HOURS.replace("events.visit", "events.other")
    assert ended_before(site, replace(subject, decl=declaration("hours", other)), epoch) is None


def test_a_projection_that_is_made_anew_begins_without_a_watermark(hours: Hours) -> None:
    hours.seen(5, 70)
    hours.made.deployed.set_status("hours", DROPPED)
    hours.projecting.step()
    # The stream begins anew too.
    hours.progress.watermarks.seen["events.visit"] = {}
    entry = Entry(kind=PROJECTION, name="hours", generation=2, status=LIVE, text=HOURS)
    hours.made.deployed.put([entry])
    hours.made.run("hours", SHAPE.empty_table(), 1, generation=2)
    hours.seen(21)
    assert hours.rows == {}


def test_p10_a_rebuild_corrects_nothing_once_more(hours: Hours) -> None:
    epoch = hours.seen(5, 70)
    build = Rebuild(hours, epoch)
    build.run(epoch)
    epoch = hours.seen(6)
    build.run(epoch)
    assert build.rows == hours.rows == {1: 2}
    assert corrections(hours) == [(epoch, "events.visit", 1, 2)]


def test_a_watermark_beyond_the_calendar_stops_no_loop(
    hours: Hours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.START", datetime(1, 1, 1, tzinfo=UTC))
    hours.seen(0)
    hours.seen(1)
    assert hours.projecting.states["hours"].waits == "final rows are out up to the year 1, 1 wait"


@dataclass
class Noted:
    """Epochs as the manifest has them, with times that a test chooses."""

    epochs: list[Committed]

    def at(self, epoch: int) -> Committed:
        return self.epochs[epoch - 1]

    def between(self, after: int, up_to: int) -> list[Committed]:
        return self.epochs[after:up_to]


def ended(epochs: list[Committed], *terms: StreamTerms) -> int | None:
    manifest = Noted(epochs)
    assert isinstance(manifest, Noted)
    return ended_up_to(manifest, epochs[-1].epoch, terms)


def term(name: str, idle_s: int | None = None, lateness_us: int = 0) -> StreamTerms:
    timeout = None if idle_s is None else timedelta(seconds=idle_s)
    return StreamTerms(
        name=name, lateness=timedelta(microseconds=lateness_us), idle_timeout=timeout
    )


def test_of_partitions_and_streams_the_least_counts() -> None:
    one = committed(1, 0, a={"0": 50, "1": 40}, b={"0": 30})
    assert ended([one], term("a")) == 40
    assert ended([one], term("a", lateness_us=7)) == 33
    assert ended([one], term("b")) is None, "a partition was not heard of"
    assert ended([one], term("a"), term("b")) is None
    assert ended([one], term("a"), term("c")) is None


def test_a_partition_without_any_record_is_not_waited_for() -> None:
    one = committed(1, 0, a={"topic/0": 50})
    assert ended([replace(one, end={"topic": {"0": 3, "1": 0}})], term("a")) == 50
    assert ended([replace(one, end={"topic": {"0": 3, "1": 2}})], term("a")) is None, "others'"
    assert ended([replace(one, end={"topic": {"0": 3}})], term("a")) is None, "it was not read"
    assert ended([replace(one, end={"other": {"1": 0}})], term("a")) is None


def test_what_is_idle_is_not_waited_for() -> None:
    first = committed(1, 0, a={"0": 10, "1": 40}, b={"0": 30, "1": 35})
    later = committed(2, 20, a={"0": 10, "1": 90}, b={"0": 30, "1": 35})
    assert ended([first, later], term("a"), term("b")) == 10
    assert ended([first, later], term("a", 20), term("b", 20)) == 90
    assert ended([first, later], term("a", 21), term("b", 21)) == 10, "not for so long yet"
    assert ended([first, later], term("a", 20), term("b")) == 30, "b is waited for"
    rests = committed(3, 60, a={"0": 10, "1": 90}, b={"0": 30, "1": 35})
    assert ended([first, later, rests], term("a", 20), term("b", 20)) == 90


def corrections(hours: Hours) -> list[tuple[object, ...]]:
    path = hours.lake.path("corrections/hours")
    if not DeltaTable.is_deltatable(path):
        return []
    rows = DeltaTable(path).to_pyarrow_table().sort_by("epoch").to_pylist()
    counts = [[json.loads(row[side] or "{}").get("n") for side in ("old", "new")] for row in rows]
    return [(row["epoch"], row["cause"], *n) for row, n in zip(rows, counts, strict=True)]


def test_a_row_that_was_out_and_changes_is_a_correction(hours: Hours) -> None:
    hours.seen(5, 70, 75)
    hours.seen(6, 8)
    hours.seen(-30)
    hours.seen(140)
    assert hours.rows == {0: 1, 1: 3, 2: 2}
    assert corrections(hours) == [
        (2, "events.visit", 1, 3),
        (3, "events.visit", None, 1),
    ]
    rows = DeltaTable(hours.lake.path("corrections/hours")).to_pyarrow_table().to_pylist()
    assert {row["projection"] for row in rows} == {"hours"}
    assert sorted(json.loads(row["key"])["window_end"] for row in rows) == [
        "2013-01-01T00:00:00+00:00",
        "2013-01-01T01:00:00+00:00",
    ]


SESSIONS = """
CREATE PROJECTION hours WITH (key = 'person, window_start', emit = 'final') AS
SELECT person, window_start, window_end, COUNT(*) AS n FROM STREAM events.visit
GROUP BY person, SESSION(occurred_at, '30 minutes');
"""


def test_a_session_that_was_out_and_grows_is_a_correction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("person", "window_start")
    kinds = {"person": pa.string(), "window_start": MOMENT}
    shape = pa.schema([*((name, kinds[name]) for name in names), *SHAPE])
    monkeypatch.setattr(f"{__name__}.HOURS", SESSIONS)
    monkeypatch.setattr(f"{__name__}.SHAPE", shape)
    visits = Hours(tmp_path)
    visits.seen(0, 41)
    # The row of minute 25 is late and joins both; the watermark passes the new end at once.
    visits.seen(25, 110)
    assert corrections(visits) == [(2, "events.visit", 1, 3)]


def test_anyone_can_query_corrections(hours: Hours) -> None:
    hours.seen(5, 70)
    hours.seen(6)
    assert "corrections/hours" in table_names(hours.lake)
    answer = ask(hours.lake, "SELECT epoch, cause, old, new FROM corrections.hours")
    assert [row["epoch"] for row in answer.rows.to_pylist()] == [2]


def test_a_restart_that_changes_nothing_corrects_nothing(hours: Hours) -> None:
    hours.seen(5, 70)
    hours.restart()
    hours.seen(141)
    assert hours.rows == {1: 1, 2: 1}
    assert corrections(hours) == []


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("point", ["projection_before_commit", "projection_after_commit"])
def test_p10_a_crash_leaves_each_correction_once(
    hours: Hours, point: str, forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours.seen(5, 70)
    crashed(hours, point, monkeypatch, 6)
    hours.seen(7, forgotten=forgotten)
    assert hours.rows == {1: 3}
    assert corrections(hours) == [(2, "events.visit", 1, 2), (3, "events.visit", 2, 3)]


def crashed(hours: Hours, point: str, monkeypatch: pytest.MonkeyPatch, minute: int) -> None:
    """Commit an epoch in which the loop dies, and start another one."""

    def crash(name: str) -> None:
        if name == getattr(failpoints, point.upper()):
            raise RuntimeError("crash")

    with monkeypatch.context() as crashing:
        crashing.setattr(failpoints, "hit", crash)
        with pytest.raises(AssertionError, match="crash"):
            hours.seen(minute)
    hours.restart()


@pytest.mark.parametrize("forgotten", [False, True])
def test_p6_p10_a_crash_before_the_note_loses_no_watermark(
    hours: Hours, forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours.seen(5, 65)
    crashed(hours, "projection_after_commit", monkeypatch, 70)
    assert hours.rows == {1: 1}
    # The watermark goes back meanwhile: another partition begins with old rows.
    hours.progress.watermarks.note("events.visit", "v/1", micros(START), partitions=2)
    hours.seen(6, forgotten=forgotten)
    assert hours.rows == {1: 2}
    assert corrections(hours) == [(3, "events.visit", 1, 2)]


def test_numbers_that_json_has_not_are_texts() -> None:
    row = {"a": float("nan"), "b": [float("-inf"), 1.5], "c": {"d": float("inf")}, "_end": 1}
    assert json.loads(_json(row), parse_constant=pytest.fail) == {
        "a": "NaN",
        "b": ["-Infinity", 1.5],
        "c": {"d": "Infinity"},
    }


def test_corrections_are_forgotten_with_the_retention(hours: Hours) -> None:
    assert forget_corrections(hours.lake, retention=timedelta(0)) == 0
    hours.seen(5, 70)
    hours.seen(6)
    assert forget_corrections(hours.lake, retention=timedelta(days=1)) == 0
    assert forget_corrections(hours.lake, retention=timedelta(0)) == 1
    assert corrections(hours) == []
