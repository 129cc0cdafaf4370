from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.flights.oracle import AWAITING_REPLAY, KEYS, Oracle
from examples.flights.posting_order import LATENESS
from examples.flights.source_database import NAME, TABLES
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.plan import Plan, plan
from projections.sql.statements.declarations import SourceDecl
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation

FLIGHTS = Path(__file__).parents[2] / "examples/flights"
STORED = {
    "event_id": "string",
    "stream": "string",
    "entity_id": "string",
    "type": "string",
    "version": "bigint",
    "position": "bigint",
    "occurred_at": "timestamp",
    "recorded_at": "timestamp",
}
TYPES = {"long": "bigint", "string": "string", "int": "int"}


def fields_of(path: Path) -> dict[str, str]:
    columns = {}
    for field in json.loads(path.read_text())["fields"]:
        kind = field["type"]
        kind = next(each for each in kind if each != "null") if isinstance(kind, list) else kind
        columns[field["name"]] = "timestamp" if isinstance(kind, dict) else TYPES[kind]
    return columns


def relation(name: str, columns: dict[str, str], key: tuple[str, ...], at: str) -> Relation:
    return Relation(
        name=name,
        columns=tuple(Column(name=n, type=t) for n, t in columns.items()),
        key=key,
        event_time=at,
    )


@pytest.fixture(scope="module")
def declared() -> tuple[SourceDecl, ...]:
    texts = sorted((FLIGHTS / "projections").glob("*.sql"))
    return tuple(s for path in texts for s in parse_script(path.read_text()).sources)


@pytest.fixture(scope="module")
def plans(declared: tuple[SourceDecl, ...]) -> dict[str, Plan]:
    streams, everything = {}, dict(STORED)
    for path in (FLIGHTS / "schemas").glob("*.avsc"):
        name = f"events.{path.stem}"
        streams[name] = relation(name, fields_of(path) | STORED, ("event_id",), "occurred_at")
        everything = fields_of(path) | everything
    streams["events.flight"] = relation("events.flight", everything, ("event_id",), "occurred_at")
    doubles = dict.fromkeys(TABLES["weather"], "double")
    weather = f"{NAME}.public.weather"
    captured = doubles | {"origin": "string", "time_hour": "timestamp", "wind_dir": "smallint"}
    table = relation(weather, captured, ("origin", "time_hour"), "valid_from")
    catalog = DeclaredCatalog(MemoryCatalog(streams=streams, histories={weather: table}), declared)
    texts = [path.read_text() for path in (FLIGHTS / "projections").glob("*.sql")]
    made = [plan(decl, catalog) for text in texts for decl in parse_script(text).projections]
    return {each.name: each for each in made}


def test_every_projection_compiles_and_has_an_oracle(plans: dict[str, Plan]) -> None:
    assert {name: each.key for name, each in plans.items()} == KEYS


def test_projections_give_the_columns_of_the_oracle(plans: dict[str, Plan]) -> None:
    expected = Oracle(flights=10).tables()
    for name, each in plans.items():
        assert [column.name for column in each.columns] == expected[name].column_names


def test_what_waits_for_a_replay_is_what_depends_on_several_facts(plans: dict[str, Plan]) -> None:
    assert {name for name, each in plans.items() if each.stateful} == AWAITING_REPLAY


def test_the_declared_lateness_is_the_one_that_posting_relies_on(
    declared: tuple[SourceDecl, ...],
) -> None:
    assert {each.on: each.lateness for each in declared}["events.flight"] == LATENESS
