"""The projections that are measured: one for each operator, over payments, deliveries and tables.

Each key has about twenty payments, whatever the length of the history: what a round touches is the
same, so that what grows with history shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from projections.sql.words.functions import files_of

PAID, DONE = "STREAM events.account.paid", "STREAM events.account.done"
TOUCHED_TABLES = ("as_of", "latest", "tables", "joined_groups")
"""Those that read a table: some of its rows change in each run, too."""
_FUNCTIONS = {
    "functions/prices.py": "def halved(amount: int) -> int:\n    return amount // 2\n",
}
_BY_ACCOUNT = f"FROM {PAID} GROUP BY account"
_NEAR = (
    "d.account = p.account AND d.occurred_at > p.occurred_at"
    " AND d.occurred_at <= p.occurred_at + INTERVAL 1 DAY"
)
_QUERIES: Mapping[str, tuple[str, str]] = {
    "newest": ("account", f"SELECT account, amount, occurred_at FROM {PAID}"),
    "totals": (
        "account",
        "SELECT account, COUNT(*) AS n, SUM(amount) AS amount, AVG(amount) AS mean,"
        f" MIN(amount) AS least, MAX(amount) AS most, SUM(price) AS price {_BY_ACCOUNT}",
    ),
    "distinct": ("shop", f"SELECT shop, COUNT(DISTINCT account) AS n FROM {PAID} GROUP BY shop"),
    "having": (
        "account",
        f"SELECT account, SUM(amount) AS amount {_BY_ACCOUNT} HAVING COUNT(*) > 20",
    ),
    "ranking": (
        "account, place",
        "SELECT account, place, amount FROM (SELECT account, amount, ROW_NUMBER() OVER"
        f" (PARTITION BY account ORDER BY amount DESC) AS place FROM {PAID}) WHERE place <= 3",
    ),
    "tumbling": (
        "shop, window_start",
        "SELECT shop, window_start, COUNT(*) AS n, AVG(amount) AS mean"
        f" FROM {PAID} GROUP BY shop, TUMBLE(occurred_at, '1 hour')",
    ),
    "hopping": (
        "shop, window_start",
        "SELECT shop, window_start, COUNT(*) AS n, MAX(amount) AS most"
        f" FROM {PAID} GROUP BY shop, HOP(occurred_at, '10 minutes', '1 hour')",
    ),
    "cumulating": (
        "shop, window_end",
        "SELECT shop, window_end, COUNT(*) AS n, SUM(amount) AS amount"
        f" FROM {PAID} GROUP BY shop, CUMULATE(occurred_at, '6 hours', '1 day')",
    ),
    "session": (
        "account, window_start",
        "SELECT account, window_start, COUNT(*) AS n, SUM(amount) AS amount"
        f" FROM {PAID} GROUP BY account, SESSION(occurred_at, '12 hours')",
    ),
    "over_range": (
        "position",
        "SELECT position, account, SUM(amount) OVER (PARTITION BY account ORDER BY occurred_at"
        f" RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW) AS recent FROM {PAID}",
    ),
    "over_rows": (
        "position",
        "SELECT position, account, SUM(amount) OVER (PARTITION BY account ORDER BY occurred_at"
        f" ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS recent FROM {PAID}",
    ),
    "count_windows": (
        "account, slot",
        "SELECT account, slot, COUNT(*) AS n, SUM(amount) AS amount FROM (SELECT account, amount,"
        " (ROW_NUMBER() OVER (PARTITION BY account ORDER BY occurred_at) - 1) DIV 5 AS slot"
        f" FROM {PAID}) numbered GROUP BY account, slot",
    ),
    "as_of": (
        "position",
        f"SELECT p.position, p.amount, r.rate FROM {PAID} p LEFT JOIN shop.public.rates"
        " FOR SYSTEM_TIME AS OF p.occurred_at r ON r.account = p.account",
    ),
    "latest": (
        "position",
        f"SELECT p.position, p.amount, r.rate FROM {PAID} p"
        " LEFT JOIN shop.public.rates r ON r.account = p.account",
    ),
    "tables": (
        "account",
        "SELECT r.account, r.rate, k.kind FROM shop.public.rates r"
        " JOIN shop.public.kinds k ON k.id = r.kind_id",
    ),
    "streams": (
        "p_at, d_at",
        f"SELECT p.position AS p_at, d.position AS d_at, p.amount FROM {PAID} p"
        f" JOIN {DONE} d ON {_NEAR}",
    ),
    "semi": (
        "position",
        f"SELECT p.position, p.amount FROM {PAID} p"
        f" LEFT SEMI JOIN {DONE} d ON d.account = p.account",
    ),
    "anti": (
        "position",
        f"SELECT p.position, p.amount FROM {PAID} p"
        f" LEFT ANTI JOIN {DONE} d ON d.account = p.account",
    ),
    "absence": (
        "position",
        f"SELECT p.position, p.amount FROM {PAID} p"
        f" WHERE NOT EXISTS (SELECT 1 FROM {DONE} d WHERE {_NEAR})",
    ),
    "match": (
        "account, began_at",
        f"SELECT account, began_at, n, amount FROM {PAID} MATCH_RECOGNIZE ("
        " PARTITION BY account ORDER BY occurred_at MEASURES FIRST(a.occurred_at) AS began_at,"
        " COUNT(*) AS n, b.amount AS amount PATTERN (a b+) WITHIN INTERVAL 3 DAYS"
        " DEFINE b AS b.amount > PREV(b.amount)) found",
    ),
    "union": (
        "position",
        f"SELECT position, account, amount FROM {PAID} UNION ALL"
        f" SELECT position, account, 0 AS amount FROM {DONE}",
    ),
    "dedup": ("account, shop", f"SELECT DISTINCT account, shop FROM {PAID}"),
    "function": (
        "account",
        f"SELECT account, COUNT(*) AS n, SUM(halved(amount)) AS amount {_BY_ACCOUNT}",
    ),
    "joined_groups": (
        "account",
        f"SELECT p.account, COUNT(*) AS n, SUM(p.amount) AS amount, MAX(r.rate) AS rate FROM {PAID}"
        " p JOIN shop.public.rates r ON r.account = p.account GROUP BY p.account",
    ),
    "groups_of_groups": (
        "n",
        f"SELECT n, COUNT(*) AS accounts FROM (SELECT account, COUNT(*) AS n {_BY_ACCOUNT})"
        " counted GROUP BY n",
    ),
    "list": ("account", f"SELECT account, LISTAGG(CAST(shop AS STRING), ',') AS s {_BY_ACCOUNT}"),
    "percentile": ("account", f"SELECT account, PERCENTILE(amount, 0.9) AS high {_BY_ACCOUNT}"),
    "mode": ("account", f"SELECT account, MODE(shop) AS usual {_BY_ACCOUNT}"),
    "max_by": ("account", f"SELECT account, MAX_BY(shop, amount) AS shop {_BY_ACCOUNT}"),
    "sum_distinct": ("account", f"SELECT account, SUM(DISTINCT shop) AS shops {_BY_ACCOUNT}"),
    "windowed_distinct": (
        "shop, window_start",
        "SELECT shop, window_start, COUNT(DISTINCT account) AS n"
        f" FROM {PAID} GROUP BY shop, TUMBLE(occurred_at, '1 day')",
    ),
}


def statements() -> dict[str, str]:
    """Return the text of each projection, with the functions that it calls, by its name."""
    return {name: _statement(name, name) for name in _QUERIES}


def repeated(names: Sequence[str], count: int) -> dict[str, str]:
    """Return the texts of so many projections by name: those that are named, again and again."""
    found = {}
    for number in range(count):
        query = names[number % len(names)]
        name = f"{query}_{number}"
        found[name] = _statement(name, query)
    return found


def _statement(name: str, of: str) -> str:
    functions = [each.statement for each in files_of(_FUNCTIONS)]
    key, query = _QUERIES[of]
    text = f"CREATE PROJECTION {name} WITH (key = '{key}') AS\n{query}"
    return ";\n".join([text, *(functions if "halved(" in query else [])])
