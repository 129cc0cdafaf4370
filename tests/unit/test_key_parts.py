"""Work over more rows than fit into memory: cut into parts of their keys, each row in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from kernel.errors import TooLarge
from projections.run import key_parts
from projections.run.database import Database, arrow_schema
from projections.run.dataflow import Dataflow
from projections.run.key_parts import KeyPart, by_parts
from projections.run.operator_tables import Listed, OperatorTables, consolidated
from projections.run.sorted_runs import SortedRuns, as_they_are
from projections.sql.operators.tree import scans
from projections.sql.words.catalog import Column
from tests.support.oracles.region_world import Kept, tree_of, twice
from tests.support.oracles.sql_world import FACT_COLUMNS, Fact, World

ROWS, FLIGHTS = 300_000, 20_000
MEMORY = 24 * 2**20
"""Below this DuckDB does not read the facts at all; the window over them takes twice as much."""
ORDER = {"_time": "TIMESTAMP", "_seq_hi": "BIGINT", "_seq_lo": "BIGINT"}
FROM = "FROM STREAM events.flight.departed"
STATEMENTS = {
    "window": "CREATE PROJECTION top WITH (key = 'flight, place') AS SELECT flight, place, "
    "position FROM (SELECT flight, position, ROW_NUMBER() OVER (PARTITION BY flight ORDER BY "
    f"delay DESC, position) AS place {FROM}) WHERE place = 1",
    "join": "CREATE PROJECTION paired WITH (key = position) AS SELECT a.position, b.delay "
    f"{FROM} a JOIN STREAM events.flight.departed b ON a.flight = b.flight AND "
    "a.position = b.position AND b.occurred_at BETWEEN a.occurred_at - INTERVAL 1 MINUTE AND "
    "a.occurred_at",
}


def facts() -> pa.Table:
    numbers = np.arange(ROWS)
    chance = np.random.default_rng(1)
    flights = chance.integers(0, FLIGHTS, ROWS)
    times = pa.array(numbers * 1_000).cast(pa.timestamp("us", "UTC"))
    columns = {
        "flight": pa.array([f"flight {each}" for each in flights]),
        "carrier": pa.array(["a carrier of many"] * ROWS),
        "origin": pa.array(["an origin of many"] * ROWS),
        "delay": pa.array(chance.integers(0, 100, ROWS)),
        "distance": pa.array(numbers / 7),
        "position": pa.array(numbers),
        "occurred_at": times,
        "_time": times,
        "_seq_hi": pa.array(numbers),
        "_seq_lo": pa.array(numbers),
    }
    kinds = [Column(name=name, type=kind) for name, kind in {**FACT_COLUMNS, **ORDER}.items()]
    return pa.table(columns).cast(arrow_schema(kinds))


def oracle(name: str, rows: pa.Table) -> set[tuple[object, ...]]:
    flights, delays = rows["flight"].to_pylist(), rows["delay"].to_pylist()
    if name == "join":
        return {*enumerate(delays)}
    best: dict[str, int] = {}
    for position, flight in enumerate(flights):
        if flight not in best or delays[position] > delays[best[flight]]:
            best[flight] = position
    return {(flight, 1, position) for flight, position in best.items()}


def begun(name: str, rows: pa.Table, stored: Sequence[pa.Table]) -> pa.Table:
    tree = tree_of(STATEMENTS[name])
    dataflow = Dataflow(tree, memory_bytes=MEMORY)
    try:
        for scan in scans(tree):
            columns = [*(each.name for each in scan.columns), *ORDER]
            dataflow.add(scan, [rows.select(columns)])
        return dataflow.begin(stored, twice)
    finally:
        dataflow.close()


@pytest.mark.parametrize("name", STATEMENTS)
def test_p6_a_history_larger_than_memory_is_begun(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be too large for ever: what is kept between runs is read again after each start."""
    rows = facts()
    changes = begun(name, rows, ())
    columns = [each for each in changes.column_names if each != "_w"]
    found = {tuple(row[each] for each in columns) for row in changes.to_pylist()}
    assert set(changes["_w"].to_pylist()) == {1}
    assert found == oracle(name, rows)
    assert begun(name, rows, [changes.drop_columns(["_w"])]).num_rows == 0
    monkeypatch.setattr(key_parts, "MOST_PARTS", 1)
    with pytest.raises(TooLarge):
        begun(name, rows, ())


