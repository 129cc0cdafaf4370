"""Keys of the source that are one key in the lake: an infinity, and the moment that stands for it.

`infinity` is the last moment of the lake, `-infinity` the first one, and the row says so in
`_exact` (`schemas.pg_exact`). Another row may have that very moment for its key. One may follow the
other; side by side they would be one row here, and the end of one would end the other: they are
refused, and their table is held.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from operator import or_

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from kernel.errors import SchemaViolation
from lake.datasets import dataset_of, scanner_of, schema_of
from lake.writer import DELETE, OP
from pipeline.ddl.unchanged_values import MARKED, Stored
from schemas.identifiers import duckdb_name
from schemas.pg_exact import EXACT
from schemas.pg_moments import DATE_MAX, DATE_MIN, MICROS_MAX, MICROS_MIN

Key = tuple[object, ...]
Texts = tuple[str | None, ...]
"""What `_exact` says of each moment in a key; None: it is the lake's own value."""
_MEMORY = "256MB"
_ONE, _OTHER = "__one", "__other"


def refuse_met_keys(
    images: pa.Table, keys: Sequence[str], stored: Stored, *, soft: bool, exact: bool
) -> None:
    """Raise `SchemaViolation` where two keys of the source would be one row of the lake.

    `images` are in the source's order, with `__op`. `stored` finds what the table has; it is asked
    for keys at the ends of the calendar alone. `exact`: the table may have a column `_exact`; where
    neither it nor the images have one, nothing is infinite. With `soft` deletes a deleted row stays
    and counts.
    """
    moments = _moments(images.schema, keys)
    if not moments or not (exact or EXACT in images.schema.names):
        return
    at_ends = images.filter(_at_ends(images.schema, moments))
    begins: dict[Key, tuple[int, bool]] = {}
    found = list(_told(at_ends, keys, moments))
    deleted = pc.equal(at_ends[OP], DELETE).to_pylist()
    for place, (key, _) in enumerate(found):
        begins.setdefault(key, (place, deleted[place]))
    # What a delete ended is of no interest, whatever it was.
    asked = [place for place, ended in begins.values() if soft or not ended]
    living: dict[Key, Texts] = {}
    if asked:
        known = stored(at_ends.take(pa.array(asked, pa.int64())).select(list(keys)))
        living = {} if known is None else dict(_told(_there(known, soft), keys, moments))
    for (key, texts), ended in zip(found, deleted, strict=True):
        if ended:
            if not soft:
                living.pop(key, None)
        elif (other := living.setdefault(key, texts)) != texts:
            raise _met(keys, moments, key, (other, texts))


def refuse_met_rows(table: DeltaTable, keys: Sequence[str]) -> None:
    """Raise `SchemaViolation` where rows that were copied would be one row of the lake."""
    schema = schema_of(table)
    moments = _moments(schema, keys) if {*keys} <= {*schema.names} else ()
    if not moments or EXACT not in schema.names:
        return
    with duckdb.connect(config={"memory_limit": _MEMORY, "threads": 1}) as connection:
        for name in moments:
            for end in _ends_of(schema.field(name)):
                _refuse_met_at(connection, table, keys, moments, name, end)


