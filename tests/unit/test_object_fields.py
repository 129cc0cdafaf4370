"""Fields of events that other versions of their schema have otherwise."""

from __future__ import annotations

import pyarrow as pa
from deltalake import write_deltalake

from lake.layout import Lake
from lake.tables import Tables
from pipeline.ddl.table_rewrites import fit, joined
from schemas.widening import event_type


def address(field: str, **more: object) -> dict[str, object]:
    """Return an object whose first field is spelled as given, alone, in a list and in a map."""
    one = {field: "10115"} | more
    return {"at": one, "among": [one, None], "by": [("home", one)]}


def addresses(kind: pa.DataType, *rows: object) -> pa.Table:
    columns = [("at", kind), ("among", pa.list_(kind)), ("by", pa.map_(pa.string(), kind))]
    return pa.Table.from_pylist(rows, schema=pa.schema(columns))


def test_a_field_of_an_object_keeps_the_letter_case_that_it_came_with(lake: Lake) -> None:
    """Engines read names without letter case: an object cannot have both `Zip` and `zip`."""
    first = addresses(pa.struct([("Zip", pa.string())]), address("Zip"))
    later = addresses(
        pa.struct([("city", pa.string()), ("zip", pa.string())]),
        address("zip", city="Berlin"),
        {"at": None, "among": None, "by": None},
        {"at": {"zip": None}, "among": [], "by": []},
    )
    whole = joined([first, later], event_type)
    assert whole["at"].type == pa.struct([("Zip", pa.string()), ("city", pa.string())])
    both = {"Zip": "10115", "city": "Berlin"}
    assert whole.to_pylist()[:2] == [address("Zip", city=None), address("Zip", city="Berlin")]
    assert whole["at"].to_pylist()[1:] == [both, None, {"Zip": None, "city": None}]
    path, tables = lake.path("typed/events.order.placed"), Tables()
    tables.ensure(path, first.schema)
    assert fit(tables, path, later.slice(1), event_type).to_pylist() == whole.to_pylist()[2:]
    assert fit(tables, path, later, event_type).to_pylist() == whole.to_pylist()[1:]


def test_text_that_becomes_bytes_is_its_bytes(lake: Lake) -> None:
    text, raw = pa.table({"v": ["ü", None]}), pa.table({"v": [b"\xff"]})
    assert joined([text, raw], event_type)["v"].to_pylist() == ["ü".encode(), None, b"\xff"]
    assert joined([raw, text], event_type)["v"].to_pylist() == [b"\xff", "ü".encode(), None]
    path, tables = lake.path("typed/events.order.placed"), Tables()
    tables.ensure(path, text.schema)
    write_deltalake(path, text, mode="append")
    tables.forget(path)
    assert fit(tables, path, raw, event_type).to_pylist() == raw.to_pylist()
    assert sorted(tables.read(path)["v"].to_pylist(), key=str) == [None, "ü".encode()]
    assert fit(tables, path, text, event_type)["v"].to_pylist() == ["ü".encode(), None]
