"""Changes as facts: one row per key and sequence, whatever came twice, late or contradicting.

A fact has the target's columns, its `__sequence`, whether it is a delete, and `__content`, which
orders facts of one place: a delete before any row, else by the row's own content. A column whose
nulls say nothing is taken from whichever row of the place says something, by value where several
do: what was said once stays said, so nothing older that was forgotten can be missed again. So the
table is a function of the set of facts alone. What is remembered of a key is what can still matter:
see `remembered`.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame, functions

from kernel.clock import micros
from lake.quoting import as_json, equal, listed
from projections.auto_cdc.arguments import Arguments, Shape, expression
from projections.auto_cdc.names import (
    CONTENT,
    DELETED,
    EPOCH,
    ID,
    SEQUENCE,
    TAKEN_US,
    TRUNCATE,
)
from schemas.identifiers import spark_name

NULL_KEY, NULL_SEQUENCE, REUSED = "null_key", "null_sequence", "sequence_reused"


def facts_of(
    rows: DataFrame, arguments: Arguments, shape: Shape, *, epoch: int, now: datetime
) -> DataFrame:
    """Lay out changes as facts, and add `__refused`: why one cannot be used, or null.

    A delete's values beside its key mean nothing and become null.
    """
    deleted, truncate = _flag(arguments.deletes), _flag(arguments.truncates)
    said = rows.select(
        *(rows[spark_name(name)] for name in shape.columns),
        expression(arguments.sequence_by).alias(SEQUENCE),
        (deleted & ~truncate).alias(DELETED),
        truncate.alias(TRUNCATE),
        functions.lit(micros(now)).cast("bigint").alias(TAKEN_US),
        functions.lit(epoch).cast("bigint").alias(EPOCH),
    )
    for name in shape.values:
        kept = functions.when(~said[DELETED], said[spark_name(name)])
        said = said.withColumn(name, kept)
    content = f"concat('0', md5({as_json(shape.values)}))" if shape.values else "'0'"
    no_key = " OR ".join(f"{spark_name(key)} IS NULL" for key in shape.keys)
    return said.withColumns(
        {
            CONTENT: functions.expr(f"CASE WHEN {DELETED} THEN '1' ELSE {content} END"),
            ID: functions.expr(f"md5({as_json((*shape.keys, SEQUENCE))})"),
            "__refused": functions.expr(
                f"CASE WHEN {SEQUENCE} IS NULL THEN '{NULL_SEQUENCE}' "
                f"WHEN NOT {TRUNCATE} AND ({no_key}) THEN '{NULL_KEY}' END"
            ),
        }
    )


def _flag(given: str | Column | None) -> Column:
    if given is None:
        return functions.lit(False)
    return functions.coalesce(expression(given).cast("boolean"), functions.lit(False))


def gathered(shape: Shape, *, horizon: int, cleared: bool) -> str:
    """Put `{new}` and `{known}` facts of the touched keys together, one row per place.

    `__known` says that the winner was known before; `__loser` marks facts that contradict another
    of their place. Facts that a TRUNCATE (`{cleared}`, one row) covers are gone. Tombstones that
    were taken before `horizon` (microseconds) are forgotten, SCD type 1 only.
    """
    marks = (SEQUENCE, DELETED, CONTENT, ID, TAKEN_US)
    columns = listed((*shape.columns, *marks, EPOCH))
    merged = ", ".join(_merged(n) if n in shape.partial else spark_name(n) for n in shape.columns)
    aged = f" AND NOT ({DELETED} AND {TAKEN_US} < {horizon})" if shape.scd_type == 1 else ""
    after = f" AND {SEQUENCE} > (SELECT {SEQUENCE} FROM {{cleared}})" if cleared else ""
    place = f"PARTITION BY {ID} ORDER BY {CONTENT} DESC, __known DESC, {TAKEN_US}"
    said = "".join(f", {_said(name)}" for name in shape.partial)
    return f"""
        SELECT {merged}, {listed(marks)}, CASE WHEN __r = 1 THEN __last ELSE {EPOCH} END AS {EPOCH},
          __known, __r > 1 AS __loser
        FROM (
          SELECT *, row_number() OVER ({place}) AS __r, first({CONTENT}) OVER ({place}) AS __best,
            max({EPOCH}) OVER (PARTITION BY {ID}) AS __last{said}
          FROM (
            SELECT {columns}, false AS __known FROM {{new}} WHERE NOT {TRUNCATE}{after}
            UNION ALL
            SELECT {columns}, true AS __known FROM {{known}} WHERE NOT {TRUNCATE}{aged}{after}))
        WHERE __r = 1 OR {CONTENT} <> __best"""


def _said(name: str) -> str:
    """Select what the rows of one place say of a column whose nulls say nothing."""
    value = spark_name(name)
    order = f"CASE WHEN {value} IS NOT NULL THEN CAST({value} AS STRING) END"
    return f"max_by({value}, {order}) OVER (PARTITION BY {ID}) AS {spark_name('__said ' + name)}"


def _merged(name: str) -> str:
    said, value = spark_name("__said " + name), spark_name(name)
    return f"CASE WHEN __r = 1 AND NOT {DELETED} THEN {said} ELSE {value} END AS {value}"


def remembered(shape: Shape, *, horizon: int) -> str:
    """Of the winners (`{facts}`), select those that can still matter.

    SCD type 1: the newest of a key; with partial updates also its last delete and, per column, the
    newest that said something. SCD type 2: all but deletes before `horizon` that end nothing.
    For type 1 it adds `__newest` and `__since`, the sequences of the newest fact and of the last
    delete.
    """
    by_key = f"PARTITION BY {listed(shape.keys)}"
    if shape.scd_type == 2:
        return f"""
            SELECT * EXCEPT (__before) FROM (
              SELECT *, lag({DELETED}) OVER ({by_key} ORDER BY {SEQUENCE}) AS __before
              FROM {{facts}})
            WHERE NOT ({DELETED} AND coalesce(__before, true) AND {TAKEN_US} < {horizon})"""
    newest = [f"{SEQUENCE} = __newest"]
    said: list[str] = []
    if shape.partial:
        newest.append(f"{SEQUENCE} = __since")
        for number, name in enumerate(shape.partial):
            said.append(f", max({_says(name)}) OVER ({by_key}) AS __said_{number}")
            newest.append(f"{SEQUENCE} = __said_{number}")
    return f"""
        SELECT * FROM (
          SELECT *{"".join(said)} FROM (
            SELECT *, max({SEQUENCE}) OVER ({by_key}) AS __newest,
              max(CASE WHEN {DELETED} THEN {SEQUENCE} END) OVER ({by_key}) AS __since
            FROM {{facts}}))
        WHERE {" OR ".join(newest)}"""


def latest_rows(shape: Shape) -> str:
    """Compute the rows of SCD type 1 from remembered facts (`{facts}`)."""
    values = "".join(
        f", max_by({spark_name(n)}, {_says(n) if n in shape.partial else SEQUENCE})"
        f" AS {spark_name(n)}"
        for n in shape.values
    )
    keys = listed(shape.keys)
    return f"""
        SELECT {keys}{values} FROM {{facts}} GROUP BY {keys}
        HAVING NOT max_by({DELETED}, {SEQUENCE})"""


def _says(name: str) -> str:
    """Give the sequence of a fact that says something of a column, since the key's last delete."""
    return (
        f"CASE WHEN {spark_name(name)} IS NOT NULL AND NOT {DELETED} "
        f"AND (__since IS NULL OR {SEQUENCE} > __since) THEN {SEQUENCE} END"
    )


