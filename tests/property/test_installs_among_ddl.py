"""Rows of a copy enter a typed table between changes of its columns, in whatever epochs they come.

The rows that a copy read have the names of then; each fact has its values under the names of now.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.install_book import Install
from pipeline.typed.changes import TypedChanges
from pipeline.typed.columns import Visible
from pipeline.typed.installs import Entering, TypedInstalls
from schemas.lake_columns import captured_column
from tests.support.services.tier import examples
from tests.support.sources.ddl_copies import TYPED, Rounds, copied, ended
from tests.support.sources.ddl_rows import SOURCE, Column, Item

Fact = Mapping[int, object]
"""Values of a row by attnum, as they were when it was written or read."""


@dataclass
class History:
    """A source under DDL, the facts that it has to leave behind, and a copy amid them."""

    lake: Lake
    item: Item = field(default_factory=Item)
    facts: list[Fact] = field(default_factory=list)
    read_behind: int = 0
    """Entries of the log behind which the copy read."""
    copy: Install | None = None

    def write(self, operation: str, key: int) -> None:
        """Write a row whose values tell where they were written."""
        place = len(self.item.log)
        values: dict[int, object] = {c.attnum: f"{c.attnum}@{place}" for c in self.others}
        self.item.write(operation, key, values)
        self.facts.append({1: key, **values})

    @property
    def others(self) -> Sequence[Column]:
        """Columns beside the key."""
        return self.item.columns[1:]

    def read(self) -> None:
        """Copy the table as it is."""
        self.read_behind = len(self.item.log)
        self.copy = copied(self)
        for key, row in sorted(self.item.rows.items()):
            self.facts.append({1: key, **{c.attnum: row.get(c.attnum) for c in self.others}})

    def alter(self, data: st.DataObject) -> None:
        """Add, rename or drop a column, or let two change their names."""
        others = self.item.columns[1:]
        kinds = ["add"] + ["rename", "drop"] * bool(others) + ["swap"] * (len(others) > 1)
        match data.draw(st.sampled_from(kinds)):
            case "add":
                # A name is used again only where another column gave it up.
                self.item.add(f"c{self.item.attnum + 1}", "text")
            case "rename":
                column = data.draw(st.sampled_from(others))
                column.name = data.draw(st.sampled_from(("_late", "__op", "name", "more")))
                if [c.name for c in self.item.columns].count(column.name) > 1:
                    column.name = f"r{len(self.item.log)}"
                self.item.tell(renamed=column.attnum)
            case "swap":
                one, other = others[0], others[-1]
                one.name, other.name = other.name, one.name
                self.item.tell(renamed=one.attnum)
            case _:
                self.item.drop(data.draw(st.sampled_from(others)))


def drawn(data: st.DataObject, lake: Lake) -> History:
    """Draw a history of some changes, rows and DDL, with a copy amid them."""
    history = History(lake)
    history.item.tell("describe")
    history.item.add("c2", "text")
    history.write("c", 1)
    steps = data.draw(st.lists(st.sampled_from(("write", "alter")), min_size=2, max_size=8))
    copy_at = data.draw(st.integers(0, len(steps)))
    for place, step in enumerate([*steps, "write"]):
        if place == copy_at:
            history.read()
        if step == "write":
            history.write("u", 1)
        else:
            history.alter(data)
    return history


class Bringing(Rounds):
    """Brings epochs, and the copy with the one in which it is due, to the typed table."""

    def bring_up_to(self, history: History, start: int, cuts: Sequence[int]) -> None:
        """Make epochs of the log from entry `start` up to each of the cuts; bring all at once."""
        before = self.made()
        epochs: list[tuple[Epoch, int]] = []
        entering: dict[str, Entering] = {}
        for first, end in zip([start, *cuts], cuts, strict=False):
            own = self.item.log[first:end]
            self.append([*own, *map(ended, own)])
            epochs.append((Epoch(self.epoch), end * 10 + 5))
            if first < history.read_behind <= end:
                typed = TypedInstalls(self.lake, self.tables)
                assert history.copy is not None
                install = (history.copy, Epoch(self.epoch))
                entering = {TYPED: Entering(typed=typed, installs=[install])}
        # A repetition finds what the attempt before it left, and does nothing.
        for tables in (Tables(), Tables()):
            found = TypedChanges(self.lake, tables, self.item.registry).add(
                SOURCE,
                Visible(start * 10 + 5 if start else 0, epochs),
                Epoch(self.epoch),
                pending_from=1,
                snapshot_lsn=0,
                current={},
                brought=before,
                entering=entering,
            )
            assert not found.failed, found.failed


@settings(max_examples=examples(5, matrix=150))
@given(st.data())
def test_p4_rows_of_a_copy_follow_the_columns_that_changed_after_they_were_read(
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = drawn(data, Lake.at(Path(folder)))
        item, end = history.item, len(history.item.log)
        cuts = sorted(data.draw(st.sets(st.integers(1, end), max_size=3)) | {end})
        rounds = data.draw(st.integers(0, len(cuts) - 1))
        bringing = Bringing(history.lake, item)
        if rounds:
            bringing.bring_up_to(history, 0, cuts[:rounds])
        bringing.bring_up_to(history, cuts[rounds - 1] if rounds else 0, cuts[rounds:])
        rows = Tables().read(history.lake.path(TYPED))
    assert rows is not None
    found = rows.sort_by([("_seq_hi", "ascending"), ("_seq_lo", "ascending")]).to_pylist()
    names = {column.attnum: captured_column(column.name) for column in item.columns}
    wanted = [{n: fact.get(attnum) for attnum, n in names.items()} for fact in history.facts]
    assert [{n: row[n] for n in names.values()} for row in found] == wanted
