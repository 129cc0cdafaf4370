"""A column's values under one type after another: each fact has its value, in or beside the column.

The types are those that a column may walk through by DDL, the values all that PostgreSQL takes for
them, and what a numeric's decimal has no place for, as where a row is read under an older type.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.positions import Epoch
from lake.layout import Lake
from lake.table_columns import TRANSACTIONS_TABLE
from lake.tables import Tables
from pipeline.typed.changes import TypedChanges
from pipeline.typed.columns import Visible
from schemas import debezium
from schemas.debezium import PLACEHOLDER
from schemas.pg_types import SourceColumn, modifier_of, type_text
from tests.support.services.tier import examples
from tests.support.sources import ddl_rows
from tests.support.sources.ddl_rows import SOURCE, START, TABLE, Folding, Item

_PARAMETER = "__debezium.source.column."
_INFINITE = {"Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY", "NaN": "NAN"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A column's type, its Avro, its values as PostgreSQL prints them, and what is sent of one."""

    source: SourceColumn
    avro: object
    values: Sequence[str]
    sent: Callable[[str], object] = str


def _plain(type_: str, avro: object, values: Sequence[str], sent: Callable[[str], object]) -> Kind:
    return Kind(source=SourceColumn(name="", type=type_), avro=avro, values=values, sent=sent)


def _numeric(modifier: int, values: Sequence[str]) -> Kind:
    """A numeric as the connector sends it by itself."""
    length, scale = ((modifier - 4) >> 16, (modifier - 4) & 0x7FF) if modifier > 0 else (0, 0)
    parameters = {
        f"{_PARAMETER}type": "NUMERIC",
        f"{_PARAMETER}length": str(length),
        f"{_PARAMETER}scale": str(scale),
    }
    return Kind(
        source=SourceColumn(name="", type="numeric", modifier=modifier),
        avro={"type": "string", "connect.parameters": parameters},
        values=values,
        sent=lambda text: _INFINITE.get(text, text),
    )


def _spelled(source: SourceColumn, values: Sequence[str]) -> Kind:
    """Domains and arrays, which come as PostgreSQL's text."""
    parameters = {debezium.TEXT: "1", "penstock.column": type_text(source)}
    avro = {"type": "string", "connect.parameters": parameters}
    return Kind(source=source, avro=avro, values=values)


def _list(type_: str, modifier: int, values: Sequence[str]) -> Kind:
    source = SourceColumn(
        name="", type=type_, modifier=modifier, is_array=True, dimensions=1, delimiter=","
    )
    return _spelled(source, [f"{{{value},NULL}}" for value in values])


def _named(name: str, type_: str) -> dict[str, str]:
    return {"type": type_, "connect.name": f"io.debezium.time.{name}"}


SMALL = ("0", "-7", "32767")
WIDE = (*SMALL, "2147483647", "-2147483648")
WIDEST = (*WIDE, "9223372036854775807")
NUMBERS = ("0.00", "-1.50", "99999999.99", "NaN")
BEYOND = ("Infinity", "-Infinity", "12345678901234567890.123456789", "1.239", "0.001")
ANY = (*NUMBERS, *BEYOND, "9" * 40)
FLOATS = ("0.5", "-2.0", "inf", "-inf", "nan")
DAYS = {"2020-02-29": 18321, "infinity": 2**31 - 1, "0044-03-15 BC": -735160}
MOMENTS = {"2020-01-01 00:00:00": 1577836800000000, "-infinity": -(2**63)}
ZONED = {"2020-01-01 00:00:00+00": "2020-01-01T00:00:00Z", "infinity": "infinity"}
KINDS: Mapping[str, Kind] = {
    "smallint": _plain("int2", {"type": "int", "connect.type": "int16"}, SMALL, int),
    "integer": _plain("int4", "int", WIDE, int),
    "bigint": _plain("int8", "long", WIDEST, int),
    "numeric(10, 2)": _numeric(modifier_of(10, 2), (*NUMBERS, *BEYOND)),
    "numeric(12, 2)": _numeric(modifier_of(12, 2), (*NUMBERS, *BEYOND, "9999999999.99")),
    "numeric(14, 4)": _numeric(modifier_of(14, 4), (*NUMBERS, *BEYOND, "1.2345")),
    "numeric(38, 0)": _numeric(modifier_of(38, 0), ("9" * 38, "NaN", "1.5", "Infinity")),
    "numeric(38, 28)": _numeric(modifier_of(38, 28), (*NUMBERS, "Infinity")),
    "numeric": _numeric(-1, ANY),
    "price": _spelled(
        SourceColumn(name="", type="numeric", modifier=modifier_of(10, 2)), (*NUMBERS, *BEYOND)
    ),
    "dear": _spelled(
        SourceColumn(name="", type="numeric", modifier=modifier_of(14, 4)), (*NUMBERS, *BEYOND)
    ),
    "worth": _spelled(SourceColumn(name="", type="numeric"), ANY),
    "real": _plain("float4", "float", FLOATS, float),
    "double precision": _plain("float8", "double", FLOATS, float),
    "text": _plain("text", "string", ("", "one", "NaN"), str),
    "date": _plain("date", _named("Date", "int"), [*DAYS], DAYS.__getitem__),
    "timestamp": _plain(
        "timestamp", _named("MicroTimestamp", "long"), [*MOMENTS], MOMENTS.__getitem__
    ),
    "timestamptz": _plain(
        "timestamptz", _named("ZonedTimestamp", "string"), [*ZONED], ZONED.__getitem__
    ),
    "integer[]": _list("int4", -1, WIDE),
    "bigint[]": _list("int8", -1, WIDEST),
    "numeric(10, 2)[]": _list("numeric", modifier_of(10, 2), (*NUMBERS, *BEYOND)),
    "numeric(12, 2)[]": _list("numeric", modifier_of(12, 2), (*NUMBERS, *BEYOND)),
    "numeric[]": _list("numeric", -1, ANY),
    "date[]": _list("date", -1, [*DAYS]),
    "timestamptz[]": _list("timestamptz", -1, [f'"{text}"' for text in ZONED]),
}
NUMERIC = frozenset(("int2", "int4", "int8", "numeric", "float4", "float8"))


