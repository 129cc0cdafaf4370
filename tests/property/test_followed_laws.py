"""Wherever epochs, rounds, copies and restarts fall: rows, facts and versions are the source's."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lake.layers import read_whole
from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.install_book import Install
from pipeline.position.progress import Progress
from schemas.debezium import PLACEHOLDER
from schemas.lake_columns import captured_column
from tests.property.test_installs_among_ddl import History
from tests.support.lake.followed_item import HISTORY, NAME, FollowedItem
from tests.support.services.tier import examples
from tests.support.sources.ddl_copies import copied
from tests.support.sources.ddl_rows import START

STEPS = (
    "write",
    "write",
    "write",
    "delete",
    "alter",
    "read",
    "announce",
    "epoch",
    "bring",
    "fresh",
)
END = ("write", "announce", "epoch", "bring")
Placed = tuple[float, dict[int, object]]


@dataclass
class Walk:
    """Lets a source and who follows it do one step after the other."""

    data: st.DataObject
    lake: Lake
    history: History = field(init=False)
    facts: list[Placed] = field(default_factory=list)
    staged: list[Install] = field(default_factory=list)
    copies: int = 0

    def __post_init__(self) -> None:
        self.history = History(self.lake)
        self.item = self.history.item
        self.followed = FollowedItem(self.lake, item=self.item, histories=[HISTORY])
        self.item.tell("describe")
        self.item.add("c2", "text")

    def take(self, step: str) -> None:
        """Do a step."""
        rows = sorted(self.item.rows)
        match step:
            case "write":
                key = self.data.draw(st.integers(1, 2))
                self.write("u" if key in rows else "c", key)
            case "delete" if rows:
                self.write("d", self.data.draw(st.sampled_from(rows)))
            case "alter":
                self.history.alter(self.data)
            case "read" if rows and not self.staged and self.copies < 2:
                self.read()
            case "announce":
                for install in self.staged:
                    self.followed.announce(install)
                self.staged = []
            case "epoch":
                self.followed.epoch()
            case "bring":
                assert not self.followed.bring().held
            case "fresh":
                self.followed.restart()

    def write(self, operation: str, key: int) -> None:
        """Write a row; an update may leave values alone."""
        place, old = len(self.item.log), self.item.rows.get(key, {})
        fact: dict[int, object] = {1: key}
        sent: dict[int, object] = {}
        for column in self.history.others if operation != "d" else ():
            at = column.attnum
            leaves = operation == "u" and old.get(at) is not None and self.data.draw(st.booleans())
            fact[at] = old[at] if leaves else f"{at}@{place}"
            sent[at] = PLACEHOLDER if leaves else fact[at]
        self.item.write(operation, key, sent)
        now = START + timedelta(seconds=place)
        self.item.log[-1] |= {"committed_at": now, "event_time": now}
        self.facts.append((place, fact))
        if operation != "d":
            self.item.rows[key] = dict(fact)

    def read(self) -> None:
        """Copy the table."""
        self.copies += 1
        self.staged.append(replace(copied(self.followed, id_=f"i{self.copies}"), number=0))
        place = len(self.item.log) - 0.5
        for row in self.item.rows.values():
            self.facts.append((place, {c.attnum: row.get(c.attnum) for c in self.item.columns}))


@settings(max_examples=examples(3, matrix=120))
@given(st.data())
def test_p6_nothing_depends_on_where_epochs_rounds_and_copies_fall(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(data, Lake.at(Path(folder)))
        for step in [*data.draw(st.lists(st.sampled_from(STEPS), min_size=3, max_size=18)), *END]:
            walk.take(step)
        followed, item = walk.followed, walk.item
        last = followed.manifest.last()
        assert last is not None
        assert not followed.ingest.held().get("shop")
        assert not Progress.from_json(last.progress).declined
        names = {c.attnum: captured_column(c.name) for c in item.columns}
        current = read_whole(walk.lake, Tables(), NAME, at=last.tables)
        assert current is not None
        assert current.sort_by(names[1]).select([*names.values()]).to_pylist() == [
            {name: row.get(at) for at, name in names.items()}
            for _, row in sorted(item.rows.items())
        ]
        facts = sorted(walk.facts, key=lambda fact: (fact[0], int(str(fact[1][1]))))
        assert followed.facts(*names.values()) == [
            tuple(fact.get(at) for at in names) for _, fact in facts
        ]
        again = replace(HISTORY, name="history/again")
        followed.histories = [HISTORY, again]
        followed.bring()
        assert versions(walk.lake, HISTORY.name) == versions(walk.lake, again.name)


def versions(lake: Lake, name: str) -> list[dict[str, object]]:
    """Return what a history holds, whenever it came to that."""
    rows = Tables().read(lake.path(name))
    assert rows is not None
    rows = rows.drop_columns(["_epoch"]).sort_by([("id", "ascending"), ("valid_from", "ascending")])
    return list(rows.select(sorted(rows.schema.names)).to_pylist())
