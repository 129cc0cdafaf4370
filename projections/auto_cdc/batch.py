"""One batch of changes into a flow's tables, in steps that a crash may come between.

1. Lay the changes out as facts; refuse what has no key or no sequence.
2. Put them together with what is known of their keys, and of the keys that an interrupted batch
   touched (the facts' epoch is ahead of the target's).
3. Write what was refused to the quarantine. Again is harmless: rows there have an id of their own.
4. Remember what can still matter. From here on the batch is taken.
5. Compute the rows of the touched keys from that, and merge what differs into the target.

A new TRUNCATE touches every key: both tables are then written anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.storagelevel import StorageLevel

from kernel import failpoints
from kernel.clock import Clock, micros
from kernel.errors import SequenceReused
from kernel.positions import DeltaVersion, Epoch
from lake.collecting import FEW_ROWS, collected
from lake.quoting import as_json
from lake.views import with_nulls
from projections.auto_cdc import facts as sql
from projections.auto_cdc.arguments import Arguments, Shape, resolved
from projections.auto_cdc.names import (
    CONTENT,
    DELETED,
    EPOCH,
    FACT,
    ID,
    SEQUENCE,
    START_AT,
    TRUNCATE,
)
from projections.auto_cdc.tables import BOUNDED_ROWS, FlowTables
from schemas.identifiers import spark_name

TEND_EVERY = 64
"""Batches between two times that a flow looks after its files and old tombstones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was done: changes read, those that went to quarantine, the target's version."""

    changes: int
    refused: int
    version: int | None

    def __add__(self, later: Applied) -> Applied:
        """Sum two batches up."""
        return Applied(
            changes=self.changes + later.changes,
            refused=self.refused + later.refused,
            version=later.version if later.version is not None else self.version,
        )


