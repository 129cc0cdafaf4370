"""`history/NAME`: every version of every key with the time in which it held.

Columns: the table's own, then `valid_from` and `valid_to` (exclusive, null = still), `_deleted`
(nothing held in this interval), `_seq_hi`, `_seq_lo`, `_epoch` (the epoch in which this row last
changed, its `valid_to` included: whoever joined within it joins again).

Versions are ordered by event time, then sequence; the table depends on the facts only, never on
the order in which they came. Two ways to read a source as history:

- by commit time (the default): the key is the primary key and every change is a version;
- by declared key and event time (`CREATE SOURCE … ON table WITH (key, event_time)`): each row of
  the table is a version of its key, at its own event time. An update of the row replaces the
  version, a delete retracts it, and its predecessor holds again.

Late rows beyond the source's lateness stay out, as in every stateful result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from kernel.positions import Epoch
from projections.log.layout import Lake
from projections.log.tables import TableAt, Tables
from projections.log.writer import ArrowWriter, Guard

VALID_FROM, VALID_TO, DELETED = "valid_from", "valid_to", "_deleted"
HIDDEN = ("_epoch", "_late", "_time", "_seq_hi", "_seq_lo", "_ingested_at", "_operation")
NOT_COLUMNS = frozenset((*HIDDEN, "committed_at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOf:
    """How one history table is kept.

    `identity` is the source's primary key. `key` differs from it, or `event_time` is set, when the
    history was declared; then rows are versions of `key` (see the module).
    """

    name: str
    typed: str
    key: tuple[str, ...]
    identity: tuple[str, ...]
    by_row: bool


class HistoryTables:
    """Brings history tables up to an epoch, computing only the keys that changed, in Spark."""

    def __init__(self, spark: SparkSession, lake: Lake, tables: Tables) -> None:
        self._spark = spark
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)

    def fold(
        self, history: HistoryOf, incoming: DataFrame, stored: DataFrame | None, epoch: Epoch
    ) -> TableAt:
        """Fold newly visible typed rows (`incoming`) into what is stored.

        One commit, guarded by the epoch. Rows that do not change are not written.
        """
        columns = [c for c in incoming.columns if c not in NOT_COLUMNS]
        incoming.createOrReplaceTempView("history_in")
        if stored is None:
            self._empty_like(columns).createOrReplaceTempView("history_stored")
        else:
            stored.createOrReplaceTempView("history_stored")
        self._spark.sql(_touched(history)).createOrReplaceTempView("history_old")
        versions = _by_row(history, columns) if history.by_row else _by_change(history, columns)
        self._spark.sql(versions).createOrReplaceTempView("history_versions")
        rows = self._spark.sql(_difference(history, columns, epoch)).toArrow()
        path = self._lake.path(history.name)
        version = self._writer.merge(
            path, rows, Guard(history.name, epoch), keys=(*history.key, VALID_FROM)
        )
        return TableAt(version=version, as_of_epoch=epoch)

    def _empty_like(self, columns: Sequence[str]) -> DataFrame:
        kept = ", ".join(_q(c) for c in columns)
        return self._spark.sql(
            f"SELECT {kept}, _time AS valid_from, _time AS valid_to, false AS _deleted, "
            "_seq_hi, _seq_lo, _epoch FROM history_in WHERE false"
        )


def _touched(history: HistoryOf) -> str:
    """Select stored versions of every key that an incoming row has now or had before."""
    on_key = _equal(history.key, "o", "k")
    keys = f"SELECT {_list(history.key)} FROM history_in"
    if history.by_row:
        on_identity = _equal(history.identity, "s", "i")
        keys += (
            f" UNION SELECT {_list(history.key, 's')} FROM history_stored s "
            f"LEFT SEMI JOIN history_in i ON {on_identity}"
        )
    return f"SELECT o.* FROM history_stored o LEFT SEMI JOIN ({keys}) k ON {on_key}"


def _by_change(history: HistoryOf, columns: Sequence[str]) -> str:
    """Every change is a version; of several at one instant the last in sequence."""
    data = _list(columns)
    return f"""
        SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo, {_next_start(history)} FROM (
          SELECT *, row_number() OVER (
            PARTITION BY {_list(history.key)}, valid_from ORDER BY _seq_hi DESC, _seq_lo DESC) AS _n
          FROM (
            SELECT {data}, _time AS valid_from, _operation = 'd' AS _deleted, _seq_hi, _seq_lo
            FROM history_in WHERE NOT _late
            UNION ALL
            SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo FROM history_old))
        WHERE _n = 1"""


def _by_row(history: HistoryOf, columns: Sequence[str]) -> str:
    """Each row of the source is a version: replace, move or retract it.

    A retracted version without a predecessor leaves a gap (`_deleted`), so that whoever joined
    within it is told. A gap goes when a version before it appears, whose interval then covers it.
    """
    data = _list(columns)
    key = _list(history.key)
    return f"""
        WITH newest AS (
          SELECT * FROM (
            SELECT *, row_number() OVER (
              PARTITION BY {_list(history.identity)} ORDER BY _seq_hi DESC, _seq_lo DESC) AS _n
            FROM history_in WHERE NOT _late) WHERE _n = 1),
        kept AS (
          SELECT o.* FROM history_old o
          LEFT ANTI JOIN newest n ON {_equal(history.identity, "o", "n")}
          WHERE NOT o._deleted),
        held AS (
          SELECT {data}, _time AS valid_from, false AS _deleted, _seq_hi, _seq_lo
          FROM newest WHERE _operation <> 'd'
          UNION ALL
          SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo FROM kept),
        firsts AS (SELECT {key}, min(valid_from) AS _first FROM held GROUP BY {key}),
        gaps AS (
          SELECT {_list(columns, "o")}, o.valid_from, true AS _deleted,
                 CAST(-1 AS BIGINT) AS _seq_hi, CAST(-1 AS BIGINT) AS _seq_lo
          FROM history_old o
          LEFT JOIN newest n ON {_equal(history.identity, "o", "n")}
          LEFT JOIN firsts f ON {_equal(history.key, "o", "f")}
          WHERE (o._deleted OR n._n IS NOT NULL)
            AND (f._first IS NULL OR o.valid_from < f._first))
        SELECT {data}, valid_from, _deleted, _seq_hi, _seq_lo, {_next_start(history)} FROM (
          SELECT *, row_number() OVER (
            PARTITION BY {key}, valid_from ORDER BY _seq_hi DESC, _seq_lo DESC) AS _n
          FROM (SELECT * FROM held UNION ALL SELECT * FROM gaps))
        WHERE _n = 1"""


def _next_start(history: HistoryOf) -> str:
    window = f"PARTITION BY {_list(history.key)} ORDER BY valid_from"
    return f"lead(valid_from) OVER ({window}) AS valid_to"


def _difference(history: HistoryOf, columns: Sequence[str], epoch: Epoch) -> str:
    """Compare computed with stored versions: what to upsert, what to delete."""
    identity = (*history.key, VALID_FROM)
    compared = [*columns, VALID_TO, DELETED]
    new = ", ".join(f"n.{_q(c)}" for c in compared)
    old = ", ".join(f"o.{_q(c)}" for c in compared)
    out = [*columns, VALID_FROM, VALID_TO, DELETED, "_seq_hi", "_seq_lo"]
    chosen = ", ".join(
        f"CASE WHEN n.valid_from IS NULL THEN o.{_q(c)} ELSE n.{_q(c)} END AS {_q(c)}" for c in out
    )
    return f"""
        SELECT {chosen}, CAST({int(epoch)} AS BIGINT) AS _epoch,
               CASE WHEN n.valid_from IS NULL THEN 'delete' ELSE 'upsert' END AS __op
        FROM history_versions n
        FULL OUTER JOIN history_old o ON {_equal(identity, "n", "o")}
        WHERE n.valid_from IS NULL OR o.valid_from IS NULL
           OR NOT (struct({new}) <=> struct({old}))"""


def _q(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _list(names: Sequence[str], alias: str | None = None) -> str:
    prefix = f"{alias}." if alias else ""
    return ", ".join(prefix + _q(name) for name in names)


def _equal(names: Sequence[str], left: str, right: str) -> str:
    return " AND ".join(f"{left}.{_q(n)} <=> {right}.{_q(n)}" for n in names)
