"""Any DDL among any rows, cut into epochs anywhere, gives the source's own table."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lake.layout import Lake
from tests.support.services.tier import examples
from tests.support.sources.ddl_rows import Folding, Item, read

NAMES = ("a", "b", "c")
WIDER = {"int4": "int8"}
DEFAULTS = {"int4": "5", "int8": "5", "text": "x, \"y'", "bool": "t"}


def happen(data: st.DataObject, item: Item) -> None:
    """Let one thing happen to the source."""
    free = [name for name in NAMES if name not in {c.name for c in item.columns}]
    others = item.columns[1:]
    kinds = ["write"] * 4 + ["add"] * bool(free) + ["delete"] * bool(item.rows)
    kinds += (["drop", "retype"] + ["rename"] * bool(free)) if others else []
    match data.draw(st.sampled_from(kinds)):
        case "write":
            key = data.draw(st.integers(1, 4))
            values = {
                c.attnum: data.draw(st.sampled_from([None, read(c.type, DEFAULTS[c.type])]))
                for c in others
            }
            item.write("u" if key in item.rows else "c", key, values)
        case "delete":
            item.write("d", data.draw(st.sampled_from(sorted(item.rows))))
        case "add":
            kind = data.draw(st.sampled_from(sorted(DEFAULTS)))
            missing = data.draw(st.sampled_from([None, DEFAULTS[kind]]))
            item.add(data.draw(st.sampled_from(free)), kind, missing)
        case "drop":
            item.drop(data.draw(st.sampled_from(others)))
        case "rename":
            data.draw(st.sampled_from(others)).name = data.draw(st.sampled_from(free))
            item.tell()
        case "retype":
            column = data.draw(st.sampled_from(others))
            column.type = WIDER.get(column.type, column.type)
            item.tell(rewritten=0)


@settings(max_examples=examples(4, matrix=10))
@given(st.data())
def test_p4_columns_follow_ddl_wherever_epochs_are_cut(data: st.DataObject) -> None:
    item = Item()
    item.tell("describe")
    item.write("c", 1)
    for _ in range(data.draw(st.integers(1, 14))):
        happen(data, item)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(item.log)), max_size=6)) | {len(item.log)})
    with tempfile.TemporaryDirectory() as folder:
        folding = Folding(Lake(f"{folder}/some"), item)
        for start, end in zip([0, *cuts], cuts, strict=False):
            folding.run(item.log[start:end])
        assert folding.held == {}
        assert folding.rows([column.name for column in item.columns]) == item.expected()
        whole = Folding(Lake(str(Path(folder) / "whole")), item)
        whole.run(item.log)
        assert whole.rows([column.name for column in item.columns]) == item.expected()
