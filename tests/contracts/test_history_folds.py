"""What folds of a history promise, by this process and by executors: the same rows, bit for bit.

An oracle that knows neither SQL nor columns walks through the same facts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from kernel.positions import Epoch
from lake.collecting import FEW_ROWS, collected
from lake.layout import Lake
from lake.quoting import as_json
from lake.table_columns import UTC_MICROS
from lake.writer import Guard
from pipeline.history.key_texts import key_texts
from pipeline.history.shape import HistoryOf
from tests.support.lake.kept_history import Form, KeptHistory
from tests.support.oracles.change_facts import (
    START,
    TYPED_BY,
    Fact,
    Writer,
    expected,
    truncates,
    typed,
)
from tests.support.services.tier import examples, spark_group

pytestmark = pytest.mark.xdist_group(spark_group())

ODD = pa.schema(
    [
        ("ratio", pa.float64()),
        ("small", pa.float32()),
        ("amount", pa.decimal128(20, 4)),
        ("whole", pa.decimal128(38, 0)),
        ("at", UTC_MICROS),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("many", pa.list_(pa.string())),
        ("both", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))])),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("tiny", pa.int16()),
        ('odd "name`', pa.string()),
        ("valid_from", pa.string()),
    ]
)
"""Columns beside the ones of `change_facts`; their values follow from the name."""
NAN = float("nan")
MOMENTS = (
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    *(datetime(1582, 10, 10, 1, 2, 3, number, tzinfo=UTC) for number in range(4)),
    *(datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
)
LOCAL = tuple(moment.replace(tzinfo=None) for moment in MOMENTS)
VALUES: dict[str, tuple[object, ...]] = {
    "ratio": (NAN, -0.0, 0.0, None, float("inf"), 5e-324, 0.1),
    "small": (None, NAN, -0.0, 0.0, 3.4028234663852886e38, float("-inf"), 0.5),
    "amount": tuple(map(Decimal, ("0.0000", "-0.0001", "9999999999999999.9999", "1.5000"))),
    "whole": (Decimal("9" * 38), Decimal(-1), None, Decimal(0)),
    "at": (*MOMENTS[:4], None),
    "local": (None, *LOCAL[:4]),
    "day": (date(1, 1, 1), None, date(9999, 12, 31), date(1582, 10, 10), date(1900, 2, 28)),
    "many": (None, [], [None], ["", "a\x00b"], ["😀", "ß"]),
    "both": (None, {"a": None, "b": None}, {"a": 2**63 - 1, "b": [NAN, -0.0, None]}),
    "raw": (b"", None, b"\x00\xff", b"\x00"),
    "flag": (None, True, False),
    "tiny": (None, -(2**7), 2**7 - 1, 0),
    'odd "name`': ("", None, "\x00", "'; --", "é", "e\u0301"),
    "valid_from": (None, "ours?"),
}
NAMES = tuple(f"n{number}" for number in range(24))
KEYS: dict[str, tuple[object, ...]] = {
    "number": (-(2**63), 2**63 - 1, 0, 5, 6, 7, 8, 9),
    "text": ("", '"', "\\", "\n\x01\x1f\x7f", "\\u00e9", "é😀\u2028", "a/b", "a"),
    "moment": MOMENTS,
    "local": LOCAL,
    "day": (date(1, 1, 1), date(9999, 12, 31), *(date(2013, 1, n) for n in range(1, 7))),
    "exact": tuple(map(Decimal, ("0E-8", "1E-8", "-1E-7", "1", "100", "0.5", "-2.25", "3"))),
    "double": (NAN, 0.0, 0.1, 1e100, -1.5, 2.0, 3.0, 4.0),
}
KINDS: dict[str, pa.DataType] = {
    "number": pa.int64(),
    "text": pa.string(),
    "moment": UTC_MICROS,
    "local": pa.timestamp("us"),
    "day": pa.date32(),
    "exact": pa.decimal128(18, 8),
    "double": pa.float64(),
}


def of_name(name: str | None) -> dict[str, object]:
    """Return a row's odd values. Those of two names may be equal in SQL, and not in bits."""
    if name is None:
        return dict.fromkeys(ODD.names)
    number = int(name[1:])
    return {column: values[number % len(values)] for column, values in VALUES.items()}


def oddly(rows: pa.Table, kinds: Sequence[str]) -> pa.Table:
    """Give typed rows odd values, and a key of several columns that follow from the number."""
    for column in ODD:
        values = [of_name(name)[column.name] for name in rows["name"].to_pylist()]
        rows = rows.append_column(column, pa.array(values, column.type))
    for kind in kinds:
        values = [KEYS[kind][number] for number in rows["id"].to_pylist()]
        rows = rows.append_column(f"key {kind}", pa.array(values, KINDS[kind]))
    return rows


def bits(table: pa.Table) -> list[str]:
    """Return rows as text that tells all bits of a value; NaN is one value."""
    return [repr(row) for row in table.to_pylist()]