MATCHES = (
    "CREATE PROJECTION matched WITH (key = 'flight, began_at') AS SELECT flight, began_at, n "
    f"{FROM} MATCH_RECOGNIZE (PARTITION BY flight ORDER BY occurred_at MEASURES "
    "FIRST(a.occurred_at) AS began_at, COUNT(*) AS n PATTERN (a b+) WITHIN INTERVAL 3 HOURS "
    "DEFINE b AS b.delay > 0) found"
)


def test_p6_what_changes_in_matches_is_searched_once_for_all_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = [
        Fact(n, 1 + n % 2, f"f{n % 9}", "AA", "JFK", 7 * n % 601, n % 3, 0.5) for n in range(90)
    ]
    world = World(facts=tuple(facts), readings=())
    searched: list[str] = []
    plain = OperatorTables.fresh

    def fresh(tables: OperatorTables, what: str, query: str) -> None:
        searched.extend([what] if "RECURSIVE" in query else [])
        plain(tables, what, query)

    monkeypatch.setattr(OperatorTables, "fresh", fresh)
    found = []
    for part_rows in (key_parts.PART_ROWS, 10):
        monkeypatch.setattr(key_parts, "PART_ROWS", part_rows)
        kept = Kept(tree_of(MATCHES))
        kept.epoch(world.until(0), world.until(1))
        kept.epoch(world.until(1), world)
        found.append(kept.rows)
        kept.close()
        assert len(searched) == 2, "once for each epoch"
        searched.clear()
    assert found[0] == found[1]
    assert len(found[0]) > 9


@pytest.mark.parametrize("count", [1, 2, 3, 7, 256])
def test_each_hash_is_of_one_part(count: int) -> None:
    bounds = [KeyPart(number, count).hashes for number in range(count)]
    assert (bounds[0][0], bounds[-1][1]) == (0, 2**64 - 1)
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(bounds))


def test_the_conditions_of_all_parts_let_each_row_through_once() -> None:
    values = "(VALUES (0.0), (-0.0), ('nan'::DOUBLE), (NULL), (1.5)) v(x), range(1000) r(i)"
    found = [
        duckdb.sql(f"SELECT x, i FROM {values}{KeyPart(number, 5).where('x, i')}").fetchall()
        for number in range(5)
    ]
    assert sum(map(len, found)) == 5_000
    assert all(found)
    # Equal values have one hash: the two zeros are one key.
    zeros = [{i for x, i in part if x == 0} for part in found]
    assert sum(map(len, zeros)) == 1_000


def tried(fits_from: int, rows: int) -> list[int]:
    """Return how many parts were tried, where nothing fits into memory with less."""
    counts = []

    def work(parts: Iterator[KeyPart]) -> int:
        first = next(parts)
        counts.append(first.of)
        if first.of < fits_from:
            raise duckdb.OutOfMemoryException("no more")
        return 1 + sum(1 for _ in parts)

    if fits_from > key_parts.MOST_PARTS:
        with pytest.raises(duckdb.OutOfMemoryException):
            by_parts(rows, work)
    else:
        assert by_parts(rows, work) == counts[-1]
    return counts


def test_work_begins_again_with_more_parts_where_memory_does_not_suffice() -> None:
    assert tried(1, 0) == [1]
    assert tried(1, 10 * key_parts.PART_ROWS) == [11]
    assert tried(9, 0) == [1, 4, 16]
    assert tried(257, 0) == [1, 4, 16, 64, 256], "of one key there are too many rows"


def test_a_full_disk_is_told_at_once() -> None:
    tries = []

    def work(parts: Iterator[KeyPart]) -> None:
        tries.append(next(parts).of)
        raise duckdb.OutOfMemoryException("Out of Memory Error: max_temp_directory_size")

    with pytest.raises(duckdb.OutOfMemoryException):
        by_parts(0, work)
    assert tries == [1], "smaller parts take as much of it"


def test_a_run_of_parts_is_in_the_order_of_its_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_parts, "PART_ROWS", 100)
    database = Database()
    try:
        runs = SortedRuns(database, "found", "k, _w", "k")
        rows = "SELECT i AS k, CAST({w} AS BIGINT) AS _w FROM range({first}, {last}) r(i)"
        runs.add(rows.format(first=0, last=2_000, w=1), 2_000, as_they_are)
        gone = rows.format(first=500, last=2_000, w=-1)
        runs.settle(gone, 1_500, partial(consolidated, columns=Listed("k", "k")))
        (run,) = runs._runs
        hashes = np.concatenate([part.hashes for part in run.parts])
        left = pa.concat_tables(pa.table(part.rows) for part in run.parts)
        assert np.all(hashes[:-1] <= hashes[1:]), "places of a hash are found by halving"
        assert sorted(left["k"].to_pylist()) == [*range(500)]
    finally:
        database.close()
