"""Where the rows of touched keys are computed: in DuckDB in this process, or in Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession, functions

from kernel.errors import BeyondThisProcess
from kernel.positions import Epoch
from lake.collecting import RESULT, collected
from lake.file_merges import FileMerges
from lake.layout import Lake
from lake.ranges import Among, Condition, Range, Spans, actions_within
from lake.small_files import SmallFiles
from lake.tables import Tables
from lake.views import DeltaFrames
from projections.run.database import TEXT, Database, arrow_schema, without_zones
from projections.run.input_rows import (
    DELETED,
    epochs,
    fact_schema,
    facts,
    rows_of_keys,
    table_at,
    table_of,
    version_schema,
    versions,
    written_in,
)
from projections.run.keyed_facts import MANY_ROWS, KeyedFacts
from projections.run.matchers import register_functions
from projections.run.region_runs import Reading
from projections.run.stream_frames import input_frame
from projections.sql.operators.shape import Plan
from projections.sql.operators.tree import Scan, scans
from projections.sql.plans.adding import GIVEN
from projections.sql.plans.key_steps import TOUCHED
from projections.sql.rendering.batch import listed
from projections.sql.rendering.spark_text import SparkText
from projections.sql.words.catalog import Column

_SPARK = SparkText()
MOST_BYTES = 64 * 2**20
"""More than this of one input's rows is not read here in one run."""


