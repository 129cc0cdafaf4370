"""Groups that new facts are added to, on a lake's tables: what is read, and what a crash leaves.

Small changes are computed in the pipeline's process: whatever would ask Spark fails here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from kernel import failpoints
from kernel.errors import Incompatible, TooLarge
from kernel.positions import Epoch
from lake.file_merges import FileMerges
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest_rows import Projected
from pipeline.typed.columns import EVENT_COLUMNS
from projections.run import engines
from projections.run.catalog import LIVE, PROJECTION, Entry
from projections.run.projection_states import Run
from projections.run.projector import Projector
from projections.run.region_runs import RegionRuns
from projections.run.targets import live_target
from projections.serve.keyed_rows import visible
from replay.subject import subject_of
from tests.support.lake.handmade import HandMade, NoSpark

TYPED = "typed/events.visit.seen"
START = datetime(2013, 1, 1, tzinfo=UTC)
MOMENT = pa.timestamp("us", "UTC")
SEEN = pa.schema(
    [
        ("person", pa.string()),
        ("stay", pa.int32()),
        *EVENT_COLUMNS,
        *(("_epoch", pa.int64()), ("_late", pa.bool_()), ("_time", MOMENT)),
        *(("_seq_hi", pa.int64()), ("_seq_lo", pa.int64())),
    ]
)
STAYS = """
CREATE PROJECTION stays WITH (key = 'person') AS
SELECT person, COUNT(*) AS n, AVG(stay) AS mean, MAX(stay) AS longest, stay AS last
FROM STREAM events.visit GROUP BY person;
"""
HOURS = """
CREATE PROJECTION hours WITH (key = 'window_start, person') AS
SELECT window_start, person, COUNT(stay) AS n, SUM(stay) AS total
FROM STREAM events.visit GROUP BY person, HOP(occurred_at, '30 minutes', '1 hour');
"""
LASTS = """
CREATE PROJECTION lasts WITH (key = 'person') AS
SELECT person, COUNT(*) AS n, stay AS last FROM STREAM events.visit GROUP BY person;
"""
ANEW = {
    name: f"""
CREATE PROJECTION {name} WITH (key = 'person') AS
SELECT person, {computed} AS n FROM STREAM events.visit GROUP BY person;
"""
    for name, computed in (
        ("middles", "MEDIAN(stay)"),
        ("kinds", "COUNT(DISTINCT stay)"),
    )
}
"""Their groups are kept by operators that are begun."""
OF_KEYS = {
    "listed": """
CREATE PROJECTION listed WITH (key = 'person') AS
SELECT person, STRING_AGG(CAST(stay AS STRING), ',' ORDER BY stay) AS n
FROM STREAM events.visit GROUP BY person;
"""
}
"""Its groups are computed anew, of the facts of their keys."""
TEXTS = {"stays": STAYS, "hours": HOURS, "lasts": LASTS}
HOPS = "FROM STREAM events.visit GROUP BY person, HOP(occurred_at, '30 minutes', '1 hour')"
QUOTIENTS = {
    "shares": f"""
CREATE PROJECTION shares WITH (key = 'window_start, person') AS
SELECT window_start, person, COUNT(DISTINCT stay) AS n, COUNT(*) / SUM(stay) AS share {HOPS};
""",
    "chosen": f"""