def people(key: Sequence[str]) -> HistoryOf:
    return HistoryOf(
        name="history/shop.public.people",
        typed="typed/shop.public.people",
        key=tuple(key),
        identity=tuple(key),
        by_row=False,
        truncates="typed/shop._truncates",
        table="public.people",
    )


def epochs(chance: random.Random, transactions: int) -> list[list[Fact]]:
    """A snapshot, transactions, and another snapshot that saw other than was known, in epochs."""
    writer = Writer(chance=chance, clears=0.03, names=NAMES)
    parts = [writer.snapshot({n: NAMES[n] for n in range(4)})]
    again = chance.randrange(transactions)
    for done in range(transactions):
        if done == again:
            seen = dict(list(writer.rows.items())[:4])
            parts.append(writer.snapshot(seen | {0: NAMES[7]}, later=True))
        parts.append(writer.transaction(keys=8))
    return in_epochs(chance, parts)


def in_epochs(chance: random.Random, parts: Sequence[list[Fact]]) -> list[list[Fact]]:
    cuts = sorted(chance.sample(range(1, len(parts)), 3))
    bounds = zip([0, *cuts], [*cuts, len(parts)], strict=True)
    return [[fact for part in parts[low:high] for fact in part] for low, high in bounds]


def both(spark: SparkSession, root: Path, history: HistoryOf) -> tuple[KeptHistory, KeptHistory]:
    """Return the same history in two lakes, folded by this process and by executors."""
    here, there = (
        KeptHistory(spark, Lake.at(root / form.name), history, form)
        for form in (Form.DRIVER, Form.COLLECTED)
    )
    return here, there


def are_equal(here: KeptHistory, there: KeptHistory) -> None:
    assert here.table().schema == there.table().schema
    assert bits(here.table()) == bits(there.table())


@pytest.mark.matrix
@settings(max_examples=examples(1, matrix=30), deadline=None)
@given(
    chance=st.randoms(use_true_random=False),
    kinds=st.sampled_from([("text", "number"), ("moment", "day"), ("local", "exact"), ("double",)]),
)
def test_p6_both_forms_give_the_same_bits_and_what_a_walk_gives(
    chance: random.Random,
    kinds: tuple[str, ...],
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    done = epochs(chance, 40)
    root = tmp_path_factory.mktemp("histories")
    here, there = both(spark, root, people([f"key {kind}" for kind in kinds]))
    added = added_to(done)
    for at, facts in enumerate(done, start=1):
        came = typed(facts, at)
        rows = with_ddl(oddly(came, kinds), at, [added[place] for place in places_of(came)])
        for world in (here, there):
            if at == WIDENED:
                widen(world)
            world.fold(rows, truncates(facts, at))
        are_equal(here, there)
    told = [fact for part in done for fact in part]
    assert [of_walk(row) for row in expected(told)] == of_history(here.rows(), kinds[0])


_Place = tuple[int, int, int | None]
ADDED, WIDENED = 2, 4
"""Epochs from which the table has a column more, and one of another type."""


def places_of(rows: pa.Table) -> list[_Place]:
    columns = (rows[name].to_pylist() for name in ("_seq_hi", "_seq_lo", "id"))
    return [*zip(*columns, strict=True)]


def added_to(done: Sequence[Sequence[Fact]]) -> dict[_Place, str | None]:
    """Return what each fact has in the column that is added, by its place in the order.

    What a copy reads again, as it was written, has what was written: else it would be a change.
    """
    known: dict[int | None, str | None] = {}
    found: dict[_Place, str | None] = {}
    facts = [(at, fact) for at, part in enumerate(done, start=1) for fact in part]
    for at, fact in sorted(facts, key=lambda each: (each[1].hi, each[1].lo)):
        if fact.operation != "r" or fact.id not in known:
            known[fact.id] = "x" if at >= ADDED else None
        found[fact.hi, fact.lo, fact.id] = known[fact.id]
    return found


def with_ddl(rows: pa.Table, epoch: int, added: Sequence[str | None] = ()) -> pa.Table:
    if epoch >= ADDED and "added" not in rows.schema.names:
        rows = rows.append_column("added", pa.array(added, pa.string()))
    kind = pa.int16() if epoch >= WIDENED else pa.int8()
    return rows.set_column(rows.schema.get_field_index("tiny"), "tiny", rows["tiny"].cast(kind))


def widen(world: KeptHistory) -> None:
    """Give a column of the typed table another type, as DDL does: its history is made anew."""
    path = world.lake.path(world.history.typed)
    rows = world.tables.read(path)
    assert rows is not None
    world.writer.overwrite(path, with_ddl(rows, WIDENED), Guard("ddl", Epoch(1)))


def of_walk(row: Mapping[str, object]) -> tuple[object, ...]:
    """Return what the oracle says of a version; of its key's other half, whether there is one."""
    links = (row["_previous_key"] is not None, row["_next_key"] is not None)
    times = (row["valid_from"], row["valid_to"], row["_deleted"], row["_seq_hi"], row["_seq_lo"])
    return (row["id"], row["name"], *times, row["_transaction"], *links)


def of_history(rows: Sequence[Mapping[str, object]], kind: str) -> list[tuple[object, ...]]:
    """Return versions as `of_walk` does; a key is known by its first column."""
    found = [of_walk({**row, "id": place(row[f"key {kind}"], kind)}) for row in rows]
    return sorted(found, key=lambda row: (row[0], row[2]))


def place(value: object, kind: str) -> int:
    alike = (
        n for n, each in enumerate(KEYS[kind]) if each == value or (each != each and value != value)
    )
    return next(alike)


def test_changed_keys_are_rendered_letter_for_letter(spark: SparkSession) -> None:
    kinds = [kind for kind in KEYS if kind != "double"]
    columns = {kind: pa.array([*KEYS[kind], None], KINDS[kind]) for kind in kinds}
    flags = {'a "flag`': pa.array([True, False, None] * 3)}
    whole = pa.table(columns | flags)
    names, count = whole.schema.names, whole.num_rows
    halves = {
        "_operation": pa.array(["d", "c"] * 5)[:count],
        "_seq_hi": pa.array([1] * count),
        "_lsn": pa.array([7] * count),
    }
    schema = from_arrow_schema(whole.schema)
    told = spark.createDataFrame(whole, schema).selectExpr(f"{as_json(names)} AS text")
    here = key_texts(pa.table({**columns, **flags, **halves}), names)
    assert here.to_pylist() == collected(told, FEW_ROWS)["text"].to_pylist()


ROWS = HistoryOf(
    name="history/declared",
    typed="typed/shop.public.people",
    key=("part",),
    identity=("id",),
    by_row=True,
)
RECORDS = replace(ROWS, key=("id",), records=True)


def row_of(chance: random.Random, number: int) -> dict[str, object]:
    """Return a change of one of eight rows, at any time; each has moments of its own."""
    id_ = chance.randrange(8)
    gone = chance.random() < 0.25
    minute = 100 * chance.randrange(12) + id_
    return {
        "id": id_,
        # A delete may know the key alone.
        "part": None if gone and chance.random() < 0.5 else chance.randrange(12),
        "name": None if gone else chance.choice(NAMES),
        "committed_at": START,
        "_operation": "d" if gone else "u",
        "_late": chance.random() < 0.1,
        "_time": START + timedelta(minutes=minute),
        "_seq_hi": number,
        "_seq_lo": 0,
        "_ingested_at": START,
    }


COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.int32()),
        ("name", pa.string()),
        *TYPED_BY,
    ]
)


