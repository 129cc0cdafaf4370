"""Events that executors write to typed tables are those that the driver would."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel import failpoints
from kernel.errors import LeaseLost
from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.executor_tasks import Executors, Task, TasksHere, WrittenFile
from lake.layout import Lake, events_log
from lake.table_columns import EVENTS
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.log.large_folds import LogRows
from pipeline.log.recent_rows import RecentRows
from pipeline.typed import event_rows, tasks
from pipeline.typed import tables as typed_module
from pipeline.typed.columns import Visible
from pipeline.typed.tables import TypedTables
from schemas.registry import MemoryRegistry
from schemas.wire import frame
from tests.support.lake.folding import AT
from tests.support.services.tier import examples

STORE = "store"
DRIVER = Executors()
EXECUTORS = Executors(tasks=TasksHere(), rows_at_once=lambda most: 0)
CATEGORIES = ("flight", "gate")
TEXTS = [
    [{"name": "n", "type": "long"}],
    [{"name": "n", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    [{"name": "n", "type": "string"}],
]
"""The schemas of events, by their ids: a column more, and a column of another type."""

Told = tuple[str, str, int]
"""Category, type and schema of an event."""
TOLD = st.tuples(
    st.sampled_from(CATEGORIES), st.sampled_from(["left", "landed"]), st.sampled_from([1, 1, 2])
)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each task about two rows."""
    cut = event_rows.parts_of
    monkeypatch.setattr(typed_module, "parts_of", lambda rows: cut(rows, most=2))


def registry() -> MemoryRegistry:
    made = MemoryRegistry()
    for number, fields in enumerate(TEXTS, start=1):
        text = json.dumps({"type": "record", "name": f"E{number}", "fields": fields})
        assert made.register(f"subject-{number}", text) == number
    return made


def event(told: Told, position: int, epoch: int) -> dict[str, object]:
    """Lay out an event as the log has it."""
    category, kind, schema_id = told
    schema = fastavro.parse_schema({"type": "record", "name": "E", "fields": TEXTS[schema_id - 1]})
    data = io.BytesIO()
    n: object = str(position) if schema_id == 3 else position
    if schema_id == 4:
        data.write(b"\x04\x7f\xff")  # The number 32767 as a long decimal.
    else:
        fastavro.schemaless_writer(data, schema, {"n": n, "note": f"note {position}"})
    return {
        "epoch": epoch,
        "position": position,
        "category": category,
        "type": kind,
        "stream": f"{category}-{position % 3}",
        "version": position,
        "event_id": str(position),
        "occurred_at": AT,
        "recorded_at": AT,
        "schema_id": schema_id,
        "data_format": 0,
        "data": frame(schema_id, data.getvalue()),
        "metadata": "{}",
        "tags": [],
        "store_id": STORE,
        "ingested_at": AT,
        "closed_late": position % 4 == 0,
    }


class Typing:
    """A lake whose log of events grows by epochs, and its typed tables."""

    def __init__(self, root: Path, executors: Executors, recent: RecentRows | None = None) -> None:
        self.lake = Lake.at(root)
        self.recent = recent
        self._executors = executors
        self._heads = [(Epoch(0), 0)]

    def log(self, told: Sequence[Told]) -> None:
        """Log events as one more epoch, some in a second file."""
        epoch, first = len(self._heads), self._heads[-1][1] + 1
        rows = [event(each, place, epoch) for place, each in enumerate(told, start=first)]
        for part, some in enumerate((rows[::2], rows[1::2])):
            ArrowWriter(Tables()).append(
                self.lake.path(events_log(STORE)),
                pa.Table.from_pylist(some, schema=EVENTS),
                Guard(f"log {part}", Epoch(epoch)),
                partition_by=["category"],
            )
        if self.recent is not None:
            whole = pa.Table.from_pylist(rows, schema=EVENTS)
            self.recent.add(events_log(STORE), Epoch(epoch), whole)
        self._heads.append((Epoch(epoch), self._heads[-1][1] + len(told)))

    def bring(self, after: int = 0) -> Attempts:
        """Bring typed tables from an epoch to the last one, as a new process would."""
        typed = TypedTables(self.lake, Tables(), registry(), self._executors, recent=self.recent)
        visible = Visible(self._heads[after][1], self._heads[after + 1 :])
        return typed.add_events(STORE, visible, self._heads[-1][0])

    def rows(self) -> dict[str, pa.Table]:
        found = {}
        for category in CATEGORIES:
            for kind in ("left", "landed"):
                name = f"typed/events.{category}.{kind}"
                rows = Tables().read(self.lake.path(name))
                if rows is not None:
                    found[name] = rows.sort_by("position").combine_chunks()
        return found


