"""Every JSON object that an append accepts becomes a row, through intake, log and typed tables."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel.errors import SchemaViolation
from lake.layout import Lake
from projections.serve.query import ask
from tests.support.lake.telling import ToldLake
from tests.support.oracles.json_rows import meant, same, shown
from tests.support.oracles.json_values import json_objects
from tests.support.services.tier import examples

OBJECTS = json_objects("a", "b", "stream", "version_", "_epoch", "type", "c")


def refused_at(told: ToldLake, data: dict[str, Any]) -> str | None:
    """Append; return the place that a refusal names, None where it is accepted."""
    try:
        told.tell("placed", data)
    except SchemaViolation as refused:
        return str(refused.fields["path"])
    return None


@settings(max_examples=examples(5, matrix=25))
@given(st.lists(st.lists(OBJECTS, min_size=1, max_size=3), min_size=1, max_size=4))
@example([[{}, {"a": 1}, {"b": {"b": {"c": "x"}}}]])
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
        fields = list(dict.fromkeys(name for data in accepted for name in data))
        assert [row["position"] for row in rows] == list(range(1, len(accepted) + 1))
        for row, data in zip(rows, accepted, strict=True):
            assert same(shown(row, fields), meant(data) or {}), (row, data)


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
