"""The reference of the SQL holds: its statements are planned, its functions exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kernel.errors import InvalidRequest
from lake.layout import Lake
from lake.tables import Tables
from pipeline.typed.columns import EVENT_COLUMNS
from projections.run.captured_tables import CapturedTable
from projections.run.catalog import Deployment
from projections.run.relations import LakeCatalog
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.plan import Strategy, plan
from projections.sql.statements.parse import parse_script
from projections.sql.values.expressions import check
from projections.sql.words.catalog import catalog_from
from projections.sql.words.options import (
    EVENT_OPTIONS,
    PROJECTION_OPTIONS,
    TABLE_OPTIONS,
    TOPIC_OPTIONS,
)
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
TABLE = "shop.public.weather"
MOMENT = pa.timestamp("us", "UTC")
TYPES = {"STRING": pa.string(), "INT": pa.int32(), "TIMESTAMP": MOMENT}


@pytest.fixture
def lake_tables(tmp_path: Path) -> LakeCatalog:
    """The catalog that deploying asks: a lake in which events and a captured table occurred."""
    lake, tables = Lake.at(tmp_path), Tables()
    own = [(name, TYPES[kind]) for name, kind in EVENTS.items() if name not in EVENT_COLUMNS.names]
    event = pa.schema([*own, *EVENT_COLUMNS])
    weather = pa.schema([*((n, TYPES[t]) for n, t in WEATHER.items()), ("committed_at", MOMENT)])
    line = pa.struct([("sku", pa.string()), ("pieces", pa.int32())])
    order = pa.schema([("order_id", pa.string()), ("lines", pa.list_(line)), *EVENT_COLUMNS])
    typed = {"typed/events.flight.departed": event, "typed/shop.public.weather": weather}
    typed["typed/events.order.placed"] = order
    for name, schema in typed.items():
        write_deltalake(lake.path(name), schema.empty_table())
    deployment = Deployment(
        version=1,
        captures={"shop": {"public.weather": CapturedTable(keys=("origin", "hour"))}},
        slots={},
        sources={each.name: each for each in parse_script(page()).sources},
        projections={},
    )
    return LakeCatalog(lake, tables, deployment, typed=typed, fields={})


def page() -> str:
    return "\n".join(block.text for block in blocks(PAGE) if block.language == "sql")


def test_statements_of_the_page_are_planned(lake_tables: LakeCatalog) -> None:
    script = parse_script(page(), origin="sql.md")
    catalog = DeclaredCatalog(lake_tables, script.sources, script.projections)
    plans = [plan(decl, catalog) for decl in script.projections]
    several = {"visits", "late_departures", "worst_departures", "turnarounds"}
    several |= {"tens_of_delays", "names_seen", "sudden_delays", "troubled_carriers"}
    several |= {"hourly_departures", "never_departed", "carrierreport"}
    several |= {"winds", "departures_now", "worst_hours", "calm_places"}
    several |= {"never_late", "legs", "delays_by_all", "near_the_worst", "busiest_origins"}
    several |= {"carrier_shares", "worst_origins", "of_calm_carriers", "delays_across"}
    several |= {"usual_delays", "delay_bands", "carriers_in_force", "delays_before"}
    several |= {"hottestreadings"}
    several |= {"named_departures", "shares_of_all", "customers", "customer_moves"}
    assert {one.name for one in plans if one.strategy is Strategy.REGIONS} == several
    assert {one.name for one in plans} - several == {
        "carriers_by_the_minute",
        "flight_status",
        "hottest",
        "origins_by_hundreds",
        "status_for_partners",
        "late_flights",
        "order_lines",
        "pieces_sold",
        "order_totals",
        "departure_weather",
        "carrier_delays",
    }


def test_inputs_of_the_page_are_read(lake_tables: LakeCatalog) -> None:
    rows = table(PAGE, first="written")
    assert len(rows) > 5
    for row in rows:
        text = _select(row["written"].strip("`"))
        plan(parse_script(text).projections[0], lake_tables)


def _select(written: str) -> str:
    """Return a projection that reads one of the page's inputs."""
    said = written.replace("[LEFT] ", "").replace("events.<category>", "events.flight")
    said = said.replace("<type>", "departed").replace("<source>.<schema>.<table>", TABLE)
    said = re.sub(r"\btable\b", TABLE, said)
    if said.startswith("JOIN"):
        said = re.sub(r"AS OF t\b", "AS OF e.occurred_at", said)
        said = f"FROM STREAM events.flight e {said} w"
        equal = "ON w.origin = e.origin AND w.hour = e.occurred_at"
        columns, key = "e.flight_id, w.wind", "flight_id"
        said = f"{said} {equal}"
    else:
        columns, key, said = "origin, COUNT(*) AS n", "origin", f"{said} GROUP BY origin"
    return f"CREATE PROJECTION p WITH (key = '{key}') AS SELECT {columns} {said}"


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
FORMS += (
    *("x, 'UTC'", "x, 'a INT'", "x, e -> e", "x, (a, b) -> a", "x, 0, (a, b) -> a"),
    *("x, x, (a, b) -> a", "x, x, (a, b, c) -> a"),
)


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