CREATE PROJECTION chosen WITH (key = 'window_start, person') AS
SELECT window_start, person, COUNT(DISTINCT stay) AS n {HOPS} HAVING COUNT(*) / SUM(stay) < 9;
""",
}
"""What cannot be computed of a group that lacks the right facts."""
Visit = tuple[str, int, int | None]
"""Who, at which minute, how long."""


@dataclass
class Visits:
    """A lake with visits, and the projections that count them."""

    place: Path
    position: int = 0
    made: HandMade = field(init=False)

    def __post_init__(self) -> None:
        self.lake = Lake.at(self.place)
        self.made = HandMade(self.lake)
        self.made.deployed.put(
            [
                Entry(kind=PROJECTION, name=name, generation=1, status=LIVE, text=text)
                for name, text in (TEXTS | ANEW | OF_KEYS).items()
            ]
        )
        self.start()

    def start(self) -> None:
        """Begin a process."""
        self.tables = Tables()
        self.projector = Projector(NoSpark(), self.lake, self.tables, self.made.site.manifest)

    def seen(self, visits: Sequence[Visit]) -> Epoch:
        epoch = self.made.epoch()
        rows = []
        for person, minute, stay in visits:
            self.position += 1
            at = START + timedelta(minutes=minute)
            rows.append(
                {name: None for name in SEEN.names}
                | {"person": person, "stay": stay, "occurred_at": at, "_epoch": epoch}
                | {"_late": False, "_time": at, "_seq_hi": self.position, "_seq_lo": 0}
            )
        self.made.derive({TYPED: pa.Table.from_pylist(rows, SEEN)}, epoch)
        return epoch

    def run(self, name: str, epoch: Epoch) -> Run:
        subject = subject_of(self.made.site, name)
        target = live_target(self.lake, name, 1)
        return self.projector.run(subject.plan, target, subject.catalog, epoch)

    def path(self, name: str) -> str:
        return self.lake.path(f"projection/{name}")

    def rows(self, name: str) -> list[dict[str, object]]:
        """All that the table has, but for when it was written."""
        found = DeltaTable(self.path(name)).to_pyarrow_table().drop_columns(["_epoch"])
        return sorted(found.to_pylist(), key=str)


def drawn(seed: int, count: int) -> list[Visit]:
    chance = random.Random(seed)
    return [
        (chance.choice("abcdefgh"), chance.randrange(300), chance.choice([None, 1, 5, 9]))
        for _ in range(count)
    ]


def test_p6_what_crashes_leave_is_added_once(tmp_path: Path) -> None:
    kept, whole = Visits(tmp_path / "kept"), Visits(tmp_path / "whole")
    came = drawn(1, 60)
    points = [None, failpoints.PROJECTION_BEFORE_COMMIT, failpoints.PROJECTION_AFTER_COMMIT]
    for number in range(0, 60, 10):
        epoch = kept.seen(came[number : number + 10])
        for name in TEXTS:
            point = points[(number // 10 + len(name)) % 3]
            if point is not None:
                failpoints.arm(point, "raise")
                with pytest.raises(failpoints.Crash):
                    kept.run(name, epoch)
                failpoints.disarm()
                kept.start()
            kept.run(name, epoch)
    last = whole.seen(came)
    for name in TEXTS:
        assert whole.run(name, last).whole
        assert kept.rows(name) == whole.rows(name)
        assert kept.rows(name)


def test_no_facts_of_before_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visits = Visits(tmp_path)
    first = visits.seen(drawn(2, 30))
    for name in TEXTS:
        visits.run(name, first)
    read: list[int] = []
    plain = engines.facts

    def facts(*given: Any, **more: Any) -> Iterator[pa.Table]:
        for part in plain(*given, **more):
            read.append(part.num_rows)
            yield part

    monkeypatch.setattr(engines, "facts", facts)
    epoch = visits.seen(drawn(3, 2))
    for name in TEXTS:
        run = visits.run(name, epoch)
        assert not run.whole
        assert run.rows
    assert sum(read) == 2 * len(TEXTS)


def test_readers_see_the_columns_of_the_query_alone(tmp_path: Path) -> None:
    visits = Visits(tmp_path)
    visits.run("stays", visits.seen(drawn(4, 10)))
    table = DeltaTable(visits.path("stays"))
    stored = table.to_pyarrow_table().schema.names
    assert [*visible(table).names] == ["person", "n", "mean", "longest", "last"]
    assert {name for name in stored if name.startswith("_partial_")}


@pytest.mark.parametrize("name", [*QUOTIENTS])
def test_groups_of_other_keys_are_not_computed_of_a_part_of_their_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A fact is in two hopping windows, and a change may touch one of them."""
    monkeypatch.setitem(TEXTS, name, QUOTIENTS[name])
    came = [("a", 5, 1), ("a", 35, 0), ("a", 65, 1)], [("a", 6, 1)]
    kept, whole = Visits(tmp_path / "kept"), Visits(tmp_path / "whole")
    for visits in came:
        kept.run(name, kept.seen(visits))
    whole.run(name, whole.seen([*came[0], *came[1]]))
    assert kept.rows(name) == whole.rows(name)
    assert kept.rows(name)


@pytest.mark.parametrize("lacks", ["_partial_0", "_time"])
def test_a_table_of_an_earlier_version_is_written_anew_once(tmp_path: Path, lacks: str) -> None:
    visits = Visits(tmp_path)
    first = visits.seen(drawn(5, 20))
    visits.run("stays", first)
    rows = DeltaTable(visits.path("stays")).to_pyarrow_table().drop_columns([lacks])
    guard = Guard(live_target(visits.lake, "stays", 1).app_id, first, True)
    ArrowWriter(Tables()).overwrite(visits.path("stays"), rows, guard)
    visits.start()
    assert visits.run("stays", visits.seen(drawn(6, 3))).whole
    assert not visits.run("stays", visits.seen(drawn(7, 3))).whole


