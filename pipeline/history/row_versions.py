"""History of declared sources: each row of a table is a version of its key, at its event time."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.history.dialects import FoldDialect, equal, listed


def versions_by_record(dialect: FoldDialect, key: Sequence[str], columns: Sequence[str]) -> str:
    """Select the versions of the touched keys, of records that are never replaced or retracted.

    Reads `history_in` and `history_old`. A record that ends its key (`_operation` is `d`) is a
    version in which nothing holds. Of several at one moment the last in order counts.
    """
    data = listed(dialect, columns)
    keys = listed(dialect, key)
    return f"""
        SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo,
               lead(valid_from) OVER (PARTITION BY {keys} ORDER BY valid_from) AS valid_to
        FROM (
          SELECT *, row_number() OVER (
            PARTITION BY {keys}, valid_from ORDER BY _seq_hi DESC, _seq_lo DESC) AS __n
          FROM (
            SELECT {data}, _time AS valid_from, _operation = 'd' AS _deleted, _seq_hi, _seq_lo
            FROM history_in WHERE NOT _late
            UNION ALL
            SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo FROM history_old))
        WHERE __n = 1"""


def touched_by_rows(dialect: FoldDialect, key: Sequence[str], identity: Sequence[str]) -> str:
    """Select stored versions of every key that an incoming row has now or had before."""
    return f"""
        SELECT o.* FROM history_stored o SEMI JOIN (
          SELECT {listed(dialect, key)} FROM history_in
          UNION ALL
          SELECT {listed(dialect, key, "s")} FROM history_stored s
          SEMI JOIN history_in i ON {equal(dialect, identity, "s", "i")}
        ) k ON {equal(dialect, key, "o", "k")}"""


def versions_by_row(
    dialect: FoldDialect, key: Sequence[str], identity: Sequence[str], columns: Sequence[str]
) -> str:
    """Select the versions of the touched keys: replace, move or retract what a row held before.

    Reads `history_in` and `history_old`. A retracted version without a predecessor leaves a gap
    (`_deleted`), so that whoever joined within it is told. A gap goes when a version before it
    appears, whose interval then covers it. Rows that one copy read have one place in order; of
    those of one key and moment the one of the greatest `identity` counts.
    """
    data = listed(dialect, columns)
    keys = listed(dialect, key)
    last = ", ".join(f"{dialect.name(name)} DESC" for name in identity)
    return f"""
        WITH newest AS (
          SELECT * FROM (
            SELECT *, row_number() OVER (
              PARTITION BY {listed(dialect, identity)} ORDER BY _seq_hi DESC, _seq_lo DESC) AS __n
            FROM history_in WHERE NOT _late) WHERE __n = 1),
        kept AS (
          SELECT o.* FROM history_old o
          ANTI JOIN newest n ON {equal(dialect, identity, "o", "n")}
          WHERE NOT o._deleted),
        held AS (
          SELECT {data}, _time AS valid_from, false AS _deleted, _seq_hi, _seq_lo
          FROM newest WHERE _operation <> 'd'
          UNION ALL
          SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo FROM kept),
        firsts AS (SELECT {keys}, min(valid_from) AS __first FROM held GROUP BY {keys}),
        gaps AS (
          SELECT {listed(dialect, columns, "o")}, o.valid_from, true AS _deleted,
                 CAST(-1 AS BIGINT) AS _seq_hi, CAST(-1 AS BIGINT) AS _seq_lo
          FROM history_old o
          LEFT JOIN newest n ON {equal(dialect, identity, "o", "n")}
          LEFT JOIN firsts f ON {equal(dialect, key, "o", "f")}
          WHERE (o._deleted OR n.__n IS NOT NULL)
            AND (f.__first IS NULL OR o.valid_from < f.__first))
        SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo,
               lead(valid_from) OVER (PARTITION BY {keys} ORDER BY valid_from) AS valid_to
        FROM (
          SELECT *, row_number() OVER (
            PARTITION BY {keys}, valid_from ORDER BY _seq_hi DESC, _seq_lo DESC, {last}) AS __n
          FROM (SELECT * FROM held UNION ALL SELECT * FROM gaps))
        WHERE __n = 1"""