@settings(max_examples=examples(1, matrix=30), deadline=None)
@given(chance=st.randoms(use_true_random=False), history=st.sampled_from([ROWS, RECORDS]))
def test_p6_both_forms_of_a_declared_history_give_the_same_bits_and_what_the_rows_say(
    chance: random.Random,
    history: HistoryOf,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    here, there = both(spark, tmp_path_factory.mktemp("declared"), history)
    rows: list[dict[str, object]] = []
    for at in (1, 2, 3, 4):
        new = [row_of(chance, len(rows) + n) for n in range(chance.randint(1, 20))]
        chance.shuffle(new)
        rows += new
        table = pa.Table.from_pylist([{**row, "_epoch": at} for row in new], COLUMNS)
        for world in (here, there):
            world.fold(oddly(table, ()))
        are_equal(here, there)
    found = [
        (row[history.key[0]], row["valid_from"], row["name"], row["valid_to"])
        for row in here.rows()
        if history.records or not row["_deleted"]
    ]
    assert found == sorted(declared_rows(rows, history))


def declared_rows(
    rows: Sequence[Mapping[str, object]], history: HistoryOf
) -> list[tuple[object, ...]]:
    """Return what holds when, from the newest state of every row or record."""
    known = (lambda row: (row["id"], row["_time"])) if history.records else (lambda row: row["id"])
    newest: dict[object, Mapping[str, object]] = {}
    for row in sorted(rows, key=lambda row: int(str(row["_seq_hi"]))):
        if not row["_late"]:
            newest[known(row)] = row
    parts: dict[object, list[Mapping[str, object]]] = {}
    for row in newest.values():
        if history.records or row["_operation"] != "d":
            parts.setdefault(row[history.key[0]], []).append(row)
    found: list[tuple[object, ...]] = []
    for part, own in parts.items():
        own.sort(key=lambda row: str(row["_time"]))
        ends = [row["_time"] for row in own[1:]] + [None]
        found += [
            (part, row["_time"], row["name"], end) for row, end in zip(own, ends, strict=True)
        ]
    return found
