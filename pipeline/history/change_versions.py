"""History of captured tables: every committed change of a row is a version.

Order is the source's commit order, never a clock: where the source's clock went back, a version
begins when the one before it began. What one transaction did to a key and undid was never visible
to anybody; of several versions at one moment the last in order stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from lake.quoting import as_json, listed
from schemas.identifiers import spark_name

PREVIOUS_KEY, NEXT_KEY, TRANSACTION = "_previous_key", "_next_key", "_transaction"
LINKS = (TRANSACTION, PREVIOUS_KEY, NEXT_KEY)


def touched_by_changes(key: Sequence[str]) -> str:
    """Select the stored versions of every key that came in; of all open ones after a TRUNCATE."""
    keys = listed(key)
    return f"""
        SELECT o.* FROM history_stored o LEFT SEMI JOIN (
          SELECT {keys} FROM history_in
          UNION
          SELECT {keys} FROM history_stored
          WHERE valid_to IS NULL AND NOT _deleted AND (SELECT count(*) FROM history_truncates) > 0
        ) k ON {" AND ".join(f"o.{spark_name(n)} = k.{spark_name(n)}" for n in key)}"""


def versions_by_change(key: Sequence[str], columns: Sequence[str]) -> str:
    """Select the versions of the touched keys.

    Reads `history_in`, `history_old` and `history_truncates`. Left out, because they change
    nothing: a row that a snapshot read as it was known, a delete of a key that was absent.
    """
    keys, data = listed(key), listed(columns)
    values = listed([c for c in columns if c not in key]) or "1"
    order = "_seq_hi, _seq_lo, __rank"
    return f"""
        WITH moved AS ({_moved(key)}),
        facts AS ({_facts(key, columns)}),
        ordered AS (
          SELECT *, lag(struct(_deleted AS gone, struct({values}) AS held)) OVER (
            PARTITION BY {keys} ORDER BY {order}) AS __before
          FROM facts),
        telling AS (
          SELECT *, max(__at) OVER (
            PARTITION BY {keys} ORDER BY {order} ROWS UNBOUNDED PRECEDING) AS valid_from
          FROM ordered
          WHERE NOT (__kind = 'r' AND __before IS NOT NULL AND NOT __before.gone
                     AND __before.held <=> struct({values}))
            AND NOT (__kind = 'd' AND coalesce(__before.gone, false))
            AND NOT (__kind = 't' AND coalesce(__before.gone, true)))
        SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo, {TRANSACTION}, _previous_key,
               _next_key,
               lead(valid_from) OVER (PARTITION BY {keys} ORDER BY valid_from) AS valid_to
        FROM (
          SELECT * EXCEPT (_previous_key),
            max(_previous_key) OVER (PARTITION BY {keys}, valid_from) AS _previous_key,
            row_number() OVER (
              PARTITION BY {keys}, valid_from ORDER BY _seq_hi DESC, _seq_lo DESC, __rank DESC
            ) AS __n
          FROM telling)
        WHERE __n = 1"""


def _moved(key: Sequence[str]) -> str:
    """Pair the two halves of changed keys.

    PostgreSQL writes an update of the key as one record of the WAL: its delete and its insert
    carry one LSN and follow each other, which those of two statements never do.
    """
    near = f"struct(_operation AS op, _seq_lo AS place, {as_json(key)} AS key)"
    return f"""
        SELECT {listed(key)}, _seq_hi, _seq_lo, _operation,
          CASE WHEN _operation = 'c' AND __b.op = 'd' AND __b.place = _seq_lo - 1
               THEN __b.key END AS _previous_key,
          CASE WHEN _operation = 'd' AND __a.op = 'c' AND __a.place = _seq_lo + 1
               THEN __a.key END AS _next_key
        FROM (
          SELECT *, lag({near}) OVER w AS __b, lead({near}) OVER w AS __a FROM history_in
          WHERE _operation IN ('c', 'd') AND _lsn IS NOT NULL
          WINDOW w AS (PARTITION BY _seq_hi, {TRANSACTION}, _lsn ORDER BY _seq_lo))
        WHERE __b IS NOT NULL OR __a IS NOT NULL"""


def _facts(key: Sequence[str], columns: Sequence[str]) -> str:
    """Put new changes, TRUNCATEs and stored versions under one shape.

    `__kind` is the operation; empty for what is stored. `__rank` orders what has one place: a
    stored version before what comes in.
    """
    keys = listed(key)
    on = " AND ".join(f"i.{spark_name(n)} = m.{spark_name(n)}" for n in key)
    nulls = ", ".join(
        f"k.{spark_name(c)}" if c in key else f"NULL AS {spark_name(c)}" for c in columns
    )
    return f"""
        SELECT {listed(columns)}, valid_from AS __at, _deleted, '' AS __kind, 0 AS __rank,
               _seq_hi, _seq_lo, {listed(LINKS)}
        FROM history_old
        UNION ALL
        SELECT {listed(columns, "i")}, i._time, i._operation = 'd', i._operation, 1,
               i._seq_hi, i._seq_lo, i.{TRANSACTION}, m._previous_key, m._next_key
        FROM history_in i LEFT JOIN moved m
          ON {on} AND i._seq_hi = m._seq_hi AND i._seq_lo = m._seq_lo
             AND i._operation = m._operation
        UNION ALL
        SELECT {nulls}, t._time, true, 't', 1, t._seq_hi, t._seq_lo, t.{TRANSACTION}, NULL, NULL
        FROM history_truncates t
        CROSS JOIN (SELECT {keys} FROM history_in UNION SELECT {keys} FROM history_old) k"""