@pytest.mark.parametrize(("name", "column", "a"), [("stays", "mean", 4.0), ("lasts", "last", 3)])
def test_rows_that_other_software_merged_are_not_added_to(
    tmp_path: Path, name: str, column: str, a: float
) -> None:
    visits = Visits(tmp_path)
    visits.run(name, visits.seen([("a", 1, 1), ("b", 2, 9)]))
    visits.run(name, visits.seen([("a", 3, 2), ("a", 9, 3)]))
    # Software that knows no hidden columns leaves NULL in the rows that it merges.
    rows = DeltaTable(visits.path(name)).to_pyarrow_table()
    for place, each in enumerate(rows.schema):
        if each.name.startswith(("_partial_", "_time", "_seq_")):
            rows = rows.set_column(place, each, pa.nulls(rows.num_rows, each.type))
    target = live_target(visits.lake, name, 1)
    last = visits.seen([("b", 5, 9)])
    version = ArrowWriter(Tables()).overwrite(target.path, rows, Guard(target.app_id, last))
    at = TableAt(version=version, as_of_epoch=last)
    noted = Projected(epoch=last, name=target.app_id, tables={target.name: at})
    visits.made.site.manifest.project(noted)
    visits.start()
    for stay, whole in ((10, True), (4, False)):
        # Late ones: the newest is known from before.
        assert visits.run(name, visits.seen([("a", 6, stay)])).whole == whole
        assert {row["person"]: row[column] for row in visits.rows(name)} == {"a": a, "b": 9}


@pytest.mark.parametrize("name", ["stays", *ANEW])
@pytest.mark.parametrize("how", ["apart", "together", "otherwise"])
def test_a_key_that_other_software_wrote_once_more_is_told_with_the_way_out(
    tmp_path: Path, how: str, name: str
) -> None:
    visits = Visits(tmp_path)
    visits.run(name, visits.seen([("a", 1, 1), ("b", 2, 9)]))
    rows = DeltaTable(visits.path(name)).to_pyarrow_table()
    again = rows.filter(pc.equal(rows["person"], "a"))
    if how == "otherwise":
        again = again.set_column(
            1, again.schema.field(1), pa.array([7], again.schema.field(1).type)
        )
    if how == "together":
        both = pa.concat_tables([rows, again])
        write_deltalake(visits.path(name), both, mode="overwrite")
    else:
        write_deltalake(visits.path(name), again, mode="append")
    visits.start()
    # What is begun anew looks at all rows; else a key is looked at that changes.
    epoch = visits.seen([("c" if name == "kinds" else "a", 6, 4)])
    told = rf"the table of {name} has a key more than once: person = a; something else wrote"
    for _ in range(2):  # It stays so: nothing is written.
        with pytest.raises(Incompatible, match=told) as refused:
            visits.run(name, epoch)
    assert f"penstock replay apply {name}, penstock replay verify {name}" in refused.value.remedy


def test_a_key_that_is_there_twice_is_told_of_a_table_that_is_too_large_to_be_merged_here(
    tmp_path: Path,
) -> None:
    visits = Visits(tmp_path)
    visits.run("listed", visits.seen([("a", 1, 1), ("b", 2, 9)]))
    rows = DeltaTable(visits.path("listed")).to_pyarrow_table()
    write_deltalake(visits.path("listed"), rows, mode="append")
    visits.start()
    visits.projector._writer._files = FileMerges(most_bytes=0)
    told = "the table of listed has a key more than once"
    with pytest.raises(Incompatible, match=told):
        visits.run("listed", visits.seen([("a", 6, 4)]))
    assert visits.run("listed", visits.seen([("c", 6, 4)])).rows == 1, "others go on"


def test_what_does_not_fit_into_memory_is_computed_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the values of one key of which there are too many: it goes on, if slower."""
    visits = Visits(tmp_path)
    visits.run("middles", visits.seen([("a", 1, 1), ("b", 2, 9)]))
    visits.start()

    def full(*_: object) -> NoReturn:
        raise TooLarge("no room")

    with monkeypatch.context() as patched:
        patched.setattr(RegionRuns, "changes", full)
        assert visits.run("middles", visits.seen([("a", 6, 4), ("a", 7, 9)])).whole
    rows = [{"person": "a", "n": 4.0}, {"person": "b", "n": 9.0}]
    assert visits.rows("middles") == rows
    visits.run("middles", visits.seen([("b", 8, 1)]))
    assert visits.rows("middles") == [rows[0], {"person": "b", "n": 5.0}]
