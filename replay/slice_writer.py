"""Computes slices of a projection, here or in Spark, and appends them to a generation's table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions

from kernel import failpoints
from kernel.errors import InvalidRequest, TooLarge, first_line
from kernel.positions import Epoch
from lake.collecting import FEW_ROWS, RESULT, collected
from lake.datasets import schema_of
from lake.layout import Lake
from lake.savepoint_tables import KeptTable
from lake.sessions import Spark
from lake.spark_writer import SparkWriter
from lake.tables import Tables
from lake.views import DeltaFrames
from lake.writer import ArrowWriter, Guard
from pipeline.typed.columns import EPOCH
from projections.run.laid_rows import InputPiece
from projections.run.projector import Projector
from projections.run.result_rows import stamped
from projections.run.whole_tables import BOUNDED_BYTES
from projections.sql.plans.plan import Plan
from replay.bases import rows_of
from replay.driver_slices import DriverSlices
from replay.join_sides import JoinSides
from replay.slices import SlicedBuild, Whole
from schemas.identifiers import spark_name

FAILURES = (PySparkException, Py4JJavaError)
"""What a query raises that cannot be computed."""
_MOST_HALVES = 40
_PLACE = "_penstock_place"


class SliceWriter:
    """Appends slice by slice; a slice that is there already is left alone."""

    def __init__(
        self,
        spark: Spark,
        projector: Projector,
        lake: Lake,
        tables: Tables,
        driver: DriverSlices | None = None,
        *,
        bounded_bytes: int = BOUNDED_BYTES,
    ) -> None:
        self._driver = driver
        self._projector = projector
        self._lake = lake
        self._tables = tables
        self._arrow = ArrowWriter(tables)
        self._spark = SparkWriter(spark, tables)
        self._frames = DeltaFrames(spark, tables)
        self._sides = JoinSides(spark)
        self._bounded_bytes = bounded_bytes

    def done(self, whole: Whole, guard: Guard) -> int:
        """Return how many slices the table has; all of them once it was finished."""
        table = self._tables.open(whole.target.path)
        if table is None:
            return 0
        if table.transaction_version(whole.target.app_id) is not None:
            return whole.slicing.slices
        return int(table.transaction_version(guard.app_id) or 0)

    def write(self, whole: Whole, number: int, guard: Guard, many: int = 1) -> None:
        """Compute so many slices and append them, in one guarded commit."""
        if number < len(whole.parts):
            self._copy(whole, number, guard)
            return
        chosen = None if whole.base is None else whole.base.where
        here = self._driver
        if (
            here
            and not chosen
            and here.takes(whole, many)
            and here.append(whole, number, guard, many)
        ):
            return
        frame = self._frame(whole, chosen or whole.slicing.conditions(number, many))
        stamped = frame.withColumn(EPOCH, functions.lit(int(whole.up_to)).cast("bigint"))
        rows = self._collected(whole, stamped, many)
        failpoints.hit(failpoints.REPLAY_BEFORE_SLICE)
        if rows is None:
            self._spark.append(whole.target.path, stamped, guard)
        else:
            self._arrow.append(whole.target.path, rows, guard)
        failpoints.hit(failpoints.REPLAY_AFTER_SLICE)

    def most_at_once(self, whole: Whole) -> int:
        """Return how many slices this process may take in at once: executors begin slowly."""
        if self._driver and self._driver.takes(whole):
            return self._driver.most_at_once(whole)
        return max(1, self._bounded_bytes * whole.slicing.slices // max(whole.input_bytes, 1))

    def pieces(self, whole: Whole, build: SlicedBuild) -> Sequence[InputPiece]:
        """Return what of the inputs is laid apart before slices are computed; none if nothing."""
        if self._driver is None or whole.base is not None or not whole.slicing.columns:
            return ()
        together = build.strides and build.rate is None
        at_once = self.most_at_once(whole) if together else 1
        return self._driver.pieces(whole, build.done, at_once)

    def lay(self, whole: Whole, piece: InputPiece) -> bool:
        """Lay a piece of the inputs apart; False where slices look at these themselves."""
        return self._driver is not None and self._driver.lay(whole, piece)

    def finish(self, whole: Whole, *, resumed: bool) -> None:
        """Say of a table whose slices are all there that it has taken input up to the epoch.

        `resumed`: slices of another process are among them. Where other projections are read, all
        of it is then computed once more: they may have changed under the same epoch since.
        From a base it then takes in what came since that.
        """
        reached = self.close(whole)
        self._projector.meanings.made(whole.plan, whole.target)
        if whole.base is not None:
            self._projector.begun(whole.plan, whole.target, reached, whole.base.ended_us)
        elif not resumed:
            # Nothing is left to do but the manifest's note.
            self._projector.computed(whole.plan, whole.target)
        self._projector.run(whole.plan, whole.target, whole.catalog, whole.up_to)

    def release(self) -> None:
        """Give back what is kept for the slices of a build."""
        self._sides.release()
        if self._driver is not None:
            self._driver.release()

    def close(self, whole: Whole) -> Epoch:
        """Say in a table whose slices are all there that they are; return up to which epoch."""
        table = self._tables.open(whole.target.path)
        assert table is not None, "a build has at least one slice"
        empty = schema_of(table).empty_table()
        reached = whole.up_to if whole.base is None else whole.base.epoch
        self._arrow.append(whole.target.path, empty, Guard(whole.target.app_id, reached))
        return reached

    def _copy(self, whole: Whole, number: int, guard: Guard) -> None:
        """Append a part of the base. Its rows are of the build's epoch, as computed ones are."""
        rows = rows_of(self._lake, whole.parts[number])
        if whole.base is not None and whole.base.where is not None:
            rows = self._without(rows, whole.plan.key, whole.base.where)
        failpoints.hit(failpoints.REPLAY_BEFORE_SLICE)
        self._arrow.append(whole.target.path, _nullable(stamped(rows, whole.up_to)), guard)
        failpoints.hit(failpoints.REPLAY_AFTER_SLICE)

    def ask(self, part: KeptTable, key: Sequence[str], where: str) -> None:
        """Ask a condition of some rows' keys. Raises `InvalidRequest` where it is none for them."""
        try:
            self._without(rows_of(self._lake, part), key, where)
        except FAILURES as error:
            raise InvalidRequest(
                f"--where {where} cannot be asked of the key: {first_line(error)}",
                remedy="Compare each column with values of its type.",
            ) from error

    def _without(self, rows: pa.Table, key: Sequence[str], where: str) -> pa.Table:
        """Leave out the rows of keys for which a condition holds, as Spark says."""
        places = pa.array(range(rows.num_rows), pa.int64())
        keys = self._frames.from_arrow(rows.select([*key]).append_column(_PLACE, places))
        chosen = collected(keys.where(where).select(_PLACE), RESULT)[_PLACE]
        return rows.filter(pc.invert(pc.is_in(places, value_set=chosen.combine_chunks())))

    def failing_key(self, whole: Whole, number: int) -> str | None:
        """Return the key whose row cannot be computed, found by halving a slice.

        None where no half fails: what failed was not a row.
        """
        if not whole.slicing.columns:
            return None
        parts, part = 1, 0
        for _ in range(_MOST_HALVES):
            found = self._keys(whole, whole.slicing.condition(number, parts=parts, part=part))
            if len(found) <= 1:
                break
            # Of the rows of a part, one half has this number among twice as many, the other more.
            halves = (part, part + parts)
            failing = [
                half
                for half in halves
                if self._fails(whole, whole.slicing.condition(number, parts=2 * parts, part=half))
            ]
            if not failing:
                return None
            parts, part = 2 * parts, failing[0]
        else:
            return None
        condition = whole.slicing.condition(number, parts=parts, part=part)
        if not found or not self._fails(whole, condition):
            return None
        return ", ".join(f"{name} = {value}" for name, value in found[0].items())

    def _collected(self, whole: Whole, frame: DataFrame, many: int) -> pa.Table | None:
        """Return the rows of so many slices; None where the executors are to write them."""
        if whole.input_bytes * many > self._bounded_bytes * whole.slicing.slices:
            return None
        try:
            return _nullable(collected(frame, RESULT))
        except TooLarge:
            # Files of long texts that repeat take a small part of what their rows do.
            return None

    def _frame(self, whole: Whole, condition: str) -> DataFrame:
        plan = self._sides.plan(whole.plan, whole.slicing, lambda each: self._whole(whole, each))
        frame = self._whole(whole, plan)
        return frame.dropna(subset=list(whole.plan.key)).where(condition)

    def _whole(self, whole: Whole, plan: Plan) -> DataFrame:
        return self._projector.whole(plan, whole.target, whole.catalog, whole.up_to)

    def _fails(self, whole: Whole, condition: str) -> bool:
        try:
            self._frame(whole, condition).write.format("noop").mode("overwrite").save()
        except FAILURES:
            return True
        return False

    def _keys(self, whole: Whole, condition: str) -> list[dict[str, object]]:
        """Return up to two of the keys by which slices are told apart; other columns are not read.

        So a row that cannot be computed has a key all the same.
        """
        names = [spark_name(name) for name in whole.slicing.columns]
        frame = self._projector.whole(whole.plan, whole.target, whole.catalog, whole.up_to)
        few = frame.where(condition).select(*names).distinct().limit(2)
        try:
            rows: list[dict[str, object]] = collected(few, FEW_ROWS).to_pylist()
        except FAILURES:
            return []
        return rows


def _nullable(rows: pa.Table) -> pa.Table:
    """Return rows whose columns may be null, as the live runner's are."""
    return rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema]))