@pytest.fixture(autouse=True)
def _types(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: (kind.source, kind.avro) for name, kind in KINDS.items()}
    monkeypatch.setattr(ddl_rows, "TYPES", known)


class Typing(Folding):
    """Brings each epoch to the typed table, too."""

    def run(self, entries: Sequence[dict[str, object]]) -> None:
        """Make the next epoch of these log entries."""
        before, held = dict(self.at), dict(self.held)
        numbers = [int(str(entry["transaction_id"])) for entry in entries]
        ends = [
            {
                "table": TRANSACTIONS_TABLE,
                "transaction_id": str(number),
                "lsn": number * 10 + 5,
                "committed_at": START,
                "counts": "{}",
            }
            for number in numbers
        ]
        self.append([*entries, *ends])
        self.fold(entries)
        epoch = Epoch(self.epoch)
        visible = Visible(min(numbers) * 10 - 5, [(epoch, max(numbers) * 10 + 5)])
        attempts = TypedChanges(self.lake, Tables(), self.item.registry).add(
            SOURCE,
            visible,
            epoch,
            pending_from=self.epoch,
            snapshot_lsn=0,
            current=before,
            held=held,
        )
        assert not attempts.failed, attempts.failed

    def facts(self) -> list[dict[str, object]]:
        """Return the facts in their order."""
        rows = Tables().read(self.lake.path(f"typed/{SOURCE}.{TABLE}"))
        assert rows is not None
        return rows.sort_by([("_seq_hi", "ascending")]).to_pylist()


def said(row: Mapping[str, object], name: str) -> list[tuple[str, object]]:
    """Return what a row says of a column: the text beside it, else its values, by their places."""
    own = {each: v for each, v in row.items() if each == name or each.startswith(f"{name}__")}
    beside: dict[str, str] = json.loads(str(row["_exact"])) if row.get("_exact") else {}
    exact = [("_exact", text) for each, text in beside.items() if each in own]
    return exact or [(each, value) for each, value in own.items() if value is not None]


def same(value: object, text: str, kind: SourceColumn) -> bool:
    """Say whether a value of the lake is the one that PostgreSQL prints as `text`."""
    if isinstance(value, list):
        items = [item.strip('"') for item in text.strip("{}").split(",")]
        own = [None if item == "NULL" else item for item in items]
        pairs = zip(value, own, strict=True)
        return all(v is t or (t is not None and same(v, t, kind)) for v, t in pairs)
    if value == text:
        return True
    if kind.type in NUMERIC and isinstance(value, int | float | str | Decimal):
        there, own_number = Decimal(str(value)), Decimal(text)
        return there == own_number or (there.is_nan() and own_number.is_nan())
    return str(value).removesuffix("+00:00") == text.removesuffix("+00")


def walk(data: st.DataObject, item: Item, chains: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Let columns walk through types, with rows of every type; return each fact's values."""
    columns = [item.add(f"c{place}", chain[0]) for place, chain in enumerate(chains)]
    facts: list[dict[str, str]] = []

    def write(operation: str, key: int, *, values: bool = True) -> None:
        own: dict[str, str] = {}
        sent: dict[int, object] = {}
        for column in columns if values else ():
            kind = KINDS[column.type]
            own[column.name] = data.draw(st.sampled_from(kind.values))
            sent[column.attnum] = kind.sent(own[column.name])
        item.write(operation, key, sent)
        facts.append(own)

    for step in range(max(map(len, chains))):
        for column, chain in zip(columns, chains, strict=True):
            column.type = chain[min(step, len(chain) - 1)]
        item.tell(rewritten=4 if step else 0)
        for key in range(3):
            write("u" if step else "c", key)
        for key in range(3):
            # What the source has no value for any more, every type takes.
            write("u", key, values=False)
    return facts


CHAIN = st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=3)


