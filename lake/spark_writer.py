"""Guarded commits of Spark frames of any size: the other writer behind `TableWriter`.

Spark skips a write whose guard the table has reached, silently, also when another writer got there
between our look and our commit. Every commit therefore carries a token of its own: a call that
leaves no commit with its token behind was overtaken, and says so with `LeaseLost`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, StructType

from kernel.errors import LeaseLost, Unavailable, without_stack
from kernel.positions import DeltaVersion
from lake.collecting import FEW_ROWS, collected
from lake.datasets import location_of, schema_of
from lake.exactness import NAMES, Inexact, converts, in_question, of_other_types, refusal
from lake.reader_features import enable_for
from lake.sessions import Spark, SparkOnDemand, session_beside
from lake.tables import Tables
from lake.writer import DELETE, OP, UPSERT, Guard, reached
from schemas.identifiers import spark_name

CONFLICTS = ("Concurrent", "DELTA_CONCURRENT")
"""Delta's own names for another writer's commit that got in between."""
TOKEN = "userMetadata"
_WRITE = "spark.databricks.delta.write"
_TOKEN_CONF = f"spark.databricks.delta.commitInfo.{TOKEN}"


class SparkWriter:
    """Commits frames from the executors through Delta's Spark API."""

    def __init__(self, spark: Spark, tables: Tables) -> None:
        self._spark = SparkOnDemand.of(spark)
        self._tables = tables

    def append(
        self, path: str, rows: DataFrame, guard: Guard, *, partition_by: Sequence[str] = ()
    ) -> DeltaVersion:
        """Append rows; see `TableWriter`."""
        table = self._tables.ensure(path, _columns(rows), partition_by=partition_by)
        if reached(table, guard):
            return DeltaVersion(table.version())
        rows = _as_stored(table, rows)
        return self._write(table, rows, guard, mode="append", options={"mergeSchema": "true"})

    def overwrite(self, path: str, rows: DataFrame, guard: Guard) -> DeltaVersion:
        """Replace everything; see `TableWriter`."""
        table = self._tables.ensure(path, _columns(rows))
        return self._write(
            table, rows, guard, mode="overwrite", options={"overwriteSchema": "true"}
        )

    def merge(
        self,
        path: str,
        rows: DataFrame,
        guard: Guard,
        *,
        keys: Sequence[str],
        newer: Sequence[str] = (),
    ) -> DeltaVersion:
        """Upsert or delete by key; see `TableWriter`."""
        table = self._tables.ensure(path, _columns(rows.drop(OP)))
        if reached(table, guard):
            return DeltaVersion(table.version())
        rows = _as_stored(table, rows)
        token = uuid.uuid4().hex
        # The guard of a MERGE is taken from the session: it must not leak into other writes.
        session = session_beside(self._spark.session)
        for name, value in _guarded(guard).items():
            session.conf.set(f"{_WRITE}.{name}", value)
        session.conf.set(_TOKEN_CONF, token)
        # One session's frame is read by another through the views that all of them share.
        view = f"merge_{token}"
        rows.createOrReplaceGlobalTempView(view)
        try:
            source = session.table(f"global_temp.{view}")
            enable_for(table, _columns(rows))
            done = self._commit(
                table, guard, token, lambda: _merge(session, table, source, keys, newer)
            )
        finally:
            self._spark.session.catalog.dropGlobalTempView(view)
        if done is not None:
            return done
        # A MERGE without effect makes no commit; the guard must be there all the same.
        empty = self._spark.session.createDataFrame([], _spark_columns(schema_of(table)))
        return self._write(table, empty, guard, mode="append", options={})

    def _write(
        self,
        table: DeltaTable,
        rows: DataFrame,
        guard: Guard,
        *,
        mode: str,
        options: Mapping[str, str],
    ) -> DeltaVersion:
        if reached(table, guard):
            return DeltaVersion(table.version())
        token = uuid.uuid4().hex
        enable_for(table, _columns(rows))
        writer = (
            rows.write.format("delta")
            .mode(mode)
            .options(**options)
            .options(**_guarded(guard))
            .option(TOKEN, token)
        )
        done = self._commit(table, guard, token, lambda: writer.save(location_of(table)))
        if done is None:
            raise _overtaken(guard)
        return done

    def _commit(
        self, table: DeltaTable, guard: Guard, token: str, write: Callable[[], None]
    ) -> DeltaVersion | None:
        """Run a write; return the version that carries its token, None where there is none."""
        before = table.version()
        try:
            write()
        except (PySparkException, Py4JJavaError) as error:
            if any(name in str(error) for name in CONFLICTS):
                raise _overtaken(guard) from error
            raise Unavailable(
                f"writing to {table.table_uri} failed: {without_stack(error)[:500]}"
            ) from error
        table.update_incremental()
        behind = table.version() - before
        commits = table.history(behind) if behind else []
        for commit in commits:
            if commit.get(TOKEN) == token:
                return DeltaVersion(int(commit["version"]))
        if reached(table, guard):
            raise _overtaken(guard)
        return None


