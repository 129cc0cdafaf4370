"""Two large tables compared by executors: rows meet by the hash of their key, in buckets.

    files of both sides -> hashes of key and row, by bucket -> per bucket: the keys that disagree

What comes to the driver is the number and sum of the rows' hashes in each bucket, the keys that
disagree and, of few of these, the rows. A key that a table has twice disagrees.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kernel.errors import TooLarge
from lake.collecting import Limit, beyond
from lake.datasets import scanner_of
from pipeline.verification.lake_state import LakeState
from pipeline.verification.large_states import LargeStates, parts_of
from pipeline.verification.state_query import StateQuery
from schemas.row_hash import hash_text

SEEN = "count(*) FILTER (live) AS ours, count(*) FILTER (NOT live) AS theirs"
DISAGREE = "ours <> 1 OR theirs <> 1 OR bit_xor(high) <> 0 OR bit_xor(low) <> 0"
"""Whether rows of one key are not one of each side, both equal: equal hashes cancel each other."""
BUCKET_ROWS = 1_000_000
MOST_KEYS = 100_000
"""Rows of more keys than that the driver looks for itself, file by file, on its disk."""
KEYS = Limit(what="the keys that differ", most_bytes=64 * 2**20)
ROWS = Limit(what="the rows that differ", most_bytes=256 * 2**20)
_BATCH_ROWS = 65_536
_TOTALS, _PLACE = b"totals", "penstock__place"
_SIDES = ("live", "built")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundApart:
    """What executors found. `totals`: rows and hash of each side. `rows`: those of the keys that
    disagree, by side; None where they are too many.
    """

    totals: Mapping[str, tuple[int, str]]
    rows: Mapping[str, pa.Table] | None


class LargeTables:
    """Compares two tables by executors, where they are large. `columns` are sorted by name."""

    def __init__(
        self,
        large: LargeStates,
        sides: Mapping[str, ds.Dataset],
        key: tuple[str, ...],
        columns: tuple[str, ...],
    ) -> None:
        self._large = large
        self._sides = sides
        self._key = key
        self._columns = columns
        self._parts: dict[str, tuple[ds.Dataset, ...]] = {}

    def differences(self, take: Callable[[pa.Table], None]) -> FoundApart | None:
        """Return what executors find; None where this process is to compare.

        `take` is given the keys that disagree, some at a time: as `upper` and `lower`, the halves
        of `md5_number`, with how often each side has them.
        """
        if not self._cut():
            return None
        rows = sum(part.count_rows() for parts in self._parts.values() for part in parts)
        buckets = 1 + rows // BUCKET_ROWS
        parts = tuple(
            _Side(live=side == "live", query=self._hashing(part, buckets))
            for side in _SIDES
            for part in self._parts[side]
        )
        found = _Found(take)
        if not self._large.tasks.of_buckets(
            RowHashes(sides=parts, buckets=buckets),
            len(parts),
            Disagreement(),
            buckets,
            KEYS,
            found.note,
        ):
            return None
        return FoundApart(totals=found.totals, rows=self._rows(found.keys))

    def _cut(self) -> bool:
        files = {side: self._large.files(rows, None) for side, rows in self._sides.items()}
        if all(each is None for each in files.values()):
            return False
        for side, rows in self._sides.items():
            if not isinstance(rows, ds.FileSystemDataset):
                return False
            self._parts[side] = tuple(parts_of(rows, [*rows.get_fragments()]))
        return True

    def _hashing(self, rows: ds.Dataset, buckets: int) -> StateQuery:
        state = LakeState(key=self._key, base=rows)
        key, row = state.cells(self._key), state.cells(self._columns)
        halves = ", ".join(
            f"('0x' || substr(h, {start}, 16))::UBIGINT AS {name}"
            for start, name in ((1, "high"), (17, "low"))
        )
        bucket = f"((upper >> 32) // {-(-(2**32) // buckets)})::INTEGER"
        return StateQuery(
            state=state,
            columns=tuple(dict.fromkeys((*self._key, *self._columns))),
            sql=f"SELECT upper, lower, {halves}, {bucket} AS bucket FROM ("
            "SELECT md5_number_upper(c) AS upper, md5_number_lower(c) AS lower, h "
            f"FROM (SELECT {key} AS c, md5({row}) AS h FROM state))",
        )

    def _rows(self, wanted: Sequence[str]) -> Mapping[str, pa.Table] | None:
        if len(wanted) > MOST_KEYS:
            return None
        rows: dict[str, pa.Table] = {}
        for side, parts in self._parts.items():
            task = RowsOfKeys(
                parts=parts if wanted else (), key=self._key, columns=self._columns, wanted=wanted
            )
            try:
                said = self._large.tasks.of_parts(task, len(task.parts), ROWS)
            except TooLarge:
                return None
            if said is None:
                return None
            schema = self._sides[side].schema
            none = pa.schema([schema.field(name) for name in self._columns]).empty_table()
            rows[side] = pa.concat_tables([none, *said.values()])
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A part of one of the tables, and what is asked of it."""

    live: bool
    query: StateQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class RowHashes:
    """Hashes keys and rows of each part, apart by bucket; see `PartBuckets`."""

    sides: Sequence[_Side]
    buckets: int

    def __call__(self, number: int) -> Mapping[int, pa.Table]:
        """Hash one part."""
        side = self.sides[number]
        found = side.query.table()
        live = pa.array([side.live], pa.bool_()).take(pa.array([0] * found.num_rows, pa.int32()))
        found = found.append_column("live", live)
        bucket = found["bucket"]
        found = found.drop_columns(["bucket"])
        return {place: found.filter(pc.equal(bucket, place)) for place in range(self.buckets)}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Finds the keys of a bucket that disagree; see `BucketRows`."""

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return them, with the sums of all rows' hashes beside."""
        with duckdb.connect(config={"threads": 1, "memory_limit": "512MB"}) as connection:
            connection.execute("SET enable_progress_bar = false")
            connection.register("hashed", rows)
            sums = connection.execute(
                "SELECT live, count(*), sum(high), sum(low) FROM hashed GROUP BY live"
            ).fetchall()
            different = connection.sql(
                f"SELECT upper, lower, {SEEN} FROM hashed GROUP BY upper, lower HAVING {DISAGREE}"
            ).to_arrow_table()
        told = {_SIDES[not live]: [*map(int, counted)] for live, *counted in sums}
        return different.replace_schema_metadata({_TOTALS: json.dumps(told)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOfKeys:
    """Reads the rows of some keys, which are named by their hashes; see `PartRows`.

    A few keys may have very many rows, and all that a task holds is in its executor's memory: so
    it raises `TooLarge` by itself.
    """

    parts: Sequence[ds.Dataset]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    wanted: Sequence[str]
    limit: Limit = ROWS

    def __call__(self, number: int) -> pa.Table:
        """Read those of one part."""
        rows = self.parts[number]
        schema = pa.schema([rows.schema.field(name) for name in self.columns])
        query = StateQuery(
            state=LakeState(key=self.key, base=None),
            columns=(*self.key, _PLACE),
            sql="",
            keys=self.wanted,
        )
        found, held = [schema.empty_table()], 0
        scanner = scanner_of(rows, None, self.columns, batch_size=_BATCH_ROWS, batch_readahead=1)
        for batch in scanner.to_batches():
            table = pa.Table.from_batches([batch]).cast(schema)
            placed = table.select(list(self.key)).append_column(
                _PLACE, pa.array(range(table.num_rows), pa.int64())
            )
            state = LakeState(key=self.key, base=ds.dataset(placed))
            sql = f"SELECT md5({state.cells(self.key)}) AS k, {_PLACE} FROM state"
            places = replace(query, state=state, sql=sql).table()[_PLACE]
            found.append(table.take(places))
            held += found[-1].nbytes
            if held > self.limit.most_bytes:
                raise beyond(self.limit, f"{held} bytes of a part")
        return pa.concat_tables(found)


class _Found:
    """Adds up what is told of the buckets, and keeps the hashes of few keys: one above the most."""

    def __init__(self, take: Callable[[pa.Table], None]) -> None:
        self._take = take
        self._sums = dict.fromkeys(_SIDES, (0, 0, 0))
        self.keys: list[str] = []

    @property
    def totals(self) -> dict[str, tuple[int, str]]:
        return {side: (rows, hash_text(*halves)) for side, (rows, *halves) in self._sums.items()}

    def note(self, answer: pa.Table) -> None:
        for side, (rows, high, low) in json.loads(answer.schema.metadata[_TOTALS]).items():
            held = self._sums[side]
            self._sums[side] = (held[0] + rows, held[1] + high, held[2] + low)
        few = answer.slice(0, MOST_KEYS + 1 - len(self.keys))
        halves = (few[name].to_pylist() for name in ("upper", "lower"))
        self.keys += [_digest(*each) for each in zip(*halves, strict=True)]
        self._take(answer)


def _digest(upper: int, lower: int) -> str:
    """Return the text of a hash by the halves of its number, which has the first byte lowest."""
    return (upper.to_bytes(8, "little") + lower.to_bytes(8, "little")).hex()