def version_rows(shape: Shape) -> str:
    """Compute the rows of SCD type 2 from remembered facts (`{facts}`).

    Facts that follow each other with the same tracked columns are one version, which shows the
    last one's other columns.
    """
    keys = listed(shape.keys)
    by_key = f"PARTITION BY {keys} ORDER BY {SEQUENCE}"
    lives = f"PARTITION BY {keys}, __life ORDER BY {SEQUENCE}"
    filled = "".join(
        f", last_value({spark_name(n)}) IGNORE NULLS OVER ({lives}) AS {spark_name(n)}"
        if n in shape.partial
        else f", {spark_name(n)}"
        for n in shape.values
    )
    tracked = f"struct({listed(shape.tracked)})" if shape.tracked else "1"
    return f"""
        WITH lives AS (
          SELECT *, sum(CAST({DELETED} AS INT)) OVER ({by_key}) AS __life FROM {{facts}}),
        filled AS (
          SELECT {keys}, {SEQUENCE}, {DELETED}{filled} FROM lives),
        marked AS (
          SELECT *, {DELETED} OR coalesce(lag({DELETED}) OVER ({by_key}), true)
              OR NOT (lag({tracked}) OVER ({by_key}) <=> {tracked}) AS __bound
          FROM filled),
        placed AS (
          SELECT *, lead(__bound) OVER ({by_key}) AS __last,
            max(CASE WHEN __bound THEN {SEQUENCE} END) OVER ({by_key}) AS __START_AT,
            lead({SEQUENCE}) OVER ({by_key}) AS __END_AT
          FROM marked)
        SELECT {listed(shape.columns)}, __START_AT, __END_AT
        FROM placed WHERE NOT {DELETED} AND coalesce(__last, true)"""


def difference(identity: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """Say what turns `{stored}` rows into the `{computed}` ones: upserts, deletes by identity."""
    chosen = ", ".join(
        f"CASE WHEN c.__there THEN c.{spark_name(n)} ELSE s.{spark_name(n)} END AS {spark_name(n)}"
        for n in columns
    )
    new, old = listed(columns, "c"), listed(columns, "s")
    return f"""
        SELECT {chosen}, CASE WHEN c.__there THEN 'upsert' ELSE 'delete' END AS __op
        FROM (SELECT *, true AS __there FROM {{computed}}) c
        FULL OUTER JOIN (SELECT *, true AS __there FROM {{stored}}) s
          ON {equal(identity, "c", "s")}
        WHERE c.__there IS NULL OR s.__there IS NULL
           OR NOT (struct({new}) <=> struct({old}))"""
