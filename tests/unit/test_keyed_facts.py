"""Facts that a target has by their keys: where they are found, and until when they are held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kernel.errors import BeyondThisProcess, PenstockError, StorageFull, TooLarge
from kernel.positions import Epoch
from lake.ranges import Range
from lake.small_files import SmallFiles
from projections.run import engines, keyed_facts, operator_tables
from projections.run.database import Database
from projections.run.engines import PlanSessions
from projections.run.input_rows import epochs, fact_schema
from projections.run.kept_statements import ArrowViews
from projections.run.keyed_facts import KeyedFacts
from projections.run.region_runs import Reading
from projections.run.relations import LakeCatalog
from projections.run.sorted_runs import SortedRuns
from projections.sql.operators.tree import scans
from tests.unit.test_region_runs import APP, World

NEWEST = """
CREATE PROJECTION visits WITH (key = 'person') AS SELECT person, page FROM STREAM events.visit;
"""
PAGES = pa.table({"page": pa.array([3, 77, None], pa.int64())})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a lake whose facts are more than are looked through, with runs of a few rows."""
    monkeypatch.setattr(engines, "MANY_ROWS", 3)
    monkeypatch.setattr(operator_tables, "RUN_ROWS", 2)
    monkeypatch.setattr(keyed_facts, "PART_ROWS", 3)
    made = World(tmp_path)
    made.seen(1, 1, 2, 3, 4)
    made.seen(2, 3, 5)
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the stretches of epochs of which the log is read, as they come."""
    found: list[tuple[int, int]] = []
    plain = engines.facts

    def facts(*given: Any, **more: Any) -> Iterator[pa.Table]:
        (came,) = [each for each in given[4] if isinstance(each, Range)]
        found.append((int(str(came.lower)), int(str(came.upper))))
        return plain(*given, **more)

    monkeypatch.setattr(engines, "facts", facts)
    return found


@pytest.fixture
def sessions(world: World) -> Iterator[Callable[..., PlanSessions]]:
    made: list[PlanSessions] = []

    def make(*, brief: bool = False) -> PlanSessions:
        sessions = PlanSessions(Database(), world.lake, world.tables, SmallFiles(), brief=brief)
        made.append(sessions)
        return sessions

    yield make
    for each in made:
        each.close()


def pages(
    sessions: PlanSessions, reading: Reading, up_to: int, keys: pa.Table = PAGES
) -> Sequence[int]:
    """Return the pages of the facts that are found for some keys."""
    (scan,) = scans(reading.plan.tree)
    with sessions.engine(reading, Epoch(up_to)) as engine:
        engine.facts(scan, [epochs(0, up_to)], keys=keys)
        rows = engine.rows(f"SELECT page FROM {scan.view}", [c for c in scan.columns][1:])
    return sorted(rows["page"].to_pylist())


def test_facts_of_keys_are_found_and_what_came_is_added(
    world: World, sessions: Callable[..., PlanSessions], read: list[tuple[int, int]]
) -> None:
    own, reading = sessions(), world.reading(NEWEST)
    assert pages(own, reading, 2) == [3, 3]
    world.seen(3, 77, 78, 3)
    assert pages(own, reading, 3) == [3, 3, 3, 77]
    assert pages(own, reading, 3, pa.table({"page": pa.array([], pa.int64())})) == []
    assert read == [(1, 3), (3, 4), (4, 4)], "what was read once is not read again"
    assert (own.state_bytes(APP) or 0) > 0


def test_few_facts_are_looked_through(
    world: World, sessions: Callable[..., PlanSessions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "MANY_ROWS", 6)
    own = sessions()
    assert pages(own, world.reading(NEWEST), 2) == [1, 2, 3, 3, 4, 5]
    assert own.state_bytes(APP) is None


def test_a_run_of_an_epoch_before_begins_anew(
    world: World, sessions: Callable[..., PlanSessions], read: list[tuple[int, int]]
) -> None:
    own, reading = sessions(), world.reading(NEWEST)
    pages(own, reading, 2)
    assert pages(own, reading, 1) == [3]
    assert read == [(1, 3), (1, 2)]


def test_another_plan_begins_anew(
    world: World,
    sessions: Callable[..., PlanSessions],
    read: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = sessions()
    pages(own, world.reading(NEWEST), 2)
    assert pages(own, world.reading(NEWEST), 2) == [3, 3]
    assert read == [(1, 3), (3, 3)], "the same one, as of another deployment"
    other = NEWEST.replace("person, page", "person, page + 1 AS page")
    assert pages(own, world.reading(other), 2) == [3, 3]
    assert pages(own, world.reading(other, include_late=True), 2) == [3, 3]
    assert read == [(1, 3), (3, 3), (1, 3), (1, 3)]
    monkeypatch.setattr(LakeCatalog, "declared_by", lambda *_: "another declaration")
    assert pages(own, world.reading(other, include_late=True), 2) == [3, 3]
    assert read[4:] == [(1, 3)]


def test_a_brief_run_leaves_it_to_another_and_takes_it_over(
    world: World, sessions: Callable[..., PlanSessions], read: list[tuple[int, int]]
) -> None:
    own, beside, reading = sessions(brief=True), sessions(), world.reading(NEWEST)
    with pytest.raises(BeyondThisProcess, match="takes long"):
        pages(own, reading, 2)
    pages(beside, reading, 2)
    own.take_over(beside, APP)
    assert pages(own, reading, 2) == [3, 3]
    assert read == [(1, 3), (3, 3)]
    own.keep_only(())
    with pytest.raises(BeyondThisProcess):
        pages(own, reading, 2)


def test_of_keys_with_more_facts_than_fit_the_log_is_read(
    world: World, sessions: Callable[..., PlanSessions]
) -> None:
    own, reading = sessions(), world.reading(NEWEST)
    (scan,) = scans(reading.plan.tree)
    engine = own.engine(reading, Epoch(2))
    engine._most_bytes = 10
    with pytest.raises(BeyondThisProcess, match="more rows of an input"):
        engine.facts(scan, [epochs(0, 2)], keys=PAGES)
    assert pages(own, reading, 2) == [1, 2, 3, 3, 4, 5], "it is not tried again"
    assert own.state_bytes(APP) is None
    brief = sessions(brief=True)
    brief.take_over(own, APP)
    assert pages(brief, reading, 2) == [1, 2, 3, 3, 4, 5], "and nobody else is asked to"


def test_keys_that_hashes_do_not_tell_apart_are_looked_for_in_the_log(
    world: World, sessions: Callable[..., PlanSessions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_tables, "_FLOATS", ("BIGINT",))
    own, brief, reading = sessions(), sessions(brief=True), world.reading(NEWEST)
    assert pages(own, reading, 2) == [1, 2, 3, 3, 4, 5]
    brief.take_over(own, APP)
    assert pages(brief, reading, 2) == [1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize("error", [StorageFull, TooLarge])
def test_without_room_for_them_the_log_is_read(
    world: World,
    sessions: Callable[..., PlanSessions],
    monkeypatch: pytest.MonkeyPatch,
    error: type[PenstockError],
) -> None:
    def refused(*_: object) -> object:
        raise error("there is no room", remedy="Make room.")

    own, reading = sessions(), world.reading(NEWEST)
    with monkeypatch.context() as patched:
        patched.setattr(SortedRuns, "_written", refused)
        assert pages(own, reading, 2) == [1, 2, 3, 3, 4, 5]
    assert pages(own, reading, 2) == [1, 2, 3, 3, 4, 5], "it is not tried again"


def test_few_large_facts_are_a_part_and_none_that_were_found_stay_in_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_facts, "PART_ROWS", 100)
    monkeypatch.setattr(keyed_facts, "PART_BYTES", 1)
    (scan,) = scans(world.reading(NEWEST).plan.tree)
    taken: list[int] = []
    made: list[ArrowViews] = []
    insert, plain = Database.insert, ArrowViews.put

    def inserted(own: Database, table: str, rows: Sequence[pa.Table]) -> int:
        taken.append(sum(part.num_rows for part in rows))
        return insert(own, table, rows)

    def put(own: ArrowViews, view: str, rows: pa.Table) -> None:
        made.append(own)
        plain(own, view, rows)

    monkeypatch.setattr(Database, "insert", inserted)
    monkeypatch.setattr(ArrowViews, "put", put)
    rows = [{"page": page} for page in (3, 4, 3)]
    parts = [pa.Table.from_pylist(rows, fact_schema(scan)) for _ in range(3)]
    kept = KeyedFacts()
    found = kept.of(scan, PAGES, Epoch(1), lambda _: parts, most_bytes=2**20)
    assert found is not None
    assert found.num_rows == 6
    assert taken == [3, 3, 3, 0]
    assert made[-1].rows_of("near_facts_0").num_rows == 0
    kept.close()
