"""Projections over the shop's tables and over each other, each with the same in plain Python.

The last statement of a case is the one whose rows are compared. Oracles read the shop's changes and
payments alone, at once, and share nothing with the planner or its operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.support.oracles.shop_world import Payment, Shop
from tests.support.oracles.sql_world import Row

ORDERS, CUSTOMERS = "shop.public.orders", "shop.public.customers"
PAID = "STREAM events.order.paid"


@dataclass(frozen=True, slots=True)
class Case:
    """Projections, the last of which has the oracle's rows."""

    statements: str
    oracle: Callable[[Shop], list[Row]]


def _projection(name: str, key: str, query: str) -> str:
    return f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query};\n"


def _orders(shop: Shop) -> list[Row]:
    return shop.table("orders")


def _customers(shop: Shop) -> dict[object, Row]:
    return {row["id"]: row for row in shop.table("customers")}


def _total(values: Iterable[object]) -> int | None:
    known = [value for value in values if isinstance(value, int)]
    return sum(known) if known else None


def _open(shop: Shop) -> list[Row]:
    return [{"id": o["id"], "amount": o["amount"]} for o in _orders(shop) if o["state"] == "open"]


def _by_city(shop: Shop) -> list[Row]:
    groups: dict[object, list[Row]] = defaultdict(list)
    for customer in _customers(shop).values():
        if customer["city"] is not None:
            groups[customer["city"]].append(customer)
    return [
        {"city": city, "n": len(rows), "first": min(str(r["name"]) for r in rows)}
        for city, rows in groups.items()
    ]


def _named(shop: Shop) -> list[Row]:
    known = _customers(shop)
    return [
        {"id": o["id"], "amount": o["amount"], "name": known.get(o["customer"], {}).get("name")}
        for o in _orders(shop)
    ]


def _sold(shop: Shop) -> list[Row]:
    known, groups = _customers(shop), defaultdict(list)
    for order in _orders(shop):
        city = known.get(order["customer"], {}).get("city")
        if city is not None:
            groups[city].append(order["amount"])
    return [{"city": c, "n": len(a), "amount": _total(a)} for c, a in groups.items()]


def _customers_with(shop: Shop, *, met: bool) -> list[Row]:
    having = {o["customer"] for o in _orders(shop) if o["state"] == "open"}
    return [
        {"id": c["id"], "name": c["name"]}
        for c in _customers(shop).values()
        if (c["id"] in having) == met
    ]


def _known(shop: Shop) -> list[Row]:
    orders, customers = _orders(shop), _customers(shop)
    pairs = [
        (o, customers[o["customer"]])
        for o in orders
        if o["state"] == "open" and o["customer"] in customers
    ]
    met = {o["id"] for o, _ in pairs}, {c["id"] for _, c in pairs}
    nobody: Row = {"id": 0, "amount": None, "name": None}
    pairs += [(o, nobody) for o in orders if o["id"] not in met[0]]
    pairs += [(nobody, c) for c in customers.values() if c["id"] not in met[1]]
    return [
        {"o": o["id"], "c": c["id"], "amount": o["amount"], "name": c["name"]} for o, c in pairs
    ]


def _order(payment: Payment) -> tuple[int, int]:
    return payment.minute, payment.position


def _stream_latest(shop: Shop) -> list[Row]:
    states = {o["id"]: o["state"] for o in _orders(shop)}
    return [{"position": p.position, "state": states.get(p.order)} for p in shop.payments]


def _paid(shop: Shop) -> list[Row]:
    rows = []
    for order in _orders(shop):
        amounts = [p.amount for p in shop.payments if p.order == order["id"]]
        rows.append({"id": order["id"], "n": len(amounts), "paid": _total(amounts)})
    return rows


def _last_order(shop: Shop) -> list[Row]:
    newest: dict[object, Row] = {}
    for order in sorted(_orders(shop), key=lambda o: int(str(o["sequence"]))):
        if order["customer"] is not None:
            newest[order["customer"]] = order
    return [{"customer": c, "id": o["id"], "amount": o["amount"]} for c, o in newest.items()]


def _pairs(shop: Shop) -> list[Row]:
    rows = [c for c in _customers(shop).values() if c["city"] is not None]
    return [
        {"one": a["id"], "other": b["id"]}
        for a in rows
        for b in rows
        if a["city"] == b["city"] and int(str(a["id"])) < int(str(b["id"]))
    ]


def _by_count(shop: Shop) -> list[Row]:
    counts: dict[int, int] = defaultdict(int)
    for order in {p.order for p in shop.payments}:
        counts[sum(1 for p in shop.payments if p.order == order)] += 1
    return [{"n": n, "orders": orders} for n, orders in counts.items()]


def _paid_by_city(shop: Shop) -> list[Row]:
    known, groups = _customers(shop), defaultdict(list)
    for order in _orders(shop):
        city = known.get(order["customer"], {}).get("city")
        amounts = [p.amount for p in shop.payments if p.order == order["id"]]
        if city is not None and amounts:
            groups[city].append(_total(amounts))
    return [{"city": c, "orders": len(p), "paid": _total(p)} for c, p in groups.items()]


def _paid_cities(shop: Shop) -> list[Row]:
    sums = {row["city"]: row["paid"] for row in _paid_by_city(shop)}
    return [
        {"city": row["city"], "customers": row["n"], "paid": sums[row["city"]]}
        for row in _by_city(shop)
        if sums.get(row["city"]) is not None
    ]


