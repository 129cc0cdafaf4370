"""Compares a built generation with the live one, row for row, at one epoch, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from kernel.errors import Incompatible, NotFound
from kernel.positions import Epoch
from projections.log.datasets import dataset_of, for_duckdb, schema_of
from projections.log.tables import kept
from replay.book import READY, Replay, ReplayBook, State
from replay.generations import generation_name, live_app
from replay.subject import Site, declaration, entry_of
from schemas.identifiers import duckdb_name

EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs between the live generation and the built one, at one epoch.

    `missing`: keys of the live table that the built one lacks; `extra`: the other way round;
    `differing`: keys whose rows' hashes differ. `drift`: per floating-point column the greatest
    absolute difference. `only_live`, `only_built`: columns that the other lacks; they are not
    compared, nor are hidden ones. `declared`: late rows were asked for, so that differences are
    what was wanted.
    """

    name: str
    generation: int
    epoch: int
    live_rows: int
    built_rows: int
    live_hash: str
    built_hash: str
    missing: int
    extra: int
    differing: int
    repeated_keys: int
    drift: Mapping[str, float]
    columns: tuple[str, ...]
    only_live: tuple[str, ...]
    only_built: tuple[str, ...]
    examples: tuple[Mapping[str, object], ...]
    declared: bool

    @property
    def equal(self) -> bool:
        """Whether both have the same rows and columns."""
        different = self.missing + self.extra + self.differing + self.repeated_keys
        return not (different or self.only_live or self.only_built)

    @property
    def accepted(self) -> bool:
        """Whether a swap needs no further confirmation."""
        return self.equal or (self.declared and not self.repeated_keys)


def comparable(site: Site, replay: Replay) -> bool:
    """Say whether the live generation has a version at exactly the built one's epoch."""
    return replay.epoch in _live_versions(site, replay)


def verify(site: Site, name: str, *, generation: int | None = None) -> Comparison:
    """Compare the newest built generation with the live one, and note the result in the book.

    Raises `NotFound` when there is none, or when the live one has no version at its epoch, or does
    not keep it any more.
    """
    book = ReplayBook(site.lake, site.tables)
    replay = book.newest(name, *READY, generation=generation)
    versions = _live_versions(site, replay)
    if replay.epoch not in versions:
        raise NotFound(
            f"the live generation of {name} has no version at epoch {replay.epoch}, up to which "
            f"generation {replay.generation} was built",
            remedy=f"penstock wait --caught-up, then penstock replay verify {name}",
        )
    stable = kept(site.lake.path(f"projection/{name}"), versions[replay.epoch])
    if stable is None:
        raise NotFound(
            f"what {name} was at epoch {replay.epoch}, up to which generation "
            f"{replay.generation} was built, is not kept any more (lake.retention_days)",
            remedy=f"Build it again: penstock replay apply {name}",
        )
    built = DeltaTable(site.lake.path(generation_name(name, replay.generation)))
    # Late rows are a difference only where the live generation has none.
    declared = replay.include_late and not entry_of(site, name).include_late
    found = _compare(replay, stable, built, declared=declared)
    state = State.VERIFIED if found.accepted else State.DIFFERS
    # A swap may have claimed it meanwhile, or made it the table.
    book.record(replay.now(state, detail=asdict(found)), after=READY)
    return found


def live_epoch(site: Site, replay: Replay) -> Epoch:
    """Return the newest epoch of the live generation. Raises `NotFound` before its first run."""
    versions = _live_versions(site, replay)
    if not versions:
        raise NotFound(
            f"{replay.name} has never run: there is nothing to compare with",
            remedy=f"Swap without comparison: penstock replay swap {replay.name} --yes",
        )
    return Epoch(max(versions))


def _live_versions(site: Site, replay: Replay) -> dict[int, int]:
    runs = site.manifest.history_of(live_app(replay.name, replay.base))
    stable = f"projection/{replay.name}"
    return {run.epoch: run.tables[stable].version for run in runs if stable in run.tables}


