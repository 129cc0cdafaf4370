"""The projections that are measured: five kinds, and as many of them as are asked for."""

from __future__ import annotations

CATEGORY, TYPE = "bench", "sold"
ITEMS, SHOPS = 1_000, 50
"""Values of the two columns by which events are grouped."""

_STREAM = f"STREAM events.{CATEGORY}.{TYPE}"
_KINDS = {
    "totals": (
        "item",
        f"SELECT item, COUNT(*) AS n, SUM(amount) AS amount, MAX(amount) AS most"
        f" FROM {_STREAM} WHERE amount >= {{n}} GROUP BY item",
    ),
    "minutes": (
        "shop, window_start",
        f"SELECT shop, window_start, COUNT(*) AS n, AVG(amount) AS mean"
        f" FROM {_STREAM} WHERE amount >= {{n}} GROUP BY shop, TUMBLE(occurred_at, '1 minute')",
    ),
    "newest": (
        "item",
        f"SELECT item, shop, amount, occurred_at FROM {_STREAM} WHERE amount >= {{n}}",
    ),
    "distinct": (
        "shop",
        f"SELECT shop, COUNT(DISTINCT item) AS items FROM {_STREAM}"
        f" WHERE amount >= {{n}} GROUP BY shop",
    ),
    "twice": (
        "n",
        f"SELECT n, COUNT(*) AS items FROM (SELECT item, COUNT(*) AS n FROM {_STREAM}"
        f" WHERE amount >= {{n}} GROUP BY item) counted GROUP BY n",
    ),
}
"""Key and query by kind; a number in each makes further ones unlike the first."""


def statements(count: int, freshness: str, *, first: int = 0) -> dict[str, str]:
    """Return so many projections by name, one kind after the other, from number `first` on."""
    kinds, found = list(_KINDS), {}
    for number in range(first, first + count):
        kind = kinds[number % len(kinds)]
        key, query = _KINDS[kind]
        name = f"{kind}_{number}"
        found[name] = (
            f"CREATE PROJECTION {name} WITH (key = '{key}', freshness = '{freshness}') AS\n"
            f"{query.format(n=number // len(kinds))};\n"
        )
    return found
