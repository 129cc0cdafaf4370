"""Compares the rows of two tables of any size: by key, then what differs in columns.

A row's key and its values become hashes over canonical texts (`schemas.row_hash`), in one pass over
each table; keys whose hashes do not agree are found from these, one bucket of keys after the other.
Only rows that differ are looked at whole. DuckDB spills to disk what its memory does not hold, so
that the size of the tables costs time and disk, and no memory.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from kernel.errors import InvalidRequest, StorageFull, first_line, is_no_room
from lake.datasets import dataset_of, scanner_of
from lake.spill_folders import spill_folder
from pipeline.verification.cells import normal, sized, text_sql
from pipeline.verification.large_states import LargeStates
from replay.differences import Drift, RowDifferences
from replay.large_tables import DISAGREE, SEEN, LargeTables
from schemas.identifiers import duckdb_name
from schemas.row_hash import hash_text

EXAMPLES = 5
MOST_TEXT = 200
"""Characters of a value that an example shows."""
BUCKET_KEYS = 4_000_000
"""So many rows of both tables are put together by key at a time."""
_MEMORY = "512MB"
_BATCH_ROWS = 16_384
_SIDES = ("live", "built")
_PREFIX = "penstock__"
"""Of columns beside the tables' own ones."""


def row_differences(
    live: DeltaTable | ds.Dataset,
    built: DeltaTable,
    *,
    key: Sequence[str],
    columns: Sequence[str],
    expect: str | None = None,
    large: LargeStates | None = None,
) -> RowDifferences:
    """Compare rows over `columns`, which both tables have and `key` is among.

    `expect` is SQL over the rows `live` and `built` of a key; a side without the key is all NULL.
    With `large` executors compare the hashes of large tables. Raises `InvalidRequest` for SQL that
    DuckDB does not take.
    """
    rows = live if isinstance(live, ds.Dataset) else dataset_of(live)
    sides = {"live": rows, "built": dataset_of(built)}
    by_name = tuple(sorted(columns))  # The order of columns does not matter.
    apart = None if large is None else LargeTables(large, sides, tuple(key), by_name)
    with (
        tempfile.TemporaryDirectory(prefix="compare-", dir=spill_folder()) as scratch,
        _connected(scratch) as connection,
    ):
        return _Comparing(connection, sides, tuple(key), by_name, apart).run(expect)


@contextlib.contextmanager
def _connected(scratch: str) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"python_enable_replacements": "false"}) as connection:
        connection.execute(f"SET memory_limit = '{_MEMORY}'")
        connection.execute("SET temp_directory = $1", [scratch])
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET preserve_insertion_order = false")
        connection.execute("SET enable_progress_bar = false")
        # A predicate is somebody's SQL: it reads these two tables and nothing else.
        connection.execute("SET enable_external_access = false")
        try:
            yield connection
        except duckdb.Error as error:
            if not is_no_room(error):
                raise
            raise StorageFull(
                f"the disk of {tempfile.gettempdir()} is full, where rows are compared that memory "
                f"does not hold: {first_line(error)}",
                remedy="Make room there, or let TMPDIR name another folder; then compare again.",
            ) from error