NOTHING = Applied(changes=0, refused=0, version=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A batch laid out: `new` facts, `known` ones of the touched keys, the last TRUNCATE.

    `whole`: all keys are touched. `small`: what changes is committed from this process.
    """

    shape: Shape
    epoch: Epoch
    now: datetime
    new: DataFrame
    known: DataFrame
    cleared: DataFrame | None
    whole: bool
    small: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWriter:
    """Takes batches of changes in, one at a time."""

    arguments: Arguments
    tables: FlowTables
    flow: str
    tombstone_retention: timedelta
    refuse_reused: bool
    clock: Clock
    bounded_rows: int = BOUNDED_ROWS

    def take(self, rows: DataFrame) -> Applied:
        """Take in one batch; the same again changes nothing.

        Raises `InvalidRequest`, `Conflict` and `Incompatible` before anything is written,
        `LeaseLost` when another run of the flow writes meanwhile, `SequenceReused` on request.
        """
        shape = resolved(self.arguments, rows)
        self.tables.agree(shape)
        place = self.tables.place
        before, behind = self.tables.epoch(place.facts), self.tables.epoch(place.path)
        now = self.clock.now()
        said = _kept(sql.facts_of(rows, self.arguments, shape, epoch=before + 1, now=now))
        try:
            count = said.count()
            if count == 0 and behind == before:
                return NOTHING
            batch = self._batch(said, shape, Epoch(before + 1), behind, now, count)
            refused, version = self._commit(said, batch)
            if batch.epoch % TEND_EVERY == 0:
                self.tend()
            return Applied(changes=count, refused=refused, version=version)
        finally:
            said.unpersist()

    def tend(self) -> None:
        """Keep the tables small: compact them; in SCD type 1 forget deletes beyond the retention.

        Done by itself every so many batches. An end of a version is never forgotten.
        """
        latest = self.arguments.scd_type == 1
        horizon = self.clock.now() - self.tombstone_retention
        self.tables.tend(forget_before=horizon if latest else None)

    def _batch(
        self, said: DataFrame, shape: Shape, epoch: Epoch, behind: int, now: datetime, count: int
    ) -> _Batch:
        stored = _shaped(self.tables.read(said.sparkSession, self.tables.place.facts), said)
        new = said.filter("__refused IS NULL").drop("__refused")
        cleared, news = _last_truncate(new, stored) if shape.truncates else (None, 0)
        whole = news > behind
        return _Batch(
            shape=shape,
            epoch=epoch,
            now=now,
            new=new,
            known=stored if whole else _of_keys(stored, new, shape, behind=behind),
            cleared=cleared,
            whole=whole,
            small=count <= self.bounded_rows and not whole,
        )

    def _commit(self, said: DataFrame, batch: _Batch) -> tuple[int, DeltaVersion]:
        session = said.sparkSession
        horizon = micros(batch.now - self.tombstone_retention)
        frames = {"new": batch.new, "known": batch.known}
        if batch.cleared is not None:
            frames["cleared"] = batch.cleared
        together = _kept(
            _over(
                session,
                sql.gathered(batch.shape, horizon=horizon, cleared=batch.cleared is not None),
                **frames,
            )
        )
        winners = together.filter("NOT __loser")
        facts = _kept(_over(session, sql.remembered(batch.shape, horizon=horizon), facts=winners))
        try:
            refused = self._quarantine(said, together, batch)
            failpoints.hit(failpoints.AUTO_CDC_AFTER_REFUSED)
            self._remember(facts, batch)
            failpoints.hit(failpoints.AUTO_CDC_AFTER_FACTS)
            return refused, self._publish(facts, batch)
        finally:
            facts.unpersist()
            together.unpersist()

    def _quarantine(self, said: DataFrame, together: DataFrame, batch: _Batch) -> int:
        columns = [*batch.shape.columns, SEQUENCE, DELETED]
        unusable = said.filter("__refused IS NOT NULL").select("__refused", *_named(columns))
        losers = together.filter("__loser").select(
            functions.lit(sql.REUSED).alias("__refused"), *_named(columns)
        )
        row = functions.expr(as_json(columns))
        refused = unusable.unionByName(losers).select(
            functions.md5(functions.concat("__refused", row)).alias("id"),
            functions.col("__refused").alias("reason"),
            row.alias("change"),
            functions.lit(self.flow).alias("flow"),
            functions.lit(batch.now).alias("refused_at"),
        )
        refused = refused.dropDuplicates(["id"])
        counted = collected(refused.groupBy("reason").count(), FEW_ROWS).to_pylist()
        counts = {row["reason"]: row["count"] for row in counted}
        total = int(sum(counts.values()))
        if self.refuse_reused and counts.get(sql.REUSED):
            first = refused.filter(refused["reason"] == sql.REUSED).first()
            raise SequenceReused(
                f"{counts[sql.REUSED]} changes for {self.tables.place.name} have the key and the "
                f"sequence of another change: {first['change'] if first else ''}"
            )
        if total:
            rows = refused.withColumn("__op", functions.lit("upsert"))
            self.tables.refuse(rows, small=total <= self.bounded_rows)
        return total

    def _remember(self, facts: DataFrame, batch: _Batch) -> None:
        columns = _named([*batch.shape.columns, *FACT])
        facts = facts.withColumn(TRUNCATE, functions.lit(False)).select(columns)
        path = self.tables.place.facts
        if batch.whole and batch.cleared is not None:
            facts = facts.unionByName(batch.cleared.select(columns))
            self.tables.overwrite(path, facts, batch.epoch)
        else:
            # A fact never changes but by what another of its place says beside it.
            partial = functions.expr(as_json(batch.shape.partial or (ID,)))
            identity = [ID, CONTENT, "__partial"]
            known = batch.known.withColumn("__partial", partial).select(identity)
            new = facts.withColumn("__partial", partial)
            added = new.join(known, identity, "left_anti").select(columns)
            gone = batch.known.join(facts.select(ID), [ID], "left_anti").select(columns)
            rows = added.withColumn("__op", functions.lit("upsert")).unionByName(
                gone.withColumn("__op", functions.lit("delete"))
            )
            self.tables.merge(path, rows, batch.epoch, keys=(ID,), small=batch.small)
        self.tables.describe(batch.shape)

    def _publish(self, facts: DataFrame, batch: _Batch) -> DeltaVersion:
        path, session, shape = self.tables.place.path, facts.sparkSession, batch.shape
        compute = sql.latest_rows if shape.scd_type == 1 else sql.version_rows
        rows = _over(session, compute(shape), facts=facts)
        if batch.whole:
            return self.tables.overwrite(path, rows, batch.epoch)
        identity = shape.keys if shape.scd_type == 1 else (*shape.keys, START_AT)
        keys = [*shape.keys]
        touched = batch.new.select(_named(keys)).union(batch.known.select(_named(keys)))
        stored = _shaped(self.tables.read(session, path), rows)
        stored = stored.join(touched.dropDuplicates(), keys, "left_semi")
        changed = _over(
            session,
            sql.difference(identity, tuple(rows.columns)),
            computed=rows,
            stored=stored,
        )
        return self.tables.merge(path, changed, batch.epoch, keys=identity, small=batch.small)


def _over(session: SparkSession, query: str, **frames: Any) -> DataFrame:
    """Run a query over frames that it names in braces; names of columns may have braces too."""
    plain = query.replace("{", "{{").replace("}", "}}")
    for name in frames:
        plain = plain.replace(f"{{{{{name}}}}}", f"{{{name}}}")
    return session.sql(plain, **frames)


def _kept(frame: DataFrame) -> DataFrame:
    return frame.persist(StorageLevel.MEMORY_AND_DISK)


def _named(names: list[str]) -> list[str]:
    return [spark_name(name) for name in names]


def _last_truncate(new: DataFrame, stored: DataFrame) -> tuple[DataFrame | None, int]:
    """Return the TRUNCATE of the greatest sequence as one row, and the epoch that took it."""
    columns = _named([*new.columns])
    every = new.unionByName(stored.select(columns)).filter(TRUNCATE)
    # Of one known before and the same again, the one known: it is no news.
    last = every.orderBy(functions.desc(SEQUENCE), EPOCH).first()
    if last is None:
        return None, 0
    return new.sparkSession.createDataFrame([last], new.schema), int(last[EPOCH])


def _of_keys(stored: DataFrame, new: DataFrame, shape: Shape, *, behind: int) -> DataFrame:
    """Return the facts of all keys that came in, or that the target has not followed yet."""
    keys = _named([*shape.keys])
    late = stored.filter(stored[EPOCH] > behind).select(keys)
    touched = new.select(keys).union(late).dropDuplicates()
    return stored.join(touched, [*shape.keys], "left_semi")


def _shaped(stored: DataFrame | None, like: DataFrame) -> DataFrame:
    """Return what is stored, with nulls in columns that came later; nothing where there is none."""
    return like.limit(0) if stored is None else with_nulls(stored, like.schema)
