"""Rounds of projections that read each other, by the pipeline's own loop, without Spark.

Small changes are computed in the pipeline's process: whatever would ask Spark fails here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import Conflict, InvalidRequest
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import Guard
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Projected
from pipeline.typed.columns import EVENT_COLUMNS
from projections.run import pending_notes
from projections.run.catalog import DROPPED, LIVE, PAUSED, PROJECTION, Entry
from projections.run.projection_rounds import Projecting
from projections.run.projector import Projector
from projections.run.region_runs import Reading
from projections.run.round_plans import RoundPlans
from projections.run.whole_tables import WholeTables
from replay.generations import live_app
from replay.slice_writer import SliceWriter
from replay.slices import Slicing, Whole, slice_guard
from replay.subject import generation_target, reachable, subject_of
from schemas.registry import MemoryRegistry
from service.caught_up import by_design
from service.standstills import of_pipeline
from tests.support.lake.handmade import HandMade, NoSpark
from tests.support.lake.swaps import rollback, swap

TYPED = "typed/events.visit.seen"
START = datetime(2013, 1, 1, tzinfo=UTC)
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
PERSONS = """
CREATE PROJECTION persons WITH (key = 'person', freshness = '1 hour') AS
SELECT person, COUNT(*) AS n FROM (SELECT person FROM STREAM events.visit) v GROUP BY person;
"""
NUMBERS = """
CREATE PROJECTION numbers WITH (key = 'n', freshness = '1 second') AS
SELECT n, COUNT(*) AS persons FROM persons GROUP BY n;
"""
DOUBLED = PERSONS.replace("COUNT(*) AS n", "COUNT(*) * 2 AS n")
COPIED = """
CREATE PROJECTION numbers WITH (key = 'person', freshness = '1 second') AS
SELECT person, n FROM persons;
"""
HALVED = PERSONS.replace("COUNT(*) AS n", "COUNT(*) / 2 AS n")
SHAPES = {
    "persons": pa.schema([("person", pa.string()), ("n", pa.int64()), ("_epoch", pa.int64())]),
    "numbers": pa.schema([("n", pa.int64()), ("persons", pa.int64()), ("_epoch", pa.int64())]),
}


class Rounds:
    """A lake in which `numbers` reads `persons`, and the loop that keeps both."""

    def __init__(self, place: Path, *, numbers: str = NUMBERS, ran: bool = True) -> None:
        """Not `ran`: the projections have no tables yet."""
        self.lake = Lake.at(place)
        self.made = HandMade(self.lake)
        self.position = 0
        # Who reads comes first: the order of deployment must not matter.
        for name, text in (("numbers", numbers), ("persons", PERSONS)):
            self.deploy(name, text)
            shape = SHAPES["persons" if text == COPIED else name]
            if ran:
                self.made.run(name, shape.empty_table(), 0)
        self.projecting = self.started()

    def started(self, registry: MemoryRegistry | None = None) -> Projecting:
        registry = registry or MemoryRegistry()
        return Projecting(NoSpark(), self.lake, registry, on_run=lambda *_: None)

    def deploy(self, name: str, text: str) -> None:
        entry = Entry(kind=PROJECTION, name=name, generation=1, status=LIVE, text=text)
        self.made.deployed.put([entry])

    def seen(self, persons: str, *, noted: bool = True) -> Epoch:
        """Commit an epoch with a visit of each person; not `noted`: the loop is to note it."""
        epoch = self.made.epoch()
        rows = []
        for person in persons:
            self.position += 1
            at = START + timedelta(minutes=self.position)
            rows.append(
                {name: None for name in SEEN.names}
                | {"person": person, "occurred_at": at, "_epoch": epoch, "_late": False}
                | {"_time": at, "_seq_hi": self.position, "_seq_lo": 0}
            )
        found = pa.Table.from_pylist(rows, SEEN)
        if noted:
            self.made.derive({TYPED: found}, epoch)
        else:
            self.made.writer.append(self.lake.path(TYPED), found, Guard(TYPED, epoch))
        return epoch

    def step(self) -> None:
        """Do one step of the loop, with `numbers` due and `persons` as it is."""
        if "numbers" in self.projecting.states:
            self.projecting.states["numbers"].due_at = 0.0
        self.projecting.step()

    def rows(self, name: str) -> dict[object, object]:
        table = DeltaTable(self.lake.path(f"projection/{name}")).to_pyarrow_table()
        key, value = table.schema.names[:2]
        return dict(zip(table[key].to_pylist(), table[value].to_pylist(), strict=True))

    def version(self, name: str) -> int:
        return int(DeltaTable(self.lake.path(f"projection/{name}")).version())

    def fits(self) -> bool:
        return self.rows("numbers") == dict(Counter(self.rows("persons").values()))

    def error(self, name: str) -> str | None:
        return self.projecting.states[name].error

    def swap_doubled(self, epoch: int) -> None:
        """Swap in a generation of `persons` whose numbers are doubled, as a build makes it."""
        rows = [
            {"person": person, "n": int(str(n)) * 2, "_epoch": epoch}
            for person, n in self.rows("persons").items()
        ]
        built = pa.Table.from_pylist(rows, SHAPES["persons"])
        self.made.build("persons", built, epoch, text=DOUBLED, base_text=PERSONS)
        swap(self.made.site, "persons", lambda replay: replay)


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    monkeypatch.setattr(pending_notes, "LONGEST_S", 60.0)
    return Rounds(tmp_path)


def test_p5_who_is_read_runs_before_whatever_its_freshness(rounds: Rounds) -> None:
    for persons in ("ab", "aac", "", "bbbd"):
        epoch = rounds.seen(persons)
        rounds.step()
        assert rounds.error("numbers") is None
        assert rounds.fits()
        assert {state.epoch for state in rounds.projecting.states.values()} == {epoch}
    assert rounds.rows("numbers") == {3: 1, 4: 1, 1: 2}


def test_a_process_that_starts_writes_nothing_that_is_right(rounds: Rounds) -> None:
    rounds.seen("aab")
    rounds.step()
    version = rounds.version("numbers")
    rounds.projecting = rounds.started()
    rounds.step()
    assert rounds.version("numbers") == version
    rounds.seen("b")
    rounds.step()
    assert rounds.rows("numbers") == {2: 2}


def test_derived_tables_are_noted_with_the_projections_that_read_them(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds.seen("ab")
    rounds.step()
    rounds.made.epoch()
    noted: list[list[str]] = []
    project_all = Manifest.project_all

    def told(own: Manifest, notes: Sequence[tuple[Projected, bool]]) -> None:
        noted.append([done.name for done, _ in notes])
        project_all(own, notes)

    monkeypatch.setattr(Manifest, "project_all", told)
    rounds.step()
    assert noted == [["typed", "projection/persons/g1", "projection/numbers/g1"]], "in one commit"


def test_a_round_that_did_all_there_is_to_do_is_followed_by_none(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds.seen("ab")
    rounds.step()
    monkeypatch.setattr(RoundPlans, "of", lambda *_: pytest.fail("it looks at the projections"))
    assert rounds.projecting.step() is False, "its own notes are no news"
    bound = Bound(epoch=rounds.made.next_epoch, run_id="t", batch_id=0, start={}, end={})
    rounds.made.manifest.bind(bound)
    assert rounds.projecting.step() is False, "nor is an epoch that is bound"


def test_what_a_round_brought_is_seen_before_files_are_put_together(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[str, set[int]]] = []

    def look(lake: Lake, _: Tables, names: Sequence[str], *more: object) -> list[str]:
        seen = Manifest(lake, Tables()).projected().values()
        looked.extend((name, {int(done.epoch) for done in seen}) for name in names)
        return []

    monkeypatch.setattr("projections.run.projection_rounds.compact", look)
    monkeypatch.setattr("projections.run.projection_rounds.COMPACT_EVERY", 1)
    rounds.seen("ab")
    rounds.step()
    assert not looked
    epoch = rounds.seen("a", noted=False)
    rounds.step()
    assert dict(looked).keys() >= {TYPED, "projection/persons", "projection/numbers"}
    assert all(seen == {epoch} for _, seen in looked)


def test_one_that_stands_still_keeps_those_that_read_it_where_they_fit(rounds: Rounds) -> None:
    rounds.seen("ab")
    rounds.step()
    rounds.made.deployed.set_status("persons", PAUSED)
    rounds.seen("a")
    rounds.step()
    assert "penstock projection resume persons" in str(rounds.error("numbers"))
    assert rounds.projecting.step() is False, "nothing is left to do until somebody resumes it"
    assert rounds.fits()
    rounds.made.deployed.set_status("persons", LIVE)
    rounds.step()
    assert rounds.error("numbers") is None
    assert rounds.rows("numbers") == {2: 1, 1: 1}


def test_the_error_of_one_is_told_by_those_that_read_it(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Projector.run

    def failing(self: Projector, plan: object, *more: object) -> object:
        if plan.name == "persons":
            raise InvalidRequest("cannot go on", remedy="Look.")
        return run(self, plan, *more)

    rounds.seen("ab")
    monkeypatch.setattr(Projector, "run", failing)
    rounds.step()
    assert "waits for the projection persons: cannot go on" in str(rounds.error("numbers"))


def test_one_whose_text_is_refused_stands_still_by_itself(rounds: Rounds) -> None:
    text = "SELECT date_trunc('day', n, 'UTC') AS n FROM persons"
    rounds.deploy("old", f"CREATE PROJECTION old WITH (key = 'n') AS {text}")
    rounds.seen("ab")
    rounds.step()
    assert rounds.fits()
    told = str(rounds.error("old"))
    assert "date_trunc does not take 3 arguments" in told
    assert "penstock projection drop old --yes" in told
    rounds.made.deployed.set_status("old", DROPPED)
    rounds.seen("a")
    rounds.step()
    assert rounds.fits()
    assert "old" not in rounds.projecting.states


def test_p5_the_swap_of_one_is_followed_at_the_same_epoch(rounds: Rounds) -> None:
    epoch = rounds.seen("aab")
    rounds.step()
    before = rounds.rows("numbers")
    rounds.swap_doubled(epoch)
    assert not rounds.fits()
    rounds.step()
    assert rounds.rows("numbers") == {4: 1, 2: 1}
    assert rounds.fits()
    runs = rounds.made.manifest.history_of(live_app("numbers", 1))
    noted = runs[-1].tables["projection/numbers"].version
    assert (runs[-1].epoch, noted) == (epoch, rounds.version("numbers")), "readers by epoch see it"
    rounds.seen("b")
    rounds.step()
    assert rounds.rows("numbers") == {4: 2}
    rollback(rounds.made.site, "persons")
    rounds.step()
    assert rounds.rows("persons") == {"a": 2, "b": 2}
    assert rounds.fits()
    assert before == {2: 1, 1: 1}


def test_p5_a_process_that_died_before_its_note_leaves_it_to_the_next(rounds: Rounds) -> None:
    """What it committed is right, so that nothing is left to commit for an epoch noted before."""
    epoch = rounds.seen("aab")
    rounds.step()
    rounds.swap_doubled(epoch)
    failpoints.arm(failpoints.PROJECTION_AFTER_COMMIT)
    with pytest.raises(failpoints.Crash):
        rounds.step()
    failpoints.disarm()
    assert rounds.rows("numbers") == {4: 1, 2: 1}
    for _ in range(2):
        rounds.projecting = rounds.started()
        rounds.step()
    runs = rounds.made.manifest.history_of(live_app("numbers", 1))
    assert runs[-1].tables["projection/numbers"].version == rounds.version("numbers")
    assert [run.epoch for run in runs[-2:]] == [epoch, epoch]
    assert runs[-2].tables != runs[-1].tables, "it is noted once"


def test_p5_notes_that_are_lost_with_their_process_repeat_nothing(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds.seen("ab")
    rounds.step()
    epoch = rounds.seen("aac", noted=False)

    def killed(*_: object) -> None:
        raise failpoints.Crash("before a note is there")

    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "project_all", killed)
        with pytest.raises(failpoints.Crash):
            rounds.step()
    written = [rounds.version(name) for name in SHAPES]
    assert rounds.rows("persons") == {"a": 3, "b": 1, "c": 1}, "its rows are there"
    names = ("typed", *(live_app(name, 1) for name in SHAPES))
    manifest = Manifest(rounds.lake, Tables())
    assert {manifest.noted(name) for name in names} == {epoch - 1}, "and nobody sees them by name"
    rounds.projecting = rounds.started()
    rounds.step()
    assert {manifest.noted(name) for name in names} == {epoch}
    assert [rounds.version(name) for name in SHAPES] == written
    assert rounds.fits()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_build_is_computed_twice_only_where_another_process_had_a_part(
    rounds: Rounds, resumed: bool
) -> None:
    """Its rows are wrong here, so that it shows whether they were computed once more."""
    epoch = rounds.seen("aab")
    rounds.step()
    site = rounds.made.site
    subject = subject_of(site, "numbers")
    whole = Whole(
        plan=subject.plan,
        target=generation_target(site, subject, 2, epoch, include_late=False),
        catalog=subject.catalog,
        up_to=epoch,
        slicing=Slicing(columns=("n",), slices=1),
        input_bytes=0,
    )
    wrong = pa.Table.from_pylist([{"n": 7, "persons": 7, "_epoch": epoch}], SHAPES["numbers"])
    guard = slice_guard("numbers", 2, 0)
    rounds.made.writer.append(whole.target.path, wrong, guard)
    projector = Projector(NoSpark(), rounds.lake, site.tables, site.manifest)
    SliceWriter(NoSpark(), projector, rounds.lake, site.tables).finish(whole, resumed=resumed)
    right = {2: 1, 1: 1}
    assert rounds.rows("numbers/_gen/2") == (right if resumed else {7: 7})
    assert site.manifest.noted(whole.target.app_id) == epoch


def test_a_swap_while_nothing_ran_is_followed_by_the_next_process(rounds: Rounds) -> None:
    epoch = rounds.seen("aab")
    rounds.step()
    rounds.swap_doubled(epoch)
    rounds.projecting = rounds.started()
    rounds.step()
    assert rounds.rows("numbers") == {4: 1, 2: 1}


def test_a_query_that_gives_who_reads_it_other_types_is_refused(tmp_path: Path) -> None:
    """The reader's table holds whole numbers, and halves would be cut off where they are merged."""
    rounds = Rounds(tmp_path, numbers=COPIED)
    rounds.seen("aab")
    rounds.step()
    with pytest.raises(
        Conflict, match=r"numbers reads persons, .* other types: n was BIGINT, is DOUBLE"
    ) as refused:
        subject_of(rounds.made.site, "persons", HALVED)
    assert "penstock projection drop numbers --yes" in str(refused.value.remedy)
    assert subject_of(rounds.made.site, "persons", DOUBLED).plan.columns