def files_of(made: Typing, name: str) -> set[str]:
    return {path.name for path in Path(made.lake.path(name)).glob("*.parquet")}


def declined(task: Task, parts: int) -> None:
    """Do all parts, and hand back that one of them was declined."""
    assert TasksHere()(task, parts)


@settings(max_examples=examples(3, matrix=6), deadline=None)
@given(st.lists(st.lists(TOLD, min_size=1, max_size=9), min_size=1, max_size=2))
@example([[("flight", "left", schema) for schema in (1, 2, 1, 2, 2, 1, 1)]])
@example([[("flight", "left", schema) for schema in (1, 3, 1)], [("gate", "left", 2)] * 3])
def test_p6_executors_write_the_events_that_the_driver_would(epochs: list[list[Told]]) -> None:
    found = []
    for executors in (DRIVER, EXECUTORS):
        with tempfile.TemporaryDirectory() as folder:
            made = Typing(Path(folder), executors)
            for number, told in enumerate(epochs):
                made.log(told)
                assert not made.bring(number).failed
            rows = made.rows()
            assert sum(each.num_rows for each in rows.values()) == sum(map(len, epochs))
            found.append(rows)
    assert found[0] == found[1]
    for name, one in found[0].items():
        assert one.schema.equals(found[1][name].schema)


@settings(max_examples=examples(3, matrix=6), deadline=None)
@given(st.lists(st.lists(TOLD, min_size=1, max_size=9), min_size=1, max_size=3))
def test_p6_rows_at_hand_give_the_events_that_the_log_would(epochs: list[list[Told]]) -> None:
    found = []
    for recent in (None, RecentRows(), RecentRows(most_bytes=2_000)):
        with tempfile.TemporaryDirectory() as folder:
            made = Typing(Path(folder), DRIVER, recent)
            for told in epochs:
                made.log(told)
            assert not made.bring().failed
            found.append(made.rows())
    assert found[0] == found[1] == found[2]


def test_rows_at_hand_are_not_read_and_a_missing_one_is(tmp_path: Path) -> None:
    recent = RecentRows()
    made = Typing(tmp_path, DRIVER, recent)
    for _ in range(2):
        made.log([("flight", "left", 1)] * 3)
    log = Path(made.lake.path(events_log(STORE)))
    files = [*log.rglob("*.parquet")]
    for file in files:
        file.rename(file.with_suffix(".gone"))
    assert not made.bring().failed
    assert made.rows()["typed/events.flight.left"].num_rows == 6
    # Who has not seen an epoch looks for its rows where they are.
    made.recent = RecentRows()
    made.log([("flight", "left", 1)] * 3)
    recent.add(events_log(STORE), Epoch(9), EVENTS.empty_table())
    assert recent.of_positions(events_log(STORE), 0, 9, Epoch(3)) is None
    assert recent.of_positions(events_log(STORE), 3, 6, Epoch(1)) is None, "it is of epoch 2"
    for file in files:
        file.with_suffix(".gone").rename(file)
    made.recent = recent
    assert not made.bring(2).failed
    assert made.rows()["typed/events.flight.left"]["position"].to_pylist() == [*range(1, 10)]


def test_p1_a_crash_before_the_commit_leaves_no_file_and_no_row_twice(tmp_path: Path) -> None:
    told = [("flight", ("left", "landed")[n % 2], 1) for n in range(8)]
    made = Typing(tmp_path, EXECUTORS)
    made.log(told)
    failpoints.arm(failpoints.TYPED_AFTER_PART)
    with pytest.raises(failpoints.Crash):
        made.bring()
    assert not made.rows()
    # Meanwhile the log has gone on: the next attempt comes to another epoch.
    made.log(told)
    assert not made.bring().failed
    assert [rows.num_rows for rows in made.rows().values()] == [8, 8]
    for name in made.rows():
        table = Tables().open(made.lake.path(name))
        assert table is not None
        assert files_of(made, name) == {Path(uri).name for uri in table.file_uris()}
    again = made.rows()
    assert not made.bring().failed
    assert made.rows() == again
    # A crash before the note of it: the tables are ahead of the cursor, and the log goes on.
    made.log(told)
    assert not made.bring().failed
    assert [rows.num_rows for rows in made.rows().values()] == [12, 12]