class _Comparing:
    """One comparison, as tables of one DuckDB connection.

    `hashed`: key and row hashes of both sides. `different`: keys that do not agree; executors may
    have found them `apart`. `live_rows`, `built_rows`: the rows of these keys, with the text of
    each cell beside its value.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        sides: Mapping[str, ds.Dataset],
        key: tuple[str, ...],
        columns: tuple[str, ...],
        apart: LargeTables | None,
    ) -> None:
        self._connection = connection
        self._sides = sides
        self._key = key
        self._columns = columns
        self._apart = apart

    def run(self, expect: str | None) -> RowDifferences:
        self._connection.execute("CREATE TABLE different (k UHUGEINT, ours BIGINT, theirs BIGINT)")
        rows = self._apart_from_here() or self._here()
        missing, extra, differing, repeated = self._counts()
        drift: tuple[Drift, ...] = ()
        examples: tuple[Mapping[str, object], ...] = ()
        expected = 0
        if missing or extra or differing or repeated:
            for side in _SIDES:
                self._fetch(side)
            expected = self._judge(expect)
            drift = tuple(self._drift())
            examples = tuple(self._examples())
        return RowDifferences(
            live_rows=rows["live"][0],
            built_rows=rows["built"][0],
            live_hash=rows["live"][1],
            built_hash=rows["built"][1],
            missing=missing,
            extra=extra,
            differing=differing,
            repeated_keys=repeated,
            expected=expected,
            drift=drift,
            examples=examples,
        )

    def _here(self) -> Mapping[str, tuple[int, str]]:
        self._hash()
        rows = {side: self._total(side) for side in _SIDES}
        self._find(sum(count for count, _ in rows.values()))
        return rows

    def _apart_from_here(self) -> Mapping[str, tuple[int, str]] | None:
        """Have executors find the keys that differ, and of few of them the rows."""
        found = None if self._apart is None else self._apart.differences(self._take)
        if found is None:
            return None
        if found.rows is not None:
            self._sides = {side: ds.dataset(found.rows[side]) for side in _SIDES}
        return found.totals

    def _take(self, keys: pa.Table) -> None:
        self._connection.register("keys", keys)
        self._connection.execute(
            "INSERT INTO different SELECT (lower::UHUGEINT << 64) | upper::UHUGEINT, "
            "ours, theirs FROM keys"
        )
        self._connection.unregister("keys")

    def _hash(self) -> None:
        self._connection.execute(
            "CREATE TABLE hashed (live BOOLEAN, k UHUGEINT, high UBIGINT, low UBIGINT)"
        )
        halves = ", ".join(f"('0x' || substr(h, {start}, 16))::UBIGINT" for start in (1, 17))
        for side in _SIDES:
            with self._registered(side, whole=False):
                self._connection.execute(
                    f"INSERT INTO hashed SELECT {side == 'live'}, k, {halves} FROM ("
                    f"SELECT {self._key_hash(side)} AS k, md5({self._cells(side, self._columns)})"
                    " AS h FROM arrived)"
                )

    def _total(self, side: str) -> tuple[int, str]:
        row = self._row(
            "SELECT count(*), coalesce(sum(high), 0), coalesce(sum(low), 0) FROM hashed "
            f"WHERE live = {side == 'live'}"
        )
        return int(row[0]), hash_text(int(row[1]), int(row[2]))

    def _find(self, rows: int) -> None:
        """Put rows together by key. Hashes of two equal rows cancel each other out."""
        buckets = 1 + rows // BUCKET_KEYS
        # Ranges of the hash: to divide numbers of 128 bits takes far longer than to compare them.
        for bucket in range(buckets):
            first, last = (2**128 * number // buckets for number in (bucket, bucket + 1))
            self._connection.execute(
                f"INSERT INTO different SELECT k, {SEEN} FROM hashed "
                f"WHERE k BETWEEN {first}::UHUGEINT AND {last - 1}::UHUGEINT GROUP BY k "
                f"HAVING {DISAGREE}"
            )
        self._connection.execute("DROP TABLE hashed")

    def _counts(self) -> tuple[int, int, int, int]:
        row = self._row(
            "SELECT count(*) FILTER (theirs = 0), count(*) FILTER (ours = 0), "
            "count(*) FILTER (ours = 1 AND theirs = 1), "
            "coalesce(sum(greatest(ours - 1, 0) + greatest(theirs - 1, 0)), 0) FROM different"
        )
        missing, extra, differing, repeated = map(int, row)
        return missing, extra, differing, repeated

    def _fetch(self, side: str) -> None:
        own = ", ".join(map(duckdb_name, self._columns))
        texts = ", ".join(
            f"{self._text(side, name)} AS {_text_column(place)}"
            for place, name in enumerate(self._columns)
        )
        with self._registered(side, whole=True):
            self._connection.execute(
                f"CREATE TABLE {side}_rows AS "
                f"SELECT {own}, {texts}, {_PREFIX}k, true AS {_PREFIX}here FROM ("
                f"SELECT *, {self._key_hash(side)} AS {_PREFIX}k FROM arrived) AS a "
                f"SEMI JOIN different AS d ON d.k = a.{_PREFIX}k"
            )

    def _judge(self, expect: str | None) -> int:
        """Note for every key whether its difference is expected; return for how many."""
        holds = f"coalesce(({expect}\n), false)" if expect else "false"
        try:
            self._connection.execute(
                f"CREATE TABLE judged AS SELECT {_PREFIX}k AS k, "
                f"CAST(bool_and({holds}) AS BOOLEAN) AS expected "
                f"FROM {self._pairs()} GROUP BY {_PREFIX}k"
            )
            row = self._row(
                "SELECT count(*) FROM judged JOIN different USING (k) "
                "WHERE expected AND ours <= 1 AND theirs <= 1"
            )
        except duckdb.Error as error:
            if expect is None:
                raise
            raise InvalidRequest(
                f"--expect cannot be computed: {str(error).partition(chr(10))[0]}",
                remedy="Write a condition over the rows live and built, as in "
                "--expect 'built.delay = live.delay + 1'.",
            ) from error
        return int(row[0])

    def _row(self, query: str) -> tuple[Any, ...]:
        """Return a query's one row. All is fetched: the connection takes nothing else before."""
        (row,) = self._connection.execute(query).fetchall()
        return row

    def _pairs(self) -> str:
        return f"live_rows AS live FULL JOIN built_rows AS built USING ({_PREFIX}k)"

    def _drift(self) -> Iterator[Drift]:
        """Compare column by column where both tables have the key and nobody expected it."""
        shown = [name for name in self._columns if name not in self._key]
        parts: list[str] = []
        for name in shown:
            text = _text_column(self._columns.index(name))
            differs = f"live.{text} IS DISTINCT FROM built.{text}"
            one = f"[{self._key_text('live')}, {_shown('live', name)}, {_shown('built', name)}]"
            parts += [
                f"count(*) FILTER ({differs})",
                f"{self._distance(name)} FILTER ({differs})",
                f"min_by({one}, {_PREFIX}k) FILTER ({differs})",
            ]
        if not parts:
            return
        row = self._row(
            f"SELECT {', '.join(parts)} FROM live_rows AS live "
            f"JOIN built_rows AS built USING ({_PREFIX}k) "
            f"JOIN judged ON judged.k = {_PREFIX}k WHERE NOT judged.expected"
        )
        for place, name in enumerate(shown):
            count, greatest, example = row[3 * place : 3 * place + 3]
            if count:
                key, ours, theirs = example
                yield Drift(
                    name=name,
                    rows=int(count),
                    greatest=None if greatest is None else float(greatest),
                    key=key,
                    live=ours,
                    built=theirs,
                )

    def _distance(self, name: str) -> str:
        if not all(_is_number(self._kind(side, name)) for side in _SIDES):
            return "max(CAST(NULL AS DOUBLE))"
        ours, theirs = (f"{side}.{duckdb_name(name)}" for side in _SIDES)
        if all(pa.types.is_integer(self._kind(side, name)) for side in _SIDES):
            return f"max(abs({ours}::HUGEINT - {theirs}::HUGEINT)::DOUBLE)"
        distance = f"abs({ours}::DOUBLE - {theirs}::DOUBLE)"
        return f"max(CASE WHEN isfinite({distance}) THEN {distance} END)"

    def _examples(self) -> Iterator[Mapping[str, object]]:
        """Show some keys with both rows, unexpected ones first; a side without the key is None."""
        key = f"coalesce({self._key_text('live')}, {self._key_text('built')})"
        order = ", ".join(f"coalesce({', '.join(self._orderly(name))})" for name in self._key)
        packed = {side: ", ".join(_shown(side, name) for name in self._columns) for side in _SIDES}
        rows = self._connection.execute(
            f"SELECT {key}, different.ours > 0, [{packed['live']}],"
            f" different.theirs > 0, [{packed['built']}], judged.expected"
            f" FROM {self._pairs()} JOIN judged ON judged.k = {_PREFIX}k "
            f"JOIN different ON different.k = {_PREFIX}k "
            f"ORDER BY judged.expected, {order} LIMIT {EXAMPLES}"
        ).fetchall()
        for text, has_live, ours, has_built, theirs, expected in rows:
            yield {
                "key": text,
                "live": dict(zip(self._columns, ours, strict=True)) if has_live else None,
                "built": dict(zip(self._columns, theirs, strict=True)) if has_built else None,
                "expected": expected,
            }

    def _orderly(self, name: str) -> tuple[str, str]:
        """Write a key column of both sides so that they have one order."""
        alike = self._kind("live", name) == self._kind("built", name)
        column = duckdb_name(name) if alike else _text_column(self._columns.index(name))
        return f"live.{column}", f"built.{column}"

    def _key_text(self, side: str) -> str:
        """Write a row's key as text, NULL where the side has no row."""
        parts = ", ".join(
            f"coalesce(CAST({side}.{duckdb_name(name)} AS VARCHAR), 'NULL')" for name in self._key
        )
        return f"CASE WHEN {side}.{_PREFIX}here THEN concat_ws(', ', {parts}) END"

    @contextlib.contextmanager
    def _registered(self, side: str, *, whole: bool) -> Iterator[None]:
        """Offer a side's rows once as `arrived`: `n<i>` as texts are made of; `whole`: also raw."""
        reader = pa.RecordBatchReader.from_batches(
            self._schema(side, whole=whole), self._batches(side, whole=whole)
        )
        self._connection.register("arrived", reader)
        try:
            yield
        finally:
            self._connection.unregister("arrived")

    def _schema(self, side: str, *, whole: bool) -> pa.Schema:
        kinds = {name: self._kind(side, name) for name in self._columns}
        fields = [
            pa.field(_normal_column(place), normal(pa.array([], kind), name).type)
            for place, (name, kind) in enumerate(kinds.items())
        ]
        raw = [pa.field(name, kind) for name, kind in kinds.items()] if whole else []
        return pa.schema([*fields, *raw])

    def _batches(self, side: str, *, whole: bool) -> Iterator[pa.RecordBatch]:
        schema = self._schema(side, whole=whole)
        scanner = scanner_of(
            self._sides[side],
            None,
            self._columns,
            batch_size=_BATCH_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
        )
        for batch in scanner.to_batches():
            raw = [batch.column(name).cast(self._kind(side, name)) for name in self._columns]
            plain = [normal(each, name) for each, name in zip(raw, self._columns, strict=True)]
            arrays = [*plain, *raw] if whole else plain
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _kind(self, side: str, name: str) -> pa.DataType:
        return self._sides[side].schema.field(name).type

    def _text(self, side: str, name: str) -> str:
        return text_sql(self._kind(side, name), _normal_column(self._columns.index(name)))

    def _cells(self, side: str, names: Sequence[str]) -> str:
        return " || ',' || ".join(sized(self._text(side, name)) for name in names)

    def _key_hash(self, side: str) -> str:
        return f"md5_number({self._cells(side, self._key)})"


def _normal_column(place: int) -> str:
    return f"{_PREFIX}n{place}"


def _text_column(place: int) -> str:
    return f"{_PREFIX}t{place}"


def _shown(side: str, name: str) -> str:
    return f"left(CAST({side}.{duckdb_name(name)} AS VARCHAR), {MOST_TEXT})"


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )
