"""A source that is declared again has the rows of this declaration, and so has its history."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from kernel.positions import Epoch
from lake.layout import Lake, topics_log
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.history.shape import HistoryOf
from pipeline.history.tables import HistoryTables
from pipeline.typed.tables import TypedTables
from pipeline.typed.topics import typed_topic
from projections.run.catalog import LIVE, SOURCE, DeployedCatalog, Entry
from projections.run.derived_tables import DerivedTables
from projections.run.derived_topics import DerivedTopics
from projections.run.relations import LakeCatalog
from tests.property.test_mixed_topics import REGISTRY, logged
from tests.support.lake.handmade import NoSpark

WITH_END = (
    "CREATE SOURCE s (id STRING, v INT, gone BOOLEAN) WITH ("
    "topic = 't', format = json, key = id, deleted = 'gone');"
)
BY_VALUE = "CREATE SOURCE s (id STRING, v INT) WITH (topic = 't', format = json, key = v);"
TYPED, HISTORY = typed_topic("s"), "history/s"
NOW = Epoch(1)


class Declared:
    """A lake with one record of a topic, and whatever is declared of it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.tables = Tables()
        self.writer = ArrowWriter(self.tables)
        self.catalog = DeployedCatalog(lake, self.tables)
        self.typed = TypedTables(lake, self.tables, REGISTRY)
        self.topics = DerivedTopics(self.typed, self.catalog)
        self.declare(WITH_END)
        shape = self.catalog.deployment().topics["s"]
        rows = logged(shape, [(None, b'{"id": "k", "v": 1, "gone": true}')])
        for name, value in {"epoch": pa.array([1], pa.int64()), "closed_late": [False]}.items():
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(value))
        path = lake.path(topics_log("s"))
        self.writer.append(path, rows, Guard("log", NOW))

    def declare(self, text: str) -> None:
        self.catalog.put([Entry(kind=SOURCE, name="s", generation=1, status=LIVE, text=text)])

    def again(self, text: str) -> None:
        self.catalog.drop_source("s")
        self.declare(text)

    def bring(self) -> list[dict[str, Any]]:
        """Bring typed rows forward as if no epoch came meanwhile."""
        found = self.topics.bring(NOW, {TYPED}, (), moved=False, due=lambda _: True)
        assert not found.failed
        rows = self.tables.read(self.lake.path(TYPED))
        assert rows is not None
        wanted = [name for name in ("id", "v", "gone", "ends_key") if name in rows.schema.names]
        return rows.select(wanted).to_pylist()

    def history(self) -> HistoryOf:
        deployment = self.catalog.deployment()
        catalog = LakeCatalog(self.lake, self.tables, deployment, typed=[TYPED], fields={})
        found = catalog.history_of("s")
        assert found is not None
        return found


@pytest.fixture
def declared(lake: Lake) -> Declared:
    return Declared(lake)


def test_rows_are_made_anew_at_once_and_by_an_earlier_declaration_too(declared: Declared) -> None:
    first = [{"id": "k", "v": 1, "gone": True, "ends_key": True}]
    assert declared.topics.lacks({}, {})
    declared.topics.bring(NOW, (), (), moved=False, due=lambda _: True)
    assert declared.bring() == first
    for text, rows in (
        (BY_VALUE, [{"id": "k", "v": 1, "ends_key": False}]),
        (WITH_END, first),
    ):
        declared.again(text)
        assert declared.topics.declared_anew(())
        assert declared.topics.lacks({TYPED}, ())
        assert not declared.topics.lacks({}, {TYPED}), "what is held has pauses of its own"
        assert declared.bring() == rows
        assert not declared.topics.lacks({TYPED}, ())


def test_a_statement_is_the_same_until_it_is_dropped_or_another(declared: Declared) -> None:
    def told() -> str:
        return declared.catalog.deployment().topics["s"].fingerprint

    first = told()
    declared.declare(WITH_END)
    assert told() == first
    declared.again(WITH_END)
    again = told()
    declared.declare(BY_VALUE)
    assert len({first, again, told()}) == 3


def test_a_history_of_another_declaration_is_lacking_and_folded_from_the_beginning(
    declared: Declared,
) -> None:
    declared.topics.bring(NOW, (), (), moved=False, due=lambda _: True)
    histories = HistoryTables(NoSpark(), declared.lake, declared.tables)
    self = SimpleNamespace(_lake=declared.lake, _tables=declared.tables, topics=declared.topics)
    derived = cast(DerivedTables, self)
    at = TableAt(version=0, as_of_epoch=NOW)
    brought = SimpleNamespace(held={}, tables={HISTORY: at, TYPED: at})
    for text in (None, BY_VALUE, WITH_END):
        if text is not None:
            declared.again(text)
            declared.bring()
        history = declared.history()
        assert DerivedTables.lacks(derived, cast(Any, brought), [history])
        histories.fold(history, NOW)
        versions = declared.tables.read(declared.lake.path(HISTORY))
        assert versions is not None
        ended = text != BY_VALUE
        assert versions.select(["id", "_deleted"]).to_pylist() == [{"id": "k", "_deleted": ended}]
        assert not DerivedTables.lacks(derived, cast(Any, brought), [history])
        stored = declared.tables.open(declared.lake.path(HISTORY))
        assert history.cursor(stored) == NOW
        declared.again(text or WITH_END)
        assert declared.history().cursor(stored) is None, "what says the same is another statement"
