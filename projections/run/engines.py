"""Where the rows of touched keys are computed: in DuckDB in this process, or in Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession, functions

from kernel.errors import BeyondThisProcess
from kernel.positions import Epoch
from lake.collecting import RESULT, collected
from lake.layout import Lake
from lake.ranges import Among, Condition, Range, Spans
from lake.small_files import SmallFiles
from lake.tables import Tables
from lake.views import DeltaFrames
from projections.run.database import (
    ORDER_TYPES,
    TEXT,
    Database,
    arrow_schema,
    types_of,
)
from projections.run.input_rows import (
    facts,
    rows_of_keys,
    table_at,
    table_of,
    versions,
    written_in,
)
from projections.run.region_runs import Reading
from projections.run.stream_frames import input_frame
from projections.sql.adding import GIVEN
from projections.sql.catalog import Column
from projections.sql.key_steps import TOUCHED
from projections.sql.spark_text import SparkText
from projections.sql.tree import Scan

MOST_BYTES = 64 * 2**20
"""More than this of one input's rows is not read here in one run."""
_VERSION = {"valid_from": "TIMESTAMP", "_deleted": "BOOLEAN"}


class SmallEngine:
    """Computes one run in DuckDB, over rows that are read here; see `key_runs.Engine`.

    Raises `BeyondThisProcess` where that takes more than `most_bytes` of an input, and for values
    that Spark alone reads.
    """

    def __init__(
        self,
        database: Database,
        lake: Lake,
        tables: Tables,
        reading: Reading,
        small: SmallFiles,
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.dialect = TEXT
        self._database = database
        self._lake = lake
        self._tables = tables
        self._reading = reading
        self._small = small
        self._most_bytes = most_bytes

    def facts(self, scan: Scan, conditions: Sequence[Condition]) -> None:
        """See `Engine`."""
        reading = self._reading
        late = not reading.plan.stateful or reading.include_late
        found = facts(
            self._lake,
            self._tables,
            reading.catalog,
            scan,
            conditions,
            late=late,
            small=self._small,
        )
        self._make(scan.view, types_of(scan.columns) | ORDER_TYPES, found)

    def versions(self, scan: Scan, conditions: Sequence[Condition], *, alike: bool = False) -> None:
        """See `Engine`."""
        name = table_of(scan)
        table = table_at(self._lake, self._tables, name, self._reading.versions.get(name))
        found = versions(scan, table, conditions)
        self._make(scan.view, types_of(scan.columns) | _VERSION, found)
        if alike:
            self._database.connection.execute(f"UPDATE {scan.view} SET _deleted = false")

    def touch(self, keys: pa.Table) -> None:
        """See `Engine`."""
        known = {each.name: each for each in self._reading.plan.columns}
        self._make(TOUCHED, types_of([known[name] for name in keys.schema.names]), [keys])

    def given(
        self, keys: pa.Table, conditions: Sequence[Condition], columns: Sequence[Column]
    ) -> Epoch | None:
        """See `Engine`."""
        table = self._tables.open(self._reading.path)
        found = None if table is None else rows_of_keys(table, keys, conditions, columns)
        if found is None:
            return None
        self._make(GIVEN, types_of(columns), [found.select([each.name for each in columns])])
        return written_in(found)

    def narrow(self, scan: Scan, query: str) -> None:
        """See `Engine`."""
        with self._database.within_memory(), self._database.computing():
            self._database.connection.execute(
                f"CREATE OR REPLACE TEMP TABLE {scan.view} AS {query}"
            )

    def values(self, scan: Scan, column: str) -> pa.Array | None:
        """See `Engine`."""
        kinds = [each for each in scan.columns if each.name == column]
        found = self.rows(f"SELECT DISTINCT {TEXT.name(column)} FROM {scan.view}", kinds)
        return found[column].combine_chunks()

    def rows(self, query: str, columns: Sequence[Column]) -> pa.Table:
        """See `Engine`."""
        with self._database.within_memory(), self._database.computing():
            found: pa.Table = self._database.connection.sql(query).to_arrow_table()
        return found.cast(arrow_schema(columns))

    def _make(self, view: str, types: dict[str, str], rows: Iterable[pa.Table]) -> None:
        self._database.make(view, types)
        with self._database.within_memory():
            self._database.insert(view, self._bounded(rows))

    def _bounded(self, rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
        held = 0
        for part in rows:
            held += part.nbytes
            if held > self._most_bytes:
                raise BeyondThisProcess(
                    "a run needs more rows of an input than this process may hold"
                )
            yield part


class SparkEngine:
    """Computes one run in Spark; see `key_runs.Engine`."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        tables: Tables,
        frames: DeltaFrames,
        reading: Reading,
    ) -> None:
        self.dialect = SparkText()
        self._spark = spark
        self._lake = lake
        self._tables = tables
        self._frames = frames
        self._reading = reading

    def facts(self, scan: Scan, conditions: Sequence[Condition]) -> None:
        """See `Engine`."""
        reading = self._reading
        frame = input_frame(
            self._frames,
            self._lake,
            scan,
            reading.catalog,
            _ranges(conditions),
            late=not reading.plan.stateful or reading.include_late,
        )
        frame.createOrReplaceTempView(scan.view)

    def versions(self, scan: Scan, conditions: Sequence[Condition], *, alike: bool = False) -> None:
        """See `Engine`."""
        reading = self._reading
        frame = input_frame(
            self._frames,
            self._lake,
            scan,
            reading.catalog,
            _ranges(conditions),
            version=reading.versions.get(table_of(scan)),
        )
        if alike:
            frame = frame.withColumn("_deleted", functions.lit(False))
        frame.createOrReplaceTempView(scan.view)

    def touch(self, keys: pa.Table) -> None:
        """See `Engine`."""
        self._frames.from_arrow(keys).createOrReplaceTempView(TOUCHED)

    def given(
        self, keys: pa.Table, conditions: Sequence[Condition], columns: Sequence[Column]
    ) -> Epoch | None:
        """See `Engine`. They are as few as the rows that the run gives."""
        table = self._tables.open(self._reading.path)
        found = None if table is None else rows_of_keys(table, keys, conditions, columns)
        if found is None:
            return None
        shown = found.select([each.name for each in columns])
        self._frames.from_arrow(shown).createOrReplaceTempView(GIVEN)
        return written_in(found)

    def narrow(self, scan: Scan, query: str) -> None:
        """See `Engine`; Spark plans the whole query at once."""

    def values(self, scan: Scan, column: str) -> pa.Array | None:
        """See `Engine`; each would be a job of its own."""
        return None

    def rows(self, query: str, columns: Sequence[Column]) -> pa.Table:
        """See `Engine`."""
        return collected(self._spark.sql(query), RESULT)


def _ranges(conditions: Sequence[Condition]) -> tuple[Range, ...]:
    """Return the ranges from the least to the greatest value that conditions allow."""
    ranges: list[Range] = []
    for each in conditions:
        match each:
            case Range():
                ranges.append(each)
            case Spans():
                low, high = each.spans[0][0], each.spans[-1][1]
                ranges.append(Range(column=each.column, lower=low, upper=high))
            case Among():
                pass
    return tuple(ranges)
