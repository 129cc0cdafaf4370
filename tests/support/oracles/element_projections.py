"""Elements of arrays and entries of maps as rows: each projection in plain Python too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from tests.support.oracles.region_projections import Case
from tests.support.oracles.shop_projections import CUSTOMERS, ORDERS
from tests.support.oracles.shop_projections import Case as ShopCase
from tests.support.oracles.shop_world import Shop
from tests.support.oracles.sql_world import START, Fact, Leg, Row, World

SERVED = "STREAM events.flight.served"
LEGS = f"FROM {SERVED} LATERAL VIEW explode(legs) t AS leg"
NOWHERE = Leg(None, None)


def _case(name: str, key: str, query: str, oracle: Callable[[World], list[Row]]) -> Case:
    return Case(f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query}", oracle)


def _legs(world: World) -> Iterator[tuple[Fact, int, Leg]]:
    """Yield each leg with its place; of one that is NULL all fields are."""
    for fact in world.facts:
        for place, leg in enumerate(fact.legs or []):
            yield fact, place, leg or NOWHERE


def _each(world: World) -> list[Row]:
    return [
        {"position": fact.position, "pos": place, "stop": leg.stop, "twice": leg.n and leg.n * 2}
        for fact, place, leg in _legs(world)
        if leg.n != 0
    ]


def _numbered(world: World) -> list[Row]:
    return [
        {"position": fact.position, "o": place + 1, "stop": leg.stop}
        for fact, place, leg in _legs(world)
    ]


def _whole(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _grouped(world: World) -> list[Row]:
    groups: dict[str, list[tuple[Fact, Leg]]] = defaultdict(list)
    for fact, _, leg in _legs(world):
        if leg.stop is not None:
            groups[leg.stop].append((fact, leg))
    return [
        {
            "stop": stop,
            "count": len(found),
            "n": _whole([leg.n for _, leg in found]),
            "flights": len({fact.flight for fact, _ in found}),
        }
        for stop, found in groups.items()
    ]


def _added(world: World) -> list[Row]:
    groups: dict[str, list[tuple[Fact, Leg]]] = defaultdict(list)
    for fact, _, leg in _legs(world):
        if leg.stop is not None:
            groups[leg.stop].append((fact, leg))
    rows: list[Row] = []
    for stop, found in groups.items():
        known = [leg.n for _, leg in found if leg.n is not None]
        rows.append(
            {
                "stop": stop,
                "count": len(found),
                "n": _whole([leg.n for _, leg in found]),
                "mean": sum(known) / len(known) if known else None,
                "last": max(found, key=lambda one: (one[0].time, one[0].position))[0].flight,
            }
        )
    return rows


def _outer(world: World) -> list[Row]:
    groups: dict[str, list[Leg]] = defaultdict(list)
    for fact in world.facts:
        groups[fact.flight] += [leg or NOWHERE for leg in fact.legs or [None]]
    return [
        {"flight": flight, "count": len(legs), "known": sum(leg.stop is not None for leg in legs)}
        for flight, legs in groups.items()
    ]


def _entries(world: World) -> list[Row]:
    return [
        {"position": fact.position, "k": key, "v": value}
        for fact in world.facts
        for key, value in (fact.loads or {}).items()
    ]


def _windows(world: World) -> list[Row]:
    groups: dict[tuple[str, datetime], int] = defaultdict(int)
    for fact, _, leg in _legs(world):
        if leg.stop is not None:
            size = timedelta(minutes=15)
            groups[leg.stop, START + (fact.time - START) // size * size] += 1
    return [{"stop": stop, "start": start, "n": n} for (stop, start), n in groups.items()]


def _windy(world: World) -> list[Row]:
    rows: list[Row] = []
    for fact, place, leg in _legs(world):
        own = [r for r in world.readings if r.origin == fact.origin and r.time <= fact.time]
        wind = max(own, key=lambda r: (r.time, r.sequence)).wind if own else None
        if wind is not None and leg.n is not None:
            rows.append({"position": fact.position, "pos": place, "more": wind + leg.n})
    return rows


def _followed(world: World) -> list[Row]:
    return [
        {"p": fact.position, "pos": place, "q": other.position}
        for fact, place, leg in _legs(world)
        for other in world.facts
        if leg.stop == other.origin and fact.time < other.time <= fact.time + timedelta(minutes=10)
    ]


def _fields(world: World) -> list[Row]:
    groups: dict[str, list[Fact]] = defaultdict(list)
    for fact in world.facts:
        if fact.doc and fact.carrier is not None:
            groups[fact.carrier].append(fact)
    return [
        {
            "name": name,
            "n": len(facts),
            "worst": max((f.delay for f in facts if f.delay is not None), default=None),
        }
        for name, facts in groups.items()
    ]


ELEMENTS = {
    "fields of structs": _case(
        "fields",
        "name",
        "SELECT doc.name, COUNT(*) AS n, MAX(e.doc.Part.n) AS worst "
        f"FROM {SERVED} e WHERE doc.name <> '' GROUP BY doc.name",
        _fields,
    ),
    "elements": _case(
        "each",
        "position, pos",
        "SELECT position, pos, leg.stop AS stop, leg.n * 2 AS twice "
        f"FROM {SERVED} LATERAL VIEW posexplode(legs) t AS pos, leg WHERE NOT leg.n <=> 0",
        _each,
    ),
    "elements, numbered": _case(
        "numbered",
        "position, o",
        f"SELECT e.position, t.o, leg.stop FROM {SERVED} e "
        "CROSS JOIN UNNEST(e.legs) WITH ORDINALITY AS t (leg, o)",
        _numbered,
    ),
    "elements, grouped": _case(
        "by_leg",
        "stop",
        "SELECT leg.stop AS stop, COUNT(*) AS count, SUM(leg.n) AS n, COUNT(DISTINCT flight) AS "
        f"flights {LEGS} GROUP BY leg.stop",
        _grouped,
    ),
    "elements, added": _case(
        "added",
        "stop",
        "SELECT leg.stop AS stop, COUNT(*) AS count, SUM(leg.n) AS n, AVG(leg.n) AS mean, "
        f"flight AS last {LEGS} WHERE leg.stop IS NOT NULL GROUP BY leg.stop",
        _added,
    ),
    "elements, outer": _case(
        "by_flight",
        "flight",
        f"SELECT flight, COUNT(*) AS count, COUNT(x.stop) AS known FROM {SERVED} "
        "LATERAL VIEW OUTER inline(legs) x AS stop, n GROUP BY flight",
        _outer,
    ),
    "entries": _case(
        "loaded",
        "position, k",
        f"SELECT position, explode(loads) AS (k, v) FROM {SERVED}",
        _entries,
    ),
    "elements in windows": _case(
        "legs_of_a_time",
        "stop, start",
        f"SELECT leg.stop AS stop, window_start AS start, COUNT(*) AS n {LEGS} "
        "GROUP BY leg.stop, TUMBLE(occurred_at, '15 minutes')",
        _windows,
    ),
    "elements, as of": _case(
        "windy_legs",
        "position, pos",
        f"SELECT e.position, pos, w.wind + leg.n AS more FROM {SERVED} e "
        "JOIN weather FOR SYSTEM_TIME AS OF e.occurred_at w ON w.origin = e.origin "
        "LATERAL VIEW posexplode(e.legs) t AS pos, leg WHERE w.wind + leg.n IS NOT NULL",
        _windy,
    ),
    "elements, joined": _case(
        "followed",
        "p, pos, q",
        f"SELECT a.position AS p, pos, b.position AS q FROM {SERVED} a "
        f"LATERAL VIEW posexplode(a.legs) t AS pos, leg JOIN {SERVED} b ON b.origin = leg.stop "
        "AND b.occurred_at > a.occurred_at "
        "AND b.occurred_at <= a.occurred_at + INTERVAL 10 MINUTES",
        _followed,
    ),
}


KEPT_BY_KEYS = (
    "fields of structs",
    "elements",
    "elements, numbered",
    "elements, added",
    "elements in windows",
)
"""Cases of facts alone: what is new is enough to keep them."""


def _lines(shop: Shop) -> Iterator[tuple[Row, int, Row]]:
    for order in shop.table("orders"):
        lines = order["lines"]
        assert lines is None or isinstance(lines, tuple)
        for place, line in enumerate(lines or ()):
            yield order, place, dict(zip(("sku", "n"), line or (None, None), strict=True))


def _of_orders(shop: Shop) -> list[Row]:
    return [
        {"id": order["id"], "pos": place, "sku": line["sku"], "n": line["n"]}
        for order, place, line in _lines(shop)
    ]


def _named(shop: Shop) -> list[Row]:
    customers = {row["id"]: row for row in shop.table("customers")}
    return [
        {"id": order["id"], "pos": place, "sku": line["sku"], "name": customers[line["n"]]["name"]}
        for order, place, line in _lines(shop)
        if line["n"] in customers
    ]


def _sold(shop: Shop) -> list[Row]:
    groups: dict[object, list[object]] = defaultdict(list)
    for _, _, line in _lines(shop):
        if line["sku"] is not None:
            groups[line["sku"]].append(line["n"])
    return [
        {"sku": sku, "lines": len(found), "n": _whole([n for n in found if isinstance(n, int)])}
        for sku, found in groups.items()
    ]


def _projection(name: str, key: str, query: str) -> str:
    return f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query};\n"


LINES = _projection(
    "order_lines",
    "id, pos",
    f"SELECT id, pos, line.sku, line.n FROM {ORDERS} LATERAL VIEW posexplode(lines) t AS pos, line",
)
OF_TABLES = {
    "elements of a table": ShopCase(LINES, _of_orders),
    "elements of a table, joined": ShopCase(
        _projection(
            "named_lines",
            "id, pos",
            f"SELECT o.id, pos, line.sku, c.name FROM {ORDERS} o LATERAL VIEW posexplode(o.lines) "
            f"t AS pos, line JOIN {CUSTOMERS} c ON c.id = line.n",
        ),
        _named,
    ),
    "elements of a table, grouped": ShopCase(
        LINES
        + _projection(
            "sold",
            "sku",
            "SELECT sku, COUNT(*) AS lines, SUM(n) AS n FROM order_lines GROUP BY sku",
        ),
        _sold,
    ),
}