def _guarded(guard: Guard) -> dict[str, str]:
    """Return what makes Spark put the guard into a commit, and pass over one that is there."""
    if guard.again:
        return {}
    return {"txnAppId": guard.app_id, "txnVersion": str(int(guard.epoch))}


def _merge(
    session: SparkSession,
    table: DeltaTable,
    source: DataFrame,
    keys: Sequence[str],
    newer: Sequence[str],
) -> None:
    stored = schema_of(table).names
    columns: dict[str, str | Column] = {
        spark_name(name): f"s.{spark_name(name)}" for name in source.columns if name != OP
    }
    cleared: dict[str, str | Column] = {
        spark_name(name): "NULL" for name in stored if spark_name(name) not in columns
    }
    op = f"s.{spark_name(OP)}"
    upsert = f"{op} = '{UPSERT}'"
    target = SparkDeltaTable.forPath(session, location_of(table)).alias("t")
    # Null is a value like any other; looked up by hash all the same.
    same = " AND ".join(f"t.{spark_name(key)} <=> s.{spark_name(key)}" for key in keys)
    merge = target.merge(source.alias("s"), same)
    if any(name not in stored for name in source.columns if name != OP):
        merge = merge.withSchemaEvolution()
    (
        merge.whenMatchedDelete(f"{op} = '{DELETE}'")
        .whenMatchedUpdate(
            condition=f"{upsert} AND {_not_older(newer)}" if newer else upsert,
            set=columns | cleared,
        )
        .whenNotMatchedInsert(condition=upsert, values=columns)
        .execute()
    )


def _as_stored(table: DeltaTable, rows: DataFrame) -> DataFrame:
    """Return rows in the types that the table's columns have.

    Raises `Incompatible` where that would change values. The rows are computed for it only where
    their types do not say it. Spark itself refuses an append of other types, whatever the values,
    and a MERGE cuts off what a type cannot hold.
    """
    stored, own = schema_of(table), _columns(rows)
    if names := in_question(stored, own):
        columns = rows.select(*map(spark_name, names))
        changed = columns.mapInArrow(Inexact(stored), from_arrow_schema(NAMES)).limit(1)
        for name in collected(changed, FEW_ROWS)["name"].to_pylist():
            raise refusal(stored, own, name, table.table_uri)
    kinds = _spark_columns(stored)
    others = of_other_types(stored, own)
    if not others:
        return rows
    return rows.select(
        *(
            _cast(rows[spark_name(item.name)], item.dataType, kinds[item.name].dataType).alias(
                item.name
            )
            if item.name in others
            else rows[spark_name(item.name)]
            for item in rows.schema
        )
    )


def _cast(column: Column, own: DataType, kind: DataType) -> Column:
    """Return values as another type. Fields that it lacks stay as they are."""
    match own, kind:
        case StructType(), StructType():
            kinds = {item.name: item.dataType for item in (*own, *kind)}
            fields = [
                _cast(column.getField(item.name), item.dataType, kinds[item.name]).alias(item.name)
                for item in own
            ]
            return functions.when(column.isNotNull(), functions.struct(*fields))
        case ArrayType(), ArrayType():
            inner = own.elementType, kind.elementType
            return functions.transform(column, lambda item: _cast(item, *inner))
        case _ if converts(to_arrow_type(own, timezone="UTC"), to_arrow_type(kind, timezone="UTC")):
            return column.cast(kind)
        case _:
            # Only NULL has passed. Spark refuses a cast between such types, whatever the values.
            return functions.lit(None).cast(kind)


def _spark_columns(stored: pa.Schema) -> StructType:
    return from_arrow_schema(stored, prefer_timestamp_ntz=True)


def _columns(rows: DataFrame) -> pa.Schema:
    schema: pa.Schema = to_arrow_schema(rows.schema, timezone="UTC")
    return schema


def _not_older(columns: Sequence[str]) -> str:
    """Compare tuples: Spark orders structs field by field."""
    new, old = (", ".join(f"{side}.{spark_name(name)}" for name in columns) for side in "st")
    return f"struct({new}) >= struct({old})"


def _overtaken(guard: Guard) -> LeaseLost:
    return LeaseLost(
        f"another writer committed to {guard.app_id} while epoch {guard.epoch} was written"
    )