@settings(max_examples=examples(3, matrix=60))
@given(st.data())
def test_p4_every_value_arrives_under_whatever_types_its_column_had(data: st.DataObject) -> None:
    item = Item()
    item.tell("describe")
    chains = data.draw(st.lists(CHAIN, min_size=8, max_size=8))
    facts = walk(data, item, chains)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(item.log)), max_size=2)) | {len(item.log)})
    with tempfile.TemporaryDirectory() as folder:
        typing = Typing(Lake.at(Path(folder) / "one"), item)
        for start, end in zip([0, *cuts], cuts, strict=False):
            if item.log[start:end]:
                typing.run(item.log[start:end])
        rows = typing.facts()
    assert len(rows) == len(facts)
    per_step = len(facts) // max(map(len, chains))
    for number, (row, values) in enumerate(zip(rows, facts, strict=True)):
        for place, chain in enumerate(chains):
            name = f"c{place}"
            kind = KINDS[chain[min(number // per_step, len(chain) - 1)]].source
            found = said(row, name)
            if name not in values:
                assert found == [], (chain, name, row)
                continue
            assert len(found) == 1, (chain, values[name], found)
            assert same(found[0][1], values[name], kind), (chain, values[name], found)


FOLLOWED = (
    ("smallint", "integer", "bigint", "numeric"),
    ("bigint", "integer", "numeric(12, 2)", "numeric(14, 4)"),
    ("bigint", "smallint", "numeric(38, 28)"),
    ("price", "numeric(12, 2)", "dear"),
    ("numeric(10, 2)", "price", "numeric(14, 4)"),
    ("numeric", "worth"),
    ("real", "double precision"),
    ("bigint[]", "integer[]", "numeric(12, 2)[]"),
    ("integer[]", "bigint[]", "numeric[]"),
    ("numeric(10, 2)[]", "numeric(12, 2)[]"),
    ("price", "numeric"),
    ("text", "date"),
    ("numeric(14, 4)", "numeric(10, 2)"),
    ("numeric[]", "date[]"),
)
"""Types one after another; those behind a change that cannot be followed are at the end."""
HELD = {*FOLLOWED[-4:], FOLLOWED[2]}


@pytest.mark.parametrize("chain", FOLLOWED, ids=" ".join)
def test_p4_a_current_row_keeps_its_value_or_its_table_is_held_by_the_column(
    chain: Sequence[str],
) -> None:
    """Row 1 stays as it was written first; row 2 has a wide value, and none before the change."""
    item, first = Item(), KINDS[chain[0]]
    item.tell("describe")
    column = item.add("amount", chain[0])
    staying = [v for v in first.values if v in ("0", "NaN", "{0,NULL}", "{NaN,NULL}", "0.5", "one")]
    for key, text in enumerate(staying, start=1):
        item.write("c", key, {column.attnum: first.sent(text)})
    item.write("c", 9, {column.attnum: first.sent(first.values[-1])})
    item.write("u", 9, {})
    for kind in chain[1:]:
        before, column.type = KINDS[column.type].source, kind
        # PostgreSQL writes no row anew for a domain over the type that a column has.
        item.tell(rewritten=0 if KINDS[kind].source == before else 4)
        item.write("u", 9, {column.attnum: KINDS[kind].sent(KINDS[kind].values[0])})
    with tempfile.TemporaryDirectory() as folder:
        typing = Typing(Lake.at(Path(folder) / "one"), item)
        for start in range(0, len(item.log), 4):
            typing.run(item.log[start : start + 4])
        rows, held = typing.rows(), typing.held
    if chain in HELD:
        assert "amount" in held[TABLE].reason
        return
    assert not held
    kind = KINDS[chain[-1]]
    for row, text in zip(rows, [*staying, kind.values[0]], strict=True):
        found = said(row, "amount")
        assert [same(value, text, kind.source) for _, value in found] == [True], (row, text)


@pytest.mark.parametrize("copied", [False, True], ids=["by_facts", "by_a_copy"])
def test_p4_a_held_tables_facts_have_what_an_update_left_alone(
    tmp_path: Path, copied: bool
) -> None:
    """The table stands still under its older columns, its facts have been under newer ones.

    Of a row that was copied no fact knows the value: the table that stands still does.
    """
    item = Item()
    item.tell("describe")
    paper, name = item.add("paper", "text"), item.add("name", "timestamptz")
    moment = KINDS["timestamptz"].sent("2020-01-01 00:00:00+00")
    item.write("c", 1, {paper.attnum: "a large text", name.attnum: moment})
    typing = Typing(Lake.at(tmp_path / "one"), item)
    if copied:
        Folding.run(typing, item.log)
    else:
        typing.run(item.log)
    told = len(item.log)
    name.type = "timestamp"
    item.tell(rewritten=4)
    typing.run(item.log[told:])
    assert "name" in typing.held[TABLE].reason
    for newer in ("sheet", "page"):
        told, paper.name = len(item.log), newer
        item.tell()
        item.write("u", 1, {paper.attnum: PLACEHOLDER, name.attnum: 1577836800000000})
        typing.run(item.log[told:])
        assert typing.facts()[-1][newer] == "a large text"
