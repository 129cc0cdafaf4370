"""TPC-H's queries, kept over tables whose rows change and go, equal their answers in one batch.

So do queries in forms that other systems have: their answers are DuckDB's, to the same text.
"""

from __future__ import annotations

from decimal import Decimal
from math import isclose

import pytest

from projections.sql.operators.shape import Strategy
from projections.sql.rendering.certified import uncertified
from tests.support.oracles.tpch import (
    EPOCHS,
    NAMES,
    TABLES,
    KeptQuery,
    Row,
    answer,
    changes,
    planned,
    query_text,
    rows_at,
)

FORMS = {
    "exists or": (
        "c_custkey",
        """SELECT c_custkey, c_name FROM customer WHERE c_mktsegment = 'BUILDING'
        OR EXISTS (SELECT 1 FROM orders WHERE o_custkey = c_custkey AND o_orderstatus = 'O')""",
    ),
    "in or, in case": (
        "o_orderkey",
        """SELECT o_orderkey, CASE WHEN o_custkey IN (SELECT c_custkey FROM customer
        WHERE c_mktsegment = 'BUILDING') THEN 'b' ELSE 'other' END AS of_building FROM orders
        WHERE o_orderstatus = 'F' OR o_custkey IN (SELECT c_custkey FROM customer, nation
        WHERE c_nationkey = n_nationkey AND n_name = 'FRANCE')""",
    ),
    "exists of a join": (
        "c_custkey",
        """SELECT c_custkey FROM customer WHERE NOT EXISTS (SELECT 1 FROM orders, lineitem
        WHERE o_orderkey = l_orderkey AND o_custkey = c_custkey AND l_quantity < c_acctbal)""",
    ),
    "in of two": (
        "ps_partkey, ps_suppkey",
        """SELECT ps_partkey, ps_suppkey FROM partsupp
        WHERE (ps_partkey, ps_suppkey) IN (SELECT l_partkey, l_suppkey FROM lineitem)""",
    ),
    "= any, <> all": (
        "c_custkey",
        """SELECT c_custkey FROM customer WHERE c_custkey = ANY (SELECT o_custkey FROM orders)
        AND c_nationkey <> ALL (SELECT n_nationkey FROM nation WHERE n_regionkey = 3)""",
    ),
    "scalar by key": (
        "o_orderkey",
        """SELECT o_orderkey, (SELECT c_name FROM customer WHERE c_custkey = o_custkey) AS name,
        (SELECT COUNT(*) + 1 FROM lineitem WHERE l_orderkey = o_orderkey) AS lines FROM orders""",
    ),
    "first of each, lateral": (
        "c_custkey, o_orderkey",
        """SELECT c.c_custkey, o.o_orderkey, o.o_totalprice FROM customer c, LATERAL (
        SELECT o_orderkey, o_totalprice FROM orders WHERE o_custkey = c.c_custkey
        ORDER BY o_totalprice DESC, o_orderkey LIMIT 2) o""",
    ),
    "total of each, lateral": (
        "c_custkey",
        """SELECT c.c_custkey, o.n, o.most FROM customer c LEFT JOIN LATERAL (
        SELECT COUNT(*) AS n, MAX(o_totalprice) AS most FROM orders
        WHERE o_custkey = c.c_custkey) o ON TRUE""",
    ),
    "functions over rows, lateral": (
        "c_custkey, o_orderkey",
        """SELECT c.c_custkey, o.o_orderkey, o.n, o.so_far FROM customer c, LATERAL (
        SELECT o_orderkey, ROW_NUMBER() OVER (ORDER BY o_totalprice, o_orderkey) AS n,
        COUNT(*) OVER (PARTITION BY o_orderstatus ORDER BY o_orderkey) AS so_far
        FROM orders WHERE o_custkey = c.c_custkey) o""",
    ),
    "lateral of a lateral": (
        "c_custkey, o_orderkey",
        """SELECT c.c_custkey, o.o_orderkey, t.n FROM customer c, LATERAL (
        SELECT COUNT(*) AS n FROM orders WHERE o_custkey = c.c_custkey AND o_totalprice > 850) t,
        LATERAL (SELECT o_orderkey FROM orders WHERE o_shippriority = t.n) o""",
    ),
    "lateral equated": (
        "c_custkey",
        """SELECT c.c_custkey FROM customer c, LATERAL (SELECT COUNT(*) AS n FROM orders
        WHERE o_custkey = c.c_custkey) t WHERE t.n = c.c_nationkey""",
    ),
    "count read inside": (
        "o_orderkey",
        """SELECT o_orderkey, n FROM orders CROSS JOIN (SELECT COUNT(*) AS n FROM customer
        WHERE c_name = 'nobody') t WHERE EXISTS (SELECT 1 FROM region WHERE r_regionkey = n)""",
    ),
    "condition of no totals": (
        "o_orderkey",
        """SELECT o_orderkey, t.least, u.n FROM orders JOIN (SELECT MIN(c_custkey) AS least
        FROM customer WHERE c_name = 'nobody') t ON o_custkey = coalesce(t.least, 3), (
        SELECT COUNT(*) AS n FROM nation WHERE n_name = 'none') u WHERE o_shippriority = u.n""",
    ),
    "order of stars": (
        "one, two, three",
        """SELECT q.one, q.two, q.three FROM (SELECT * FROM (SELECT n_nationkey FROM nation) a,
        (SELECT c_custkey, c_nationkey FROM customer) b,
        (SELECT s_suppkey, s_nationkey FROM supplier) c
        WHERE a.n_nationkey = c.s_nationkey AND b.c_nationkey = c.s_nationkey)
        q (nation, one, two, three, four)""",
    ),
    "cross join of totals": (
        "o_orderkey",
        """SELECT o_orderkey, t.n, o_totalprice - t.least AS above FROM orders CROSS JOIN (
        SELECT COUNT(*) AS n, MIN(c_acctbal) AS least FROM customer) t
        WHERE o_totalprice > t.least * 2""",
    ),
    "distinct on": (
        "o_custkey",
        """SELECT DISTINCT ON (o_custkey) o_custkey, o_orderkey, o_totalprice FROM orders
        ORDER BY o_custkey, o_totalprice DESC, o_orderkey""",
    ),
    "stars": (
        "o_custkey, n",
        """SELECT * FROM (SELECT o_custkey, n, o_totalprice FROM (SELECT *, ROW_NUMBER() OVER (
        PARTITION BY o_custkey ORDER BY o_totalprice, o_orderkey) AS n FROM orders) t) u
        WHERE n <= 2""",
    ),
    "ascending": (
        "l_orderkey",
        """SELECT l_orderkey, STRING_AGG(l_shipmode, '|' ORDER BY l_shipmode) AS modes,
        STRING_AGG(DISTINCT l_returnflag, ',' ORDER BY l_returnflag) AS flags,
        MEDIAN(l_quantity) AS middle,
        PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY CAST(l_extendedprice AS DOUBLE)) AS high
        FROM lineitem GROUP BY l_orderkey""",
    ),
    "last known": (
        "l_orderkey, l_linenumber",
        """SELECT l_orderkey, l_linenumber, LAST_VALUE(CASE WHEN l_returnflag = 'R' THEN l_tax END
        IGNORE NULLS) OVER (PARTITION BY l_orderkey ORDER BY l_linenumber
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS tax FROM lineitem""",
    ),
    "having in": (
        "o_custkey",
        """SELECT o_custkey, COUNT(*) AS n FROM orders GROUP BY o_custkey
        HAVING COUNT(*) > 1 AND o_custkey IN (SELECT c_custkey FROM customer WHERE c_acctbal > 40)
        AND SUM(o_totalprice) > (SELECT AVG(o_totalprice) * 2 FROM orders)""",
    ),
    "having of the group": (
        "o_custkey",
        """SELECT o_custkey, COUNT(*) AS n FROM orders GROUP BY o_custkey
        HAVING COUNT(*) > (SELECT COUNT(*) - 3 FROM lineitem WHERE l_partkey = o_custkey)
        OR EXISTS (SELECT 1 FROM supplier WHERE s_suppkey = o_custkey AND s_acctbal > 40)""",
    ),
    "in and not in of chosen rows": (
        "c_custkey",
        """SELECT c_custkey, CASE WHEN 'F' IN (SELECT o_orderstatus FROM orders
        WHERE o_custkey = c_custkey) THEN 1 ELSE 0 END AS f FROM customer
        WHERE c_nationkey IN (SELECT s_nationkey FROM supplier WHERE s_acctbal < c_acctbal)
        AND 'O' NOT IN (SELECT NULLIF(o_orderstatus, 'F') FROM orders, lineitem
        WHERE o_custkey = c_custkey AND l_orderkey = o_orderkey AND l_tax < 0.02)""",
    ),
    "texts": (
        "p_partkey",
        """SELECT p_partkey, p_name IS DISTINCT FROM 'sea green' AS other FROM part
        WHERE p_type ILIKE '%Tin'""",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_p6_tpch_over_changing_tables_equals_the_batch(name: str) -> None:
    assert keep(query_text(name), 22), "the query has an answer to compare"


@pytest.mark.parametrize("name", FORMS)
def test_p6_forms_of_other_systems_equal_the_batch(name: str) -> None:
    assert keep(_of_form(name), 22), "the query has an answer to compare"


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("name", [*NAMES, *FORMS])
def test_p6_tpch_over_many_changes(name: str, seed: int) -> None:
    keep(query_text(name) if name in NAMES else _of_form(name), seed)


def _of_form(name: str) -> str:
    key, select = FORMS[name]
    return f"CREATE PROJECTION p WITH (key = '{key}') AS\n{select};"


def keep(statement: str, seed: int) -> int:
    """Keep a query over all epochs; compare its table after each, return how many rows it had."""
    made, came, compared = planned(statement), changes(seed), 0
    assert uncertified(made.tree) is None
    assert made.strategy is Strategy.REGIONS
    kept = KeptQuery(made)
    try:
        for epoch in EPOCHS:
            tables = {table: rows_at(came, table, epoch) for table in TABLES}
            kept.epoch(tables)
            wanted = answer(statement, tables)
            of_keys = {tuple(row[n] for n in made.key): row for row in wanted}
            assert kept.rows.keys() == of_keys.keys()
            assert all(alike(row, of_keys[key]) for key, row in kept.rows.items())
            compared += len(wanted)
    finally:
        kept.close()
    return compared


def alike(row: Row, other: Row) -> bool:
    """Say whether two rows are the same. DuckDB divides decimals as doubles, and rounds less."""
    return row.keys() == other.keys() and all(_alike(row[name], other[name]) for name in row)


def _alike(one: object, other: object) -> bool:
    if isinstance(one, float | Decimal) and isinstance(other, float | Decimal):
        return isclose(one, other, rel_tol=2e-5)
    return one == other