def _refuse_met_at(
    connection: duckdb.DuckDBPyConnection,
    table: DeltaTable,
    keys: Sequence[str],
    moments: tuple[str, ...],
    moment: str,
    end: pa.Scalar,
) -> None:
    """Refuse keys of which some have an end of the calendar for what others say of theirs.

    Where all rows say the same of it, none is of the key of another; else those that say what most
    do not are looked for among the others, which may be most of a huge table.
    """

    def scan() -> None:
        rows = scanner_of(dataset_of(table), pc.field(moment) == end, columns=[*keys, EXACT])
        connection.register("copied", rows)

    def asked(query: str) -> pa.Table:
        scan()
        return connection.sql(query, params=[pointer]).to_arrow_table()

    names, exact = ", ".join(map(duckdb_name, keys)), duckdb_name(EXACT)
    pointer, told = "/" + moment.replace("~", "~0").replace("/", "~1"), f"{exact} ->> $1"
    kinds = asked(f"SELECT {told} AS told, count(*) AS n FROM copied GROUP BY 1 ORDER BY n DESC")
    if kinds.num_rows < 2:
        return
    scan()
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE others AS"
        f" SELECT DISTINCT {names} FROM copied WHERE {told} IS DISTINCT FROM $2",
        [pointer, kinds["told"][0].as_py()],
    )
    twice = asked(
        f"SELECT {names}, max({exact}) AS {_ONE},"
        f" CASE WHEN count({exact}) = count(*) THEN min({exact}) END AS {_OTHER}"
        f" FROM copied SEMI JOIN others USING ({names}) GROUP BY {names}"
        f" HAVING count(DISTINCT coalesce({told}, '')) > 1 LIMIT 1"
    )
    for key in _keys(twice.select(list(keys))):
        one, other = (_texts(twice[name][0].as_py(), moments) for name in (_ONE, _OTHER))
        raise _met(keys, moments, key, (one, other))


def _moments(schema: pa.Schema, keys: Sequence[str]) -> tuple[str, ...]:
    kinds = {name: schema.field(name).type for name in keys}
    return tuple(n for n, t in kinds.items() if pa.types.is_date32(t) or pa.types.is_timestamp(t))


def _at_ends(schema: pa.Schema, moments: Sequence[str]) -> pc.Expression:
    """Return a filter for the rows that have the first or the last moment in their key."""
    return reduce(or_, (_is_end(schema.field(name)) for name in moments))


def _is_end(field: pa.Field) -> pc.Expression:
    first, last = _ends_of(field)
    return (pc.field(field.name) == first) | (pc.field(field.name) == last)


def _ends_of(field: pa.Field) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the first and the last moment of a column."""
    if pa.types.is_date32(field.type):
        ends = pa.array([DATE_MIN, DATE_MAX], pa.int32()).cast(field.type)
    else:
        ends = pa.array([MICROS_MIN, MICROS_MAX], pa.int64()).cast(field.type)
    return ends[0], ends[1]


def _there(known: pa.Table, soft: bool) -> pa.Table:
    """Return the stored rows that count: those that are marked do in a table that keeps them."""
    if soft or MARKED not in known.schema.names:
        return known
    return known.filter(pc.invert(pc.fill_null(known[MARKED], False)))


def _told(
    rows: pa.Table, keys: Sequence[str], moments: tuple[str, ...]
) -> Iterator[tuple[Key, Texts]]:
    """Yield each row's key, and what its `_exact` says of the moments in it."""
    has = EXACT in rows.schema.names
    exact = rows[EXACT].to_pylist() if has else [None] * rows.num_rows
    for key, text in zip(_keys(rows.select(list(keys))), exact, strict=True):
        yield key, _texts(text, moments)


def _keys(rows: pa.Table) -> Iterator[Key]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


@lru_cache(maxsize=1024)
def _texts(exact: str | None, moments: tuple[str, ...]) -> Texts:
    said = {} if exact is None else json.loads(exact)
    return tuple(said.get(name) for name in moments)


def _met(
    keys: Sequence[str], moments: tuple[str, ...], key: Key, both: tuple[Texts, Texts]
) -> SchemaViolation:
    def shown(texts: Texts) -> str:
        said = dict(zip(moments, texts, strict=True))
        named = zip(keys, key, strict=True)
        return "(" + ", ".join(f"{name} = {said.get(name) or value}" for name, value in named) + ")"

    one, other = map(shown, both)
    return SchemaViolation(
        f"rows have the keys {one} and {other} side by side, which are one key in the lake",
        remedy="Give one of the rows another key, or the table another type of key, and read it"
        " again: penstock source resnapshot NAME --tables TABLE",
    )
