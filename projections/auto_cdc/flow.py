"""Flows: a source of changes bound to a target, run over what is there or as a stream."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from kernel.clock import Clock, SystemClock
from kernel.errors import InvalidRequest, PenstockError, Unavailable
from lake.layout import Lake
from lake.tables import Tables
from projections.auto_cdc.arguments import Arguments, Names, checked
from projections.auto_cdc.batch import NOTHING, Applied, BatchWriter
from projections.auto_cdc.names import CHECKPOINTS
from projections.auto_cdc.tables import BOUNDED_ROWS, FlowTables, Place

TOMBSTONE_RETENTION = timedelta(days=2)
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,200}")


@dataclass(kw_only=True)
class AutoCdcFlow:
    """A flow into a target. One at a time writes: a second one's commit conflicts."""

    target: str
    source: DataFrame
    once: bool
    writer: BatchWriter
    _failed: BaseException | None = field(default=None, repr=False)
    _done: Applied = field(default=NOTHING, repr=False)

    @property
    def name(self) -> str:
        """The flow's name: of its checkpoint, and in what it refuses."""
        return self.writer.flow

    @property
    def place(self) -> Place:
        """Where the target and the tables beneath it lie."""
        return self.writer.tables.place

    @property
    def quarantine(self) -> str:
        """Path of the Delta table of refused changes; made with the first one."""
        return self.place.quarantine

    def run(self) -> Applied:
        """Take in everything that is there now; a stream from where the last run ended.

        A flow with `once` that has run does nothing. Raises what `BatchWriter.take` raises.
        """
        marker = f"{self.place.app_id}/once/{self.name}"
        if self.once and self.writer.tables.done(marker):
            return NOTHING
        if self.source.isStreaming:
            self._done = NOTHING
            query = self.start(available_now=True)
            self._await(query)
            done = self._done
        else:
            done = self.writer.take(self.source)
        if self.once:
            self.writer.tables.mark(marker, self.source.sparkSession)
        return done

    def start(
        self,
        *,
        checkpoint: str | None = None,
        processing_time: str | None = None,
        available_now: bool = False,
    ) -> StreamingQuery:
        """Start the flow of a streaming source and return its query.

        `checkpoint` is a folder beneath the target unless given. A batch that Spark repeats, also
        after the checkpoint was lost, changes nothing.
        """
        if not self.source.isStreaming:
            raise InvalidRequest(
                f"the source of {self.name} is no stream",
                remedy="Call run(), or read it as a stream: spark.readStream…",
            )
        folder = checkpoint or f"{self.place.path}/{CHECKPOINTS}/{self.name}"
        stream = self.source.writeStream.foreachBatch(self._batch).option(
            "checkpointLocation", folder
        )
        if available_now:
            return stream.trigger(availableNow=True).start()
        if processing_time is not None:
            return stream.trigger(processingTime=processing_time).start()
        return stream.start()

    def tend(self) -> None:
        """Compact the tables and forget old tombstones now; done by itself every 64 batches."""
        self.writer.tend()

    def _batch(self, rows: DataFrame, _: int) -> None:
        try:
            self._done = self._done + self.writer.take(rows)
        except BaseException as error:
            # Spark keeps the text of an error only.
            self._failed = error
            raise

    def _await(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception as error:
            failed, self._failed = self._failed, None
            if isinstance(failed, PenstockError):
                raise failed from error
            raise Unavailable(f"flow {self.name} stopped: {str(error)[:500]}") from error


def create_auto_cdc_flow(
    target: str,
    source: str | DataFrame,
    keys: Names,
    sequence_by: str | Column,
    *,
    ignore_null_updates: bool = False,
    ignore_null_updates_column_list: Names | None = None,
    ignore_null_updates_except_column_list: Names | None = None,
    apply_as_deletes: str | Column | None = None,
    apply_as_truncates: str | Column | None = None,
    column_list: Names | None = None,
    except_column_list: Names | None = None,
    stored_as_scd_type: Literal[1, 2, "1", "2"] | None = None,
    track_history_column_list: Names | None = None,
    track_history_except_column_list: Names | None = None,
    name: str | None = None,
    once: bool = False,
    spark: SparkSession | None = None,
    lake: Lake | str | None = None,
    tombstone_retention: timedelta = TOMBSTONE_RETENTION,
    on_reused_sequence: Literal["quarantine", "error"] = "quarantine",
    bounded_rows: int = BOUNDED_ROWS,
    clock: Clock | None = None,
) -> AutoCdcFlow:
    """Make a flow that keeps a Delta table from changes that come in any order, twice, late.

    The arguments up to `once` mean what they mean in Spark and Databricks; each is explained in
    docs/reference/auto-cdc.md. Nothing is read or written before `run` or `start`.
    Raises `InvalidRequest` for arguments that contradict each other.
    """
    arguments = Arguments(
        keys=keys,
        sequence_by=sequence_by,
        scd_type=stored_as_scd_type,
        deletes=apply_as_deletes,
        truncates=apply_as_truncates,
        columns=(column_list, except_column_list),
        tracked=(track_history_column_list, track_history_except_column_list),
        ignore_nulls=ignore_null_updates,
        ignore_nulls_in=(ignore_null_updates_column_list, ignore_null_updates_except_column_list),
    )
    if on_reused_sequence not in ("quarantine", "error"):
        raise InvalidRequest("on_reused_sequence is quarantine or error")
    place = Place(name=target, path=_path(lake, target))
    writer = BatchWriter(
        arguments=checked(arguments),
        tables=FlowTables(place, Tables()),
        flow=_flow_name(name or target.rstrip("/").rpartition("/")[2]),
        tombstone_retention=tombstone_retention,
        refuse_reused=on_reused_sequence == "error",
        clock=clock or SystemClock(),
        bounded_rows=bounded_rows,
    )
    return AutoCdcFlow(target=target, source=_source(spark, lake, source), once=once, writer=writer)


def _flow_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is no name of a flow: use letters, digits, _ . and -")
    return name


def _path(lake: Lake | str | None, name: str) -> str:
    if lake is None or name.startswith("/") or "://" in name:
        return name.rstrip("/")
    return (Lake(lake) if isinstance(lake, str) else lake).path(name)


def _source(
    spark: SparkSession | None, lake: Lake | str | None, source: str | DataFrame
) -> DataFrame:
    """Read a Delta table as a stream of what is appended to it, anything else as it is."""
    if isinstance(source, DataFrame):
        return source
    session = spark or SparkSession.active()
    path = _path(lake, source)
    if "/" in path and DeltaTable.is_deltatable(path):
        return session.readStream.format("delta").load(path)
    return session.table(source)