def _compare(
    replay: Replay, stable: DeltaTable, built: DeltaTable, *, declared: bool
) -> Comparison:
    live_schema, built_schema = schema_of(stable), schema_of(built)
    live_columns, built_columns = _visible(live_schema), _visible(built_schema)
    columns = [name for name in live_columns if name in built_columns]
    key = declaration(replay.name, replay.text).key
    if not set(key) <= set(columns):
        raise Incompatible(
            f"generation {replay.generation} has the key {', '.join(key)}, which the live one has "
            "not: rows cannot be compared",
            remedy=f"Look at both, then: penstock replay swap {replay.name} --yes",
        )
    floats = [name for name in columns if pa.types.is_floating(built_schema.field(name).type)]
    with duckdb.connect(config={"python_enable_replacements": "false"}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("live_rows", for_duckdb(dataset_of(stable)))
        connection.register("built_rows", for_duckdb(dataset_of(built)))
        for side in ("live", "built"):
            connection.execute(_hashed(side, key, columns))
        totals = [_totals(connection, side) for side in ("live", "built")]
        differences = _differences(connection, key)
        drift = _drift(connection, key, floats)
        examples = _examples(connection, key, columns)
    (live_count, live_keys, live_hash), (built_count, built_keys, built_hash) = totals
    missing, extra, differing = differences
    return Comparison(
        name=replay.name,
        generation=replay.generation,
        epoch=replay.epoch,
        live_rows=live_count,
        built_rows=built_count,
        live_hash=live_hash,
        built_hash=built_hash,
        missing=missing,
        extra=extra,
        differing=differing,
        repeated_keys=(live_count - live_keys) + (built_count - built_keys),
        drift=drift,
        columns=tuple(columns),
        only_live=tuple(name for name in live_columns if name not in columns),
        only_built=tuple(name for name in built_columns if name not in columns),
        examples=examples,
        declared=declared,
    )


def _visible(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if not name.startswith("_")]


def _hashed(side: str, key: Sequence[str], columns: Sequence[str]) -> str:
    """Give every row a hash over its columns' text, by name: order of columns does not matter."""
    packed = ", ".join(f"{duckdb_name(name)} := {duckdb_name(name)}" for name in sorted(columns))
    keys = _list(key)
    return (
        f"CREATE TEMP TABLE {side} AS SELECT {keys}, "
        f"md5(CAST(struct_pack({packed}) AS VARCHAR)) AS __hash FROM {side}_rows"
    )


def _totals(connection: duckdb.DuckDBPyConnection, side: str) -> tuple[int, int, str]:
    """Count rows and keys; hash the table as the XOR of its rows' hashes."""
    row = connection.execute(
        f"SELECT count(*), (SELECT count(*) FROM (SELECT DISTINCT * EXCLUDE (__hash) FROM {side})),"
        f" bit_xor(CAST(('0x' || left(__hash, 16)) AS UBIGINT)) FROM {side}"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1]), f"{int(row[2] or 0):016x}"


def _differences(connection: duckdb.DuckDBPyConnection, key: Sequence[str]) -> tuple[int, int, int]:
    row = connection.execute(
        "SELECT count(*) FILTER (b.__hash IS NULL), count(*) FILTER (l.__hash IS NULL), "
        "count(*) FILTER (b.__hash <> l.__hash) "
        f"FROM live l FULL OUTER JOIN built b USING ({_list(key)})"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])


def _drift(
    connection: duckdb.DuckDBPyConnection, key: Sequence[str], floats: Sequence[str]
) -> dict[str, float]:
    if not floats:
        return {}
    columns = ", ".join(
        f"max(abs(l.{duckdb_name(name)} - b.{duckdb_name(name)}))" for name in floats
    )
    row = connection.execute(
        f"SELECT {columns} FROM live_rows l JOIN built_rows b USING ({_list(key)})"
    ).fetchone()
    assert row is not None
    return {name: float(value) for name, value in zip(floats, row, strict=True) if value}


def _examples(
    connection: duckdb.DuckDBPyConnection, key: Sequence[str], columns: Sequence[str]
) -> tuple[Mapping[str, object], ...]:
    """Show the first differing keys with both rows; a side without the key is None."""
    keys = _list(key)
    picked = connection.execute(
        f"CREATE TEMP TABLE picked AS SELECT {keys} FROM live l FULL OUTER JOIN built b "
        f"USING ({keys}) WHERE b.__hash IS DISTINCT FROM l.__hash ORDER BY {keys} LIMIT {EXAMPLES}"
    )
    del picked
    found: dict[str, dict[str, object]] = {}
    for side in ("live", "built"):
        rows = connection.sql(
            f"SELECT {_list(columns)} FROM {side}_rows SEMI JOIN picked USING ({keys})"
        ).to_arrow_table()
        for row in rows.to_pylist():
            place = ", ".join(str(row[name]) for name in key)
            found.setdefault(place, {"key": place, "live": None, "built": None})[side] = {
                name: str(value) for name, value in row.items()
            }
    return tuple(found[place] for place in sorted(found))


def _list(names: Sequence[str]) -> str:
    return ", ".join(duckdb_name(name) for name in names)