def _unpaid(shop: Shop) -> list[Row]:
    paid = {p.order for p in shop.payments}
    return [{"id": o["id"]} for o in _orders(shop) if o["id"] not in paid]


def _ranked(shop: Shop) -> list[Row]:
    paid = sorted(
        (
            (_total(p.amount for p in shop.payments if p.order == o), o)
            for o in {p.order for p in shop.payments}
        ),
        key=lambda pair: (pair[0] is None, -(pair[0] or 0), pair[1]),
    )
    return [{"place": n, "order_id": o} for n, (_, o) in enumerate(paid[:2], start=1)]


TOTALS = _projection(
    "totals",
    "order_id",
    f"SELECT order_id, COUNT(*) AS n, SUM(amount) AS paid FROM {PAID} GROUP BY order_id",
)
CITIES = _projection(
    "cities",
    "city",
    f"SELECT city, COUNT(*) AS n, MIN(name) AS first FROM {CUSTOMERS} GROUP BY city",
)
CITY_PAID = _projection(
    "city_paid",
    "city",
    f"SELECT c.city, COUNT(*) AS orders, SUM(t.paid) AS paid FROM totals t "
    f"JOIN {ORDERS} o ON o.id = t.order_id JOIN {CUSTOMERS} c ON c.id = o.customer "
    "GROUP BY c.city",
)

CASES = {
    "rows of a table": Case(
        _projection("open", "id", f"SELECT id, amount FROM {ORDERS} WHERE state = 'open'"), _open
    ),
    "groups of a table": Case(CITIES, _by_city),
    "foreign key, left": Case(
        _projection(
            "named",
            "id",
            f"SELECT o.id, o.amount, c.name FROM {ORDERS} o "
            f"LEFT JOIN {CUSTOMERS} c ON c.id = o.customer",
        ),
        _named,
    ),
    "foreign key, grouped by the other": Case(
        _projection(
            "sold",
            "city",
            f"SELECT c.city, COUNT(*) AS n, SUM(o.amount) AS amount FROM {ORDERS} o "
            f"JOIN {CUSTOMERS} c ON c.id = o.customer GROUP BY c.city",
        ),
        _sold,
    ),
    "tables, semi": Case(
        _projection(
            "buying",
            "id",
            f"SELECT c.id, c.name FROM {CUSTOMERS} c WHERE EXISTS "
            f"(SELECT 1 FROM {ORDERS} o WHERE o.customer = c.id AND o.state = 'open')",
        ),
        lambda shop: _customers_with(shop, met=True),
    ),
    "tables, anti": Case(
        _projection(
            "resting",
            "id",
            f"SELECT c.id, c.name FROM {CUSTOMERS} c "
            f"LEFT ANTI JOIN {ORDERS} o ON o.customer = c.id AND o.state = 'open'",
        ),
        lambda shop: _customers_with(shop, met=False),
    ),
    "tables, full": Case(
        _projection(
            "known",
            "o, c",
            "SELECT coalesce(o.id, 0L) AS o, coalesce(c.id, 0L) AS c, o.amount, c.name "
            f"FROM {ORDERS} o FULL JOIN {CUSTOMERS} c ON c.id = o.customer AND o.state = 'open'",
        ),
        _known,
    ),
    "a stream and a table": Case(
        _projection(
            "states",
            "position",
            f"SELECT p.position, o.state FROM {PAID} p LEFT JOIN {ORDERS} o ON o.id = p.order_id",
        ),
        _stream_latest,
    ),
    "a table and a stream": Case(
        _projection(
            "paid",
            "id",
            f"SELECT o.id, COUNT(p.position) AS n, SUM(p.amount) AS paid FROM {ORDERS} o "
            f"LEFT JOIN {PAID} p ON p.order_id = o.id GROUP BY o.id",
        ),
        _paid,
    ),
    "newest row of another key": Case(
        _projection("last", "customer", f"SELECT customer, id, amount FROM {ORDERS}"),
        _last_order,
    ),
    "a table with itself": Case(
        _projection(
            "neighbours",
            "one, other",
            f"SELECT a.id AS one, b.id AS other FROM {CUSTOMERS} a "
            f"JOIN {CUSTOMERS} b ON b.city = a.city AND a.id < b.id",
        ),
        _pairs,
    ),
    "rows of a projection that move": Case(
        TOTALS + _projection("counted", "n", "SELECT n, COUNT(*) AS orders FROM totals GROUP BY n"),
        _by_count,
    ),
    "a projection and tables": Case(TOTALS + CITY_PAID, _paid_by_city),
    "three on each other": Case(
        TOTALS
        + CITY_PAID
        + CITIES
        + _projection(
            "paid_cities",
            "city",
            "SELECT c.city, c.n AS customers, p.paid FROM cities c "
            "JOIN city_paid p ON p.city = c.city WHERE p.paid IS NOT NULL",
        ),
        _paid_cities,
    ),
    "what a projection lacks": Case(
        TOTALS
        + _projection(
            "unpaid",
            "id",
            f"SELECT o.id FROM {ORDERS} o LEFT ANTI JOIN totals t ON t.order_id = o.id",
        ),
        _unpaid,
    ),
    "the top of a projection": Case(
        TOTALS
        + _projection(
            "best",
            "place",
            "SELECT ROW_NUMBER() OVER (PARTITION BY 1 ORDER BY paid DESC NULLS LAST, order_id) "
            "AS place, order_id FROM totals QUALIFY place <= 2",
        ),
        _ranked,
    ),
}
