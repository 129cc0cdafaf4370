"""History of declared sources: each row of a table is a version of its key, at its event time."""

from __future__ import annotations

from collections.abc import Sequence

from lake.quoting import equal, listed


def versions_by_record(key: Sequence[str], columns: Sequence[str]) -> str:
    """Select the versions of the touched keys, of records that are never replaced or retracted.

    Reads `history_in` and `history_old`. A record that ends its key (`_operation` is `d`) is a
    version in which nothing holds. Of several at one moment the last in order counts.
    """
    data = listed(columns)
    keys = listed(key)
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


def versions_by_row(key: Sequence[str], identity: Sequence[str], columns: Sequence[str]) -> str:
    """Select the versions of the touched keys: replace, move or retract what a row held before.

    Reads `history_in` and `history_old`. A retracted version without a predecessor leaves a gap
    (`_deleted`), so that whoever joined within it is told. A gap goes when a version before it
    appears, whose interval then covers it.
    """
    data = listed(columns)
    keys = listed(key)
    return f"""
        WITH newest AS (
          SELECT * FROM (
            SELECT *, row_number() OVER (
              PARTITION BY {listed(identity)} ORDER BY _seq_hi DESC, _seq_lo DESC) AS __n
            FROM history_in WHERE NOT _late) WHERE __n = 1),
        kept AS (
          SELECT o.* FROM history_old o
          LEFT ANTI JOIN newest n ON {equal(identity, "o", "n")}
          WHERE NOT o._deleted),
        held AS (
          SELECT {data}, _time AS valid_from, false AS _deleted, _seq_hi, _seq_lo
          FROM newest WHERE _operation <> 'd'
          UNION ALL
          SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo FROM kept),
        firsts AS (SELECT {keys}, min(valid_from) AS __first FROM held GROUP BY {keys}),
        gaps AS (
          SELECT {listed(columns, "o")}, o.valid_from, true AS _deleted,
                 CAST(-1 AS BIGINT) AS _seq_hi, CAST(-1 AS BIGINT) AS _seq_lo
          FROM history_old o
          LEFT JOIN newest n ON {equal(identity, "o", "n")}
          LEFT JOIN firsts f ON {equal(key, "o", "f")}
          WHERE (o._deleted OR n.__n IS NOT NULL)
            AND (f.__first IS NULL OR o.valid_from < f.__first))
        SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo,
               lead(valid_from) OVER (PARTITION BY {keys} ORDER BY valid_from) AS valid_to
        FROM (
          SELECT *, row_number() OVER (
            PARTITION BY {keys}, valid_from ORDER BY _seq_hi DESC, _seq_lo DESC) AS __n
          FROM (SELECT * FROM held UNION ALL SELECT * FROM gaps))
        WHERE __n = 1"""