def test_p8_an_event_that_cannot_be_read_holds_its_own_table_alone(tmp_path: Path) -> None:
    made = Typing(tmp_path, EXECUTORS)
    made.log([("flight", "left", 1), ("flight", "landed", 1), ("gate", "left", 1)])
    rows = Tables().read(made.lake.path(events_log(STORE)))
    assert rows is not None
    odd = rows.filter(pa.array([kind == "landed" for kind in rows["type"].to_pylist()]))
    odd = odd.set_column(odd.schema.get_field_index("data_format"), "data_format", [[9]])
    rest = rows.filter(pa.array([kind != "landed" for kind in rows["type"].to_pylist()]))
    rows = pa.concat_tables([rest, odd.cast(rest.schema)])
    ArrowWriter(Tables()).overwrite(made.lake.path(events_log(STORE)), rows, Guard("odd", Epoch(1)))
    attempts = made.bring()
    assert list(attempts.failed) == ["typed/events.flight.landed"]
    assert sorted(attempts.done) == ["typed/events.flight.left", "typed/events.gate.left"]


def test_p8_what_a_library_raises_holds_its_own_table_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that fit their schema may still be no value: of a decimal, of a moment."""
    text = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0}
    monkeypatch.setattr(sys.modules[__name__], "TEXTS", [*TEXTS, [{"name": "n", "type": text}]])
    made = Typing(tmp_path, EXECUTORS)
    made.log([("flight", "left", 1), ("flight", "landed", 4), ("gate", "left", 1)])
    attempts = made.bring()
    assert list(attempts.failed) == ["typed/events.flight.landed"]
    assert sorted(attempts.done) == ["typed/events.flight.left", "typed/events.gate.left"]


def test_p7_a_lost_lease_of_an_executor_ends_the_step(tmp_path: Path) -> None:
    def lost(task: object, parts: int) -> list[WrittenFile]:
        raise LeaseLost("somebody else writes")

    made = Typing(tmp_path, Executors(tasks=lost, rows_at_once=lambda most: 0))
    made.log([("flight", "left", 1)])
    with pytest.raises(LeaseLost):
        made.bring()


def test_p1_what_executors_did_not_hand_over_is_read_type_by_type_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[set[str]] = []
    reading = LogRows.read

    def noted(rows: LogRows) -> pa.Table:
        found = reading(rows)
        read.append(set(found["type"].to_pylist()))
        return found

    made = Typing(tmp_path, Executors(tasks=lambda task, parts: None, rows_at_once=lambda most: 0))
    made.log([("flight", "left", 1), ("flight", "landed", 1), ("flight", "left", 1)])
    monkeypatch.setattr(LogRows, "read", noted)
    first = made.bring()
    assert read == [{"landed"}, {"left"}]
    read.clear()
    # A crash before the note of it: every table has the epoch.
    assert made.bring().done == first.done
    assert len(first.done) == 2
    assert not read


@pytest.mark.parametrize("fails", [False, True])
def test_files_of_executors_that_declined_go_when_the_table_has_its_rows(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where they cannot be removed, the table does not stand still for it."""

    def failing(*args: object, **options: object) -> int:
        raise OSError("the folder cannot be read")

    if fails:
        monkeypatch.setattr(tasks, "remove_left", failing)
    made = Typing(tmp_path, Executors(tasks=declined, rows_at_once=lambda most: 0))
    made.log([("flight", "left", 1), ("flight", "left", 2)])
    assert not made.bring().failed
    (name,) = made.rows()
    table = Tables().open(made.lake.path(name))
    assert table is not None
    left = files_of(made, name) - {Path(uri).name for uri in table.file_uris()}
    assert bool(left) == fails
