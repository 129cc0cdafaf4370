"""Every JSON object that an append accepts becomes a row, through intake, log and typed tables."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel.errors import SchemaViolation
from projections.log.layout import Lake
from projections.serve.query import ask
from tests.support.lake.telling import ToldLake
from tests.support.oracles.json_values import json_objects

OBJECTS = json_objects("a", "b", "stream", "version_", "_epoch", "type", "c")


def meant(value: Any) -> Any:
    """Return what a row can show: nulls, and objects and lists of nothing else, are no column."""
    match value:
        case dict():
            kept = {key: meant(item) for key, item in value.items()}
            return {key: item for key, item in kept.items() if item is not None} or None
        case list():
            items = [meant(item) for item in value]
            return items if any(item is not None for item in items) else None
        case _:
            return value


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row's own data, under the names that it was told with."""
    ours = {"event_id", "stream", "entity_id", "type", "version", "position"}
    ours |= {"occurred_at", "recorded_at"}
    data = {name: item for name, item in row.items() if name not in ours and name[0] != "_"}
    data |= {name: item for name, item in row.items() if name == "_epoch_"}
    renamed = {"stream_": "stream", "type_": "type", "version__": "version_", "_epoch_": "_epoch"}
    return meant({renamed.get(name, name): item for name, item in data.items()}) or {}


def refused_at(told: ToldLake, data: dict[str, Any]) -> str | None:
    """Append; return the place that a refusal names, None where it is accepted."""
    try:
        told.tell("placed", data)
    except SchemaViolation as refused:
        return str(refused.fields["path"])
    return None


def same(shown: Any, told: Any) -> bool:
    """Compare, where a whole number may be read as the double next to it: as Avro reads it."""
    match shown, told:
        case dict(), dict():
            return shown.keys() == told.keys() and all(same(shown[k], told[k]) for k in told)
        case list(), list():
            return len(shown) == len(told) and all(map(same, shown, told))
        case float(), int():
            return shown == float(told)
        case _:
            return bool(shown == told)


@settings(max_examples=25)
@given(st.lists(st.lists(OBJECTS, min_size=1, max_size=3), min_size=1, max_size=4))
@example([[{}], [{"n": 1, "options": {}}], [{"n": 1, "options": {"a": [{}]}}]])
@example([[{"a": 1}], [{"a": 1.5}], [{"a": [[], [None]]}]])
@example([[{"a": 1}, {"a": 2.5}], [{"b": {"c": 1}}], [{"b": {"c": 1.5, "a": "x"}}]])
@example([[{"a": 2**53 + 1}], [{"a": 0.5}]])
def test_every_accepted_object_is_a_row_with_its_values(epochs: list[list[dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told = ToldLake(Lake.at(Path(folder)))
        accepted: list[dict[str, Any]] = []
        for objects in epochs:
            for data in objects:
                if refused_at(told, data) is None:
                    accepted.append(data)
            told.epoch()
            told.bring()
        rows = told.rows("placed")
        assert [row["position"] for row in rows] == list(range(1, len(accepted) + 1))
        for row, data in zip(rows, accepted, strict=True):
            assert same(shown(row), meant(data) or {}), (row, data)


@pytest.mark.parametrize("data", [{}, {"n": 1, "options": {}}, {"list": []}, {"x": [{}, None]}])
def test_an_object_of_which_nothing_is_known_is_read_by_sql(
    lake: Lake, data: dict[str, Any]
) -> None:
    told = ToldLake(lake)
    told.tell("cancelled", data)
    told.epoch()
    told.bring()
    found = ask(lake, 'SELECT stream, version FROM typed."events.order.cancelled"').rows
    assert found.to_pylist() == [{"stream": "order-9", "version": 0}]