@pytest.mark.parametrize("again", [False, True], ids=["the process goes on", "it starts anew"])
def test_columns_of_another_type_are_never_merged(
    tmp_path: Path, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was swapped in before other types were refused is followed by writing the whole."""
    rounds = Rounds(tmp_path, numbers=COPIED)
    epoch = rounds.seen("aab")
    rounds.step()
    before = rounds.rows("numbers")
    halves = [
        {"person": person, "n": int(str(n)) / 2, "_epoch": epoch}
        for person, n in rounds.rows("persons").items()
    ]
    shape = pa.schema([("person", pa.string()), ("n", pa.float64()), ("_epoch", pa.int64())])
    built = pa.Table.from_pylist(halves, shape)
    rounds.made.build("persons", built, epoch, text=HALVED, base_text=PERSONS)
    monkeypatch.setattr("replay.deployment.check_deployable", lambda *_: None)
    swap(rounds.made.site, "persons", lambda replay: replay)
    if again:
        rounds.projecting = rounds.started()
    written = []

    def whole(tables: WholeTables, reading: Reading, *more: object) -> tuple[int, int]:
        written.append(reading.plan.name)
        return rounds.version("numbers"), 0

    monkeypatch.setattr(WholeTables, "write", whole)
    rounds.step()
    assert rounds.error("numbers") is None
    assert rounds.rows("numbers") == before
    assert written == ["numbers"]


def test_a_build_reads_another_projection_as_it_was_at_its_epoch(rounds: Rounds) -> None:
    first = rounds.seen("ab")
    rounds.step()
    versions = {first: rounds.version("persons")}
    second = rounds.seen("a")
    rounds.step()
    versions[second] = rounds.version("persons")
    assert versions[first] < versions[second]
    subject = subject_of(rounds.made.site, "numbers")
    for epoch, version in versions.items():
        target = generation_target(rounds.made.site, subject, 2, epoch, include_late=False)
        assert target.versions == {"projection/persons": version}
    rounds.made.epoch()
    assert reachable(rounds.made.site, subject) == second


def test_what_others_read_is_not_dropped_nor_changed_so_that_they_fail(rounds: Rounds) -> None:
    site = rounds.made.site
    rounds.seen("a")
    with pytest.raises(Conflict, match="numbers read the projection persons") as refused:
        rounds.made.deployed.set_status("persons", DROPPED)
    assert "penstock projection drop numbers --yes" in str(refused.value.remedy)
    with pytest.raises(
        Conflict, match=r"numbers reads persons, and not with this query: .* has a column n"
    ):
        subject_of(site, "persons", PERSONS.replace("AS n", "AS m"))
    circle = NUMBERS.replace("numbers", "persons").replace("FROM persons", "FROM numbers")
    with pytest.raises(InvalidRequest, match="in a circle"):
        subject_of(site, "persons", circle)
    rounds.made.deployed.set_status("numbers", DROPPED)
    rounds.made.deployed.set_status("persons", DROPPED)


@pytest.mark.parametrize("registered", [False, True])
def test_one_whose_input_has_no_row_waits_for_the_first_and_stands_nowhere_still(
    tmp_path: Path, registered: bool
) -> None:
    rounds = Rounds(tmp_path, ran=False)
    if registered:
        field = {"name": "person", "type": "string"}
        schema = {"type": "record", "name": "seen", "fields": [field]}
        registry = MemoryRegistry()
        registry.register("visit.seen", json.dumps(schema))
        rounds.projecting = rounds.started(registry)

    def told(epoch: int) -> Mapping[str, str]:
        state = {"projections": rounds.projecting.documents()}
        assert not of_pipeline(state)
        return by_design(state, Epoch(epoch))

    empty = rounds.made.epoch()
    rounds.step()
    assert told(empty + 1) == {}
    for _ in range(3):
        rounds.step()
        waits = told(empty)
        assert waits.keys() == {"projection persons", "projection numbers"}
        assert all(why.startswith("waits for the first row: ") for why in waits.values())
        assert "events.visit" in waits["projection persons"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RoundPlans, "of", lambda *_: pytest.fail("only an epoch changes anything"))
        assert not rounds.projecting.step()
    epoch = rounds.seen("a")
    assert told(epoch) == {}, "nobody has looked for rows of that epoch yet"
    # Another process brought the typed table there: one that starts sees it.
    rounds.projecting = rounds.started()
    rounds.step()
    assert rounds.fits()
    assert rounds.rows("persons") == {"a": 1}
    assert told(empty) == {}


def test_who_waited_for_a_first_row_runs_when_it_is_deployed_anew(rounds: Rounds) -> None:
    text = PERSONS.replace("persons", "visits")
    field = {"name": "person", "type": "string"}
    registry = MemoryRegistry()
    schema = {"type": "record", "name": "seen", "fields": [field]}
    registry.register("trip.seen", json.dumps(schema))
    rounds.projecting = rounds.started(registry)
    rounds.seen("aab")
    rounds.deploy("visits", text.replace("events.visit", "events.trip"))
    for _ in range(3):
        rounds.step()
    assert rounds.projecting.states["visits"].first_row is not None
    # Of those that may be older one takes long, so that no round runs both.
    rounds.projecting.states["persons"].last_ms = 60_000.0
    rounds.deploy("visits", text)
    for _ in range(3):
        rounds.projecting.step()
    assert rounds.projecting.states["visits"].first_row is None
    assert rounds.rows("visits") == {"a": 2, "b": 1}
