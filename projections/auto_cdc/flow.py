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
from projections.auto_cdc.arguments import Arguments, Names, checked
from projections.auto_cdc.batch import NOTHING, Applied, BatchWriter
from projections.auto_cdc.names import CHECKPOINTS
from projections.auto_cdc.tables import BOUNDED_ROWS, FlowTables, Place
from projections.log.layout import Lake
from projections.log.tables import Tables

TOMBSTONE_RETENTION = timedelta(days=2)
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,200}")


@dataclass(kw_only=True)
class AutoCdcFlow:
    """A flow into a target. One at a time writes: a second one's commit conflicts."""

    name: str
    target: str
    source: DataFrame
    once: bool
    place: Place
    _writer: BatchWriter = field(repr=False)
    _tables: FlowTables = field(repr=False)
    _failed: BaseException | None = field(default=None, repr=False)
    _done: Applied = field(default=NOTHING, repr=False)

    @property
    def quarantine(self) -> str:
        """Path of the Delta table of refused changes; made with the first one."""
        return self.place.quarantine

    def run(self) -> Applied:
        """Take in everything that is there now; a stream from where the last run ended.

        A flow with `once` that has run does nothing. Raises what `BatchWriter.take` raises.
        """
        marker = f"{self.place.app_id}/once/{self.name}"
        if self.once and self._tables.done(marker):
            return NOTHING
        if self.source.isStreaming:
            self._done = NOTHING
            query = self.start(available_now=True)
            self._await(query)
            done = self._done
        else:
            done = self._writer.take(self.source)
        if self.once:
            self._tables.mark(marker, self.source.sparkSession)
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
        self._writer.tend()

    def _batch(self, rows: DataFrame, _: int) -> None:
        try:
            self._done = self._done + self._writer.take(rows)
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

    The arguments up to `once` have the names and the meaning of Spark's and Databricks' function;
    docs/reference/auto-cdc.md lists each and where ours differs. `source` is a frame or a stream,
    a table's place in the lake, a path, or a view; `target` a place in the lake
    (`projection/customers`) or a path. Nothing is read or written before `run` or `start`.
    Raises `InvalidRequest` for arguments that contradict each other.
    """
    scd_type = _scd_type(stored_as_scd_type)
    if on_reused_sequence not in ("quarantine", "error"):
        raise InvalidRequest("on_reused_sequence is quarantine or error")
    arguments = checked(
        Arguments(
            keys=keys,
            sequence_by=sequence_by,
            ignore_nulls=ignore_null_updates,
            ignore_nulls_in=ignore_null_updates_column_list,
            ignore_nulls_except=ignore_null_updates_except_column_list,
            deletes=apply_as_deletes,
            truncates=apply_as_truncates,
            columns=column_list,
            columns_except=except_column_list,
            scd_type=scd_type,
            tracked=track_history_column_list,
            tracked_except=track_history_except_column_list,
        )
    )
    root = Lake(lake) if isinstance(lake, str) else lake
    place = Place(name=target, path=_path(root, target))
    flow = name or target.rstrip("/").rpartition("/")[2]
    if not _NAME.fullmatch(flow):
        raise InvalidRequest(f"{flow!r} is no name of a flow: use letters, digits, _ . and -")
    session = source.sparkSession if isinstance(source, DataFrame) else spark
    tables = FlowTables(place, Tables())
    return AutoCdcFlow(
        name=flow,
        target=target,
        source=_source(session or SparkSession.active(), root, source),
        once=once,
        place=place,
        _tables=tables,
        _writer=BatchWriter(
            arguments=arguments,
            tables=tables,
            flow=flow,
            tombstone_retention=tombstone_retention,
            refuse_reused=on_reused_sequence == "error",
            clock=clock or SystemClock(),
            bounded_rows=bounded_rows,
        ),
    )


def _scd_type(given: Literal[1, 2, "1", "2"] | None) -> int:
    found = {"1": 1, "2": 2}.get(str(1 if given is None else given))
    if found is None:
        raise InvalidRequest(f"stored_as_scd_type is 1 or 2, not {given!r}")
    return found


def _path(lake: Lake | None, name: str) -> str:
    if lake is None or name.startswith("/") or "://" in name:
        return name.rstrip("/")
    return lake.path(name)


def _source(spark: SparkSession, lake: Lake | None, source: str | DataFrame) -> DataFrame:
    """Read a Delta table as a stream of what is appended to it, anything else as it is."""
    if isinstance(source, DataFrame):
        return source
    path = _path(lake, source)
    if "/" in path and DeltaTable.is_deltatable(path):
        return spark.readStream.format("delta").load(path)
    return spark.table(source)