class PlanSessions:
    """Sessions of one DuckDB, one for each target: what is prepared in it is for one plan.

    For one thread.
    """

    def __init__(
        self,
        database: Database,
        lake: Lake,
        tables: Tables,
        small: SmallFiles,
        merges: FileMerges | None = None,
        *,
        brief: bool = False,
    ) -> None:
        """`merges` writes the targets, and has rows of theirs in memory.

        `brief`: what takes long raises `BeyondThisProcess` before it begins.
        """
        self._merges = merges
        self._brief = brief
        self._database = database
        self._lake = lake
        self._tables = tables
        self._small = small
        self._of: dict[str, tuple[Plan, Database]] = {}
        self._facts: dict[str, tuple[str, KeyedFacts]] = {}

    def engine(self, reading: Reading, up_to: Epoch) -> SmallEngine:
        """Return what computes a run, up to an epoch, in the session of its target's plan."""
        return SmallEngine(
            self._own(reading),
            self._lake,
            self._tables,
            reading,
            self._small,
            up_to,
            self._facts_of(reading),
            merges=self._merges,
            brief=self._brief,
        )

    def take_over(self, other: PlanSessions, app_id: str) -> None:
        """Go on with the facts that another has of a target, if it has any."""
        held = other._facts.pop(app_id, None)
        if held is not None:
            self._forget_facts(app_id)
            self._facts[app_id] = held

    def state_bytes(self, app_id: str) -> int | None:
        """Return how much the facts take that are kept for a target; None where none are."""
        held = self._facts.get(app_id)
        return (held[1].held_bytes or None) if held is not None else None

    def _facts_of(self, reading: Reading) -> KeyedFacts:
        """Return the facts that are kept for a target, while it reads them as it did.

        A deployment of anything has all plans made anew, and changes nothing for most.
        """
        held = self._facts.get(reading.app_id)
        logs = [reading.catalog.declared_by(each.name) for each in scans(reading.plan.tree)]
        what = repr((reading.identity, logs))
        if held is None or held[0] != what:
            self._forget_facts(reading.app_id)
            facts = KeyedFacts(memory_bytes=self._database.memory_bytes)
            held = self._facts[reading.app_id] = what, facts
        return held[1]

    def _forget_facts(self, app_id: str) -> None:
        held = self._facts.pop(app_id, None)
        if held is not None:
            held[1].close()

    def _own(self, reading: Reading) -> Database:
        """Return the session of a target's plan, as it was left if that is still the same."""
        known = self._of.get(reading.app_id)
        if known is not None and known[0] is reading.plan:
            return known[1]
        self._drop(reading.app_id)
        self._of[reading.app_id] = reading.plan, Database(of=self._database)
        return self._of[reading.app_id][1]

    def keep_only(self, app_ids: Collection[str]) -> None:
        """Forget all sessions but those of some targets."""
        for app_id in self._of.keys() - {*app_ids}:
            self._drop(app_id)
        for app_id in self._facts.keys() - {*app_ids}:
            self._forget_facts(app_id)

    def close(self) -> None:
        """Give back the memory of all."""
        self.keep_only(())
        self._database.close()

    def _drop(self, app_id: str) -> None:
        known = self._of.pop(app_id, None)
        if known is not None:
            known[1].close()


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
        up_to: Epoch,
        keyed: KeyedFacts,
        *,
        merges: FileMerges | None = None,
        most_bytes: int = MOST_BYTES,
        brief: bool = False,
    ) -> None:
        """`database` is of this plan alone: what is prepared in it is for its inputs.

        `keyed` are the target's facts by keys; where it is `brief`, they are not made anew.
        """
        self.dialect = TEXT
        self._up_to = up_to
        self._keyed = keyed
        self._brief = brief
        self._database = database
        self._lake = lake
        self._tables = tables
        self._reading = reading
        self._small = small
        self._merges = merges
        self._most_bytes = most_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the rows that were read."""
        self._database.views.empty_all()

    def facts(
        self, scan: Scan, conditions: Sequence[Condition], *, keys: pa.Table | None = None
    ) -> None:
        """See `Engine`."""
        found = None if keys is None else self._of_keys(scan, conditions, keys)
        rows = self._in_log(scan, conditions) if found is None else [found.cast(fact_schema(scan))]
        self._put(scan.view, fact_schema(scan), rows)

    def _in_log(self, scan: Scan, conditions: Sequence[Condition]) -> Iterator[pa.Table]:
        reading = self._reading
        late = not reading.plan.stateful or reading.include_late
        return facts(
            self._lake,
            self._tables,
            reading.catalog,
            scan,
            conditions,
            late=late,
            small=self._small,
        )

    def _of_keys(
        self, scan: Scan, conditions: Sequence[Condition], keys: pa.Table
    ) -> pa.Table | None:
        """Return the facts of some keys, where the log would have many to be looked through."""
        if self._within(scan, conditions) <= MANY_ROWS:
            return None
        reached = self._keyed.reached(scan, keys.schema.names)
        if reached is None:
            return None
        if self._brief and self._within(scan, [epochs(reached, self._up_to)]) > MANY_ROWS:
            raise BeyondThisProcess("many facts are put in the order of their keys: it takes long")

        def came(after: Epoch) -> Iterator[pa.Table]:
            return self._in_log(scan, [epochs(after, self._up_to)])

        return self._keyed.of(scan, keys, self._up_to, came, most_bytes=self._most_bytes)

    def _within(self, scan: Scan, conditions: Sequence[Condition]) -> int:
        """Return how many facts there are in the files that may have some that meet conditions."""
        members = map(self._lake.path, self._reading.catalog.members(scan.name))
        opened = [table for table in map(self._tables.open, members) if table is not None]
        counts = (actions_within(table, conditions)["num_records"] for table in opened)
        return sum(pc.sum(each).as_py() or 0 for each in counts)

    def versions(self, scan: Scan, conditions: Sequence[Condition], *, alike: bool = False) -> None:
        """See `Engine`."""
        name = table_of(scan)
        table = table_at(self._lake, self._tables, name, self._reading.versions.get(name))
        self._put(scan.view, version_schema(scan), versions(scan, table, conditions))
        if alike:
            rows = self._database.views.rows_of(scan.view)
            place = rows.schema.get_field_index(DELETED)
            none = pa.array([False] * rows.num_rows, pa.bool_())
            self._database.views.put(
                scan.view, rows.set_column(place, rows.schema.field(place), none)
            )

    def touch(self, keys: pa.Table) -> None:
        """See `Engine`."""
        self._put(TOUCHED, keys.schema, [keys])

    def given(
        self, keys: pa.Table, conditions: Sequence[Condition], columns: Sequence[Column]
    ) -> Epoch | None:
        """See `Engine`."""
        table = self._tables.open(self._reading.path)
        found = None
        if table is not None:
            found = rows_of_keys(table, keys, conditions, columns, self._merges)
        if found is None:
            return None
        rows = found.select([each.name for each in columns])
        self._put(GIVEN, arrow_schema(columns), [rows])
        return written_in(found)

    def narrow(self, scan: Scan, query: str) -> None:
        """See `Engine`."""
        views = self._database.views
        shape = views.rows_of(scan.view).schema
        with self._database.within_memory(), self._database.computing():
            views.put(scan.view, self._database.kept.rows(query).cast(shape))

    def values(self, scan: Scan, columns: Sequence[str]) -> pa.Table | None:
        """See `Engine`."""
        kinds = {each.name: each for each in scan.columns}
        query = f"SELECT DISTINCT {listed(TEXT, columns)} FROM {scan.view}"
        return self.rows(query, [kinds[name] for name in columns])

    def rows(self, query: str, columns: Sequence[Column]) -> pa.Table:
        """See `Engine`."""
        with self._database.within_memory(), self._database.computing():
            found = self._database.kept.rows(query)
        return found.cast(arrow_schema(columns))

    def _put(self, view: str, shape: pa.Schema, rows: Iterable[pa.Table]) -> None:
        parts = (part.cast(shape) for part in self._bounded(rows) if part.num_rows)
        found = pa.concat_tables([shape.empty_table(), *parts])
        self._database.views.put(view, without_zones(found))

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
        self.dialect = _SPARK
        register_functions(spark, reading.plan.tree)
        self._spark = spark
        self._lake = lake
        self._tables = tables
        self._frames = frames
        self._reading = reading

    def facts(
        self, scan: Scan, conditions: Sequence[Condition], *, keys: pa.Table | None = None
    ) -> None:
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

    def values(self, scan: Scan, columns: Sequence[str]) -> pa.Table | None:
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
