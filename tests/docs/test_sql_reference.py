"""The reference of the SQL holds: its statements are planned, its functions exist."""

from __future__ import annotations

import json
import re

import pytest

from kernel.errors import InvalidRequest
from projections.sql.catalog import Column, DeclaredCatalog, MemoryCatalog, Relation, catalog_from
from projections.sql.expressions import check
from projections.sql.options import EVENT_OPTIONS, PROJECTION_OPTIONS, TABLE_OPTIONS, TOPIC_OPTIONS
from projections.sql.parse import parse_script
from projections.sql.plan import plan
from tests.architecture.tree import ROOT
from tests.docs.markdown import blocks, table

PAGE = ROOT / "docs/reference/sql.md"
EVENTS = {
    "flight_id": "STRING",
    "carrier": "STRING",
    "origin": "STRING",
    "type": "STRING",
    "delay": "INT",
    "occurred_at": "TIMESTAMP",
}
WEATHER = {"origin": "STRING", "hour": "TIMESTAMP", "wind": "INT"}


def relation(name: str, columns: dict[str, str], *key: str) -> Relation:
    return Relation(
        name=name,
        columns=tuple(Column(name=n, type=t) for n, t in columns.items()),
        key=key,
        event_time=None,
    )


def test_statements_of_the_page_are_planned() -> None:
    text = "\n".join(block.text for block in blocks(PAGE) if block.language == "sql")
    script = parse_script(text, origin="sql.md")
    catalog = MemoryCatalog(
        streams={"events.flight": relation("events.flight", EVENTS)},
        latests={"shop.public.weather": relation("shop.public.weather", WEATHER, "origin", "hour")},
    )
    plans = [plan(decl, DeclaredCatalog(catalog, script.sources)) for decl in script.projections]
    assert {one.name for one in plans} == {"flight_status", "departure_weather", "carrier_delays"}


def test_options_of_the_page_are_those_there_are() -> None:
    source, projection = (
        {name for row in rows for name in re.findall(r"`(\w+)`", row["option"])}
        for rows in _option_tables()
    )
    assert source == {*TOPIC_OPTIONS, *TABLE_OPTIONS, *EVENT_OPTIONS}
    assert projection == set(PROJECTION_OPTIONS)


def _option_tables() -> list[list[dict[str, str]]]:
    first = table(PAGE, first="option")
    rest = PAGE.read_text().split("## Projections", 1)[1]
    names = re.findall(r"^\| `(\w+)` \|", rest, flags=re.MULTILINE)
    return [first, [{"option": f"`{name}`"} for name in names]]


LISTED = re.findall(
    r"^- [a-zA-Z ]+: `([a-z0-9_\s]+)`$",
    PAGE.read_text().split("### Expressions")[1].split("\n## ")[0],
    flags=re.MULTILINE,
)
FUNCTIONS = [name for group in LISTED for name in group.split()]
FORMS = ("x", "x, x", "x, x, x", "'a', x, x", "x, 'a', 1", "HOUR FROM x", "'HOUR', x", "HOUR, x, x")


def test_the_page_lists_functions() -> None:
    assert len(FUNCTIONS) > 90


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_page_are_in_the_dialect(name: str) -> None:
    assert any(is_known(f"{name}({form})") for form in FORMS)


def is_known(expression: str) -> bool:
    text = f"CREATE PROJECTION p WITH (key = x) AS SELECT {expression} AS x FROM STREAM s"
    try:
        decl = parse_script(text).projections[0]
        check(decl.script, decl.query.expressions[0].this, at=0, aggregates=False)
    except InvalidRequest:
        return False
    return True


def test_the_catalog_document_of_the_page_is_one() -> None:
    text = next(block.text for block in blocks(PAGE) if block.language == "json")
    assert catalog_from(json.loads(text)).history("weather") is not None
