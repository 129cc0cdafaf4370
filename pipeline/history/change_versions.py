"""History of captured tables: every committed change of a row is a version.

Order is the source's commit order, never a clock: where the source's clock went back, a version
begins when the one before it began. What one transaction did to a key and undid was never visible
to anybody; of several versions at one moment the last in order stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.history.dialects import FoldDialect, listed

PREVIOUS_KEY, NEXT_KEY, TRANSACTION = "_previous_key", "_next_key", "_transaction"
LINKS = (TRANSACTION, PREVIOUS_KEY, NEXT_KEY)
_LINKS = ", ".join(LINKS)


def touched_by_changes(dialect: FoldDialect, key: Sequence[str]) -> str:
    """Select the stored versions of every key that came in; of all open ones after a TRUNCATE."""
    keys = listed(dialect, key)
    return f"""
        SELECT o.* FROM history_stored o SEMI JOIN (
          SELECT {keys} FROM history_in
          UNION
          SELECT {keys} FROM history_stored
          WHERE valid_to IS NULL AND NOT _deleted AND (SELECT count(*) FROM history_truncates) > 0
        ) k ON {" AND ".join(f"o.{n} = k.{n}" for n in map(dialect.name, key))}"""


def versions_by_change(dialect: FoldDialect, key: Sequence[str], columns: Sequence[str]) -> str:
    """Select the versions of the touched keys.

    Reads `history_in`, `history_old` and `history_truncates`. Left out, because they change
    nothing: a row that a snapshot read as it was known, a delete of a key that was absent.
    """
    keys, data = listed(dialect, key), listed(dialect, columns)
    held = dialect.row(listed(dialect, [c for c in columns if c not in key]) or "1")
    order = "_seq_hi, _seq_lo, __rank"
    return f"""
        WITH moved AS ({_moved(dialect, key)}),
        facts AS ({_facts(dialect, key, columns)}),
        ordered AS (
          SELECT {data}, __at, _deleted, __kind, __rank, _seq_hi, _seq_lo, {_LINKS},
                 lag(_deleted) OVER w AS __gone, lag({held}) OVER w AS __held
          FROM facts WINDOW w AS (PARTITION BY {keys} ORDER BY {order})),
        telling AS (
          SELECT {data}, _deleted, __rank, _seq_hi, _seq_lo, {_LINKS},
            max(__at) OVER (
              PARTITION BY {keys} ORDER BY {order} ROWS UNBOUNDED PRECEDING) AS valid_from
          FROM ordered
          WHERE NOT (__kind = 'r' AND NOT coalesce(__gone, true)
                     AND __held IS NOT DISTINCT FROM {held})
            AND NOT (__kind = 'd' AND coalesce(__gone, false))
            AND NOT (__kind = 't' AND coalesce(__gone, true)))
        SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo, {_LINKS},
               lead(valid_from) OVER (PARTITION BY {keys} ORDER BY valid_from) AS valid_to
        FROM (
          SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo, {TRANSACTION}, {NEXT_KEY},
            max({PREVIOUS_KEY}) OVER (PARTITION BY {keys}, valid_from) AS {PREVIOUS_KEY},
            row_number() OVER (
              PARTITION BY {keys}, valid_from ORDER BY _seq_hi DESC, _seq_lo DESC, __rank DESC
            ) AS __n
          FROM telling)
        WHERE __n = 1"""


def _moved(dialect: FoldDialect, key: Sequence[str]) -> str:
    """Pair the two halves of changed keys.

    PostgreSQL writes an update of the key as one record of the WAL: its delete and its insert
    carry one LSN and follow each other, which those of two statements never do.
    """
    near = ("_operation", "_seq_lo", "__text")
    before, after = (
        ", ".join(f"{way}({n}) OVER w AS __{way}{n.replace('__', '_')}" for n in near)
        for way in ("lag", "lead")
    )
    return f"""
        SELECT {listed(dialect, key)}, _seq_hi, _seq_lo, _operation,
          CASE WHEN _operation = 'c' AND __lag_operation = 'd' AND __lag_seq_lo = _seq_lo - 1
               THEN __lag_text END AS {PREVIOUS_KEY},
          CASE WHEN _operation = 'd' AND __lead_operation = 'c' AND __lead_seq_lo = _seq_lo + 1
               THEN __lead_text END AS {NEXT_KEY}
        FROM (
          SELECT *, {before}, {after} FROM (
            SELECT {listed(dialect, key)}, _seq_hi, _seq_lo, _operation, {TRANSACTION}, _lsn,
                   {dialect.key_text(key)} AS __text
            FROM history_in WHERE _operation IN ('c', 'd') AND _lsn IS NOT NULL)
          WINDOW w AS (PARTITION BY _seq_hi, {TRANSACTION}, _lsn ORDER BY _seq_lo))
        WHERE __lag_operation IS NOT NULL OR __lead_operation IS NOT NULL"""


def _facts(dialect: FoldDialect, key: Sequence[str], columns: Sequence[str]) -> str:
    """Put new changes, TRUNCATEs and stored versions under one shape.

    `__kind` is the operation; empty for what is stored. `__rank` orders what has one place: a
    stored version before what comes in.
    """
    keys = listed(dialect, key)
    on = " AND ".join(f"i.{n} = m.{n}" for n in map(dialect.name, key))
    nulls = ", ".join(
        f"k.{dialect.name(c)}" if c in key else f"NULL AS {dialect.name(c)}" for c in columns
    )
    return f"""
        SELECT {listed(dialect, columns)}, valid_from AS __at, _deleted, '' AS __kind, 0 AS __rank,
               _seq_hi, _seq_lo, {_LINKS}
        FROM history_old
        UNION ALL
        SELECT {listed(dialect, columns, "i")}, i._time, i._operation = 'd', i._operation, 1,
               i._seq_hi, i._seq_lo, i.{TRANSACTION}, m.{PREVIOUS_KEY}, m.{NEXT_KEY}
        FROM history_in i LEFT JOIN moved m
          ON {on} AND i._seq_hi = m._seq_hi AND i._seq_lo = m._seq_lo
             AND i._operation = m._operation
        UNION ALL
        SELECT {nulls}, t._time, true, 't', 1, t._seq_hi, t._seq_lo, t.{TRANSACTION}, NULL, NULL
        FROM history_truncates t
        CROSS JOIN (SELECT {keys} FROM history_in UNION SELECT {keys} FROM history_old) k"""
