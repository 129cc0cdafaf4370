"""Transactions on one small table, as typed rows and as an independent model of its history."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from lake.table_columns import UTC_MICROS

START = datetime(2013, 1, 1, tzinfo=UTC)
BEFORE_ALL = -1
"""Place of a row that a later snapshot read: before all rows of the next transaction."""
TYPED_BY = (
    ("committed_at", UTC_MICROS),
    ("_operation", pa.string()),
    ("_late", pa.bool_()),
    ("_time", UTC_MICROS),
    ("_seq_hi", pa.int64()),
    ("_seq_lo", pa.int64()),
    ("_epoch", pa.int64()),
    ("_ingested_at", UTC_MICROS),
)
"""What a typed table has behind the columns of its source."""
TYPED = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        *TYPED_BY,
        ("_transaction", pa.string()),
        ("_lsn", pa.int64()),
    ]
)
TRUNCATES = pa.schema(
    [("table", pa.string()), *[f for f in TYPED if f.name.startswith("_")]],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One row of a transaction: `operation` in Debezium's letters."""

    operation: str
    id: int | None
    name: str | None
    transaction: int | None
    second: int
    hi: int
    lo: int
    lsn: int

    def row(self, epoch: int) -> dict[str, object]:
        at = START + timedelta(seconds=self.second)
        return {
            "id": self.id,
            "table": "public.people",
            "name": self.name,
            "committed_at": at,
            "_operation": self.operation,
            "_late": False,
            "_time": at,
            "_seq_hi": self.hi,
            "_seq_lo": self.lo,
            "_epoch": epoch,
            "_ingested_at": START,
            "_transaction": None if self.transaction is None else str(self.transaction),
            "_lsn": self.lsn,
        }


def typed(facts: Sequence[Fact], epoch: int) -> pa.Table:
    rows = [fact.row(epoch) for fact in facts if fact.operation != "t"]
    return pa.Table.from_pylist([{n: r[n] for n in TYPED.names} for r in rows], TYPED)


def truncates(facts: Sequence[Fact], epoch: int) -> pa.Table:
    rows = [fact.row(epoch) for fact in facts if fact.operation == "t"]
    return pa.Table.from_pylist([{n: r[n] for n in TRUNCATES.names} for r in rows], TRUNCATES)


@dataclass
class Writer:
    """A table that transactions write to; notes what Debezium would say of them."""

    chance: random.Random
    clears: float = 0.01
    names: Sequence[str] = ("ann", "bob", "cy")
    rows: dict[int, str] = field(default_factory=dict)
    number: int = 0
    lsn: int = 0
    second: int = 0

    def snapshot(self, rows: dict[int, str], *, later: bool = False) -> list[Fact]:
        """Read rows: at the very beginning, or again between two transactions."""
        hi, lo = (self.number + 1, BEFORE_ALL) if later else (0, 0)
        self.rows.update(rows)
        return [self._fact("r", id_, name, None, hi, lo) for id_, name in rows.items()]

    def transaction(self, keys: int = 12) -> list[Fact]:
        """Do one to four statements; the clock may stand still, or go back a little."""
        self.number += 1
        self.second += self.chance.choice([-1, 0, 1, 5, 5])
        facts: list[Fact] = []
        for _ in range(self.chance.randint(1, 4)):
            self.lsn += 1
            for operation, id_, name in self._statement(keys):
                lo = len(facts) + 1
                facts.append(self._fact(operation, id_, name, self.number, self.number, lo))
        return facts

    def _statement(self, keys: int) -> list[tuple[str, int | None, str | None]]:
        if self.chance.random() < self.clears:
            self.rows.clear()
            return [("t", None, None)]
        id_ = self.chance.randrange(keys)
        name = self.chance.choice(self.names)
        if id_ not in self.rows:
            self.rows[id_] = name
            return [("c", id_, name)]
        free = [k for k in range(keys) if k not in self.rows]
        match self.chance.choice(["u", "u", "d", "move"]):
            case "move" if free:
                to = self.chance.choice(free)
                self.rows[to] = self.rows.pop(id_)
                return [("d", id_, None), ("c", to, self.rows[to])]
            case "d":
                del self.rows[id_]
                return [("d", id_, None)]
            case _:
                self.rows[id_] = name
                return [("u", id_, name)]

    def _fact(
        self, operation: str, id_: int | None, name: str | None, tx: int | None, hi: int, lo: int
    ) -> Fact:
        return Fact(
            operation=operation,
            id=id_,
            name=name,
            transaction=tx,
            second=self.second,
            hi=hi,
            lo=lo,
            lsn=self.lsn,
        )


Version = dict[str, object]


def expected(facts: Sequence[Fact]) -> list[Version]:
    """Walk the facts one by one in the source's order, without windows or joins."""
    ordered = sorted(facts, key=lambda f: (f.hi, f.lo))
    before: dict[tuple[int, int], Fact] = {(f.hi, f.lo): f for f in ordered if f.transaction}
    told: dict[int, list[Version]] = {}
    newest: dict[int, datetime] = {}
    state: dict[int, str | None] = {}
    for fact in ordered:
        at = START + timedelta(seconds=fact.second)
        if fact.operation == "t":
            for id_ in [i for i, name in state.items() if name is not None]:
                _tell(told, newest, id_, None, at, fact, None, None)
                state[id_] = None
            continue
        id_ = fact.id
        assert id_ is not None
        if fact.operation == "r" and state.get(id_) == fact.name:
            continue
        previous = _other_half(before.get((fact.hi, fact.lo - 1)), fact, "d", "c")
        following = _other_half(before.get((fact.hi, fact.lo + 1)), fact, "c", "d")
        _tell(told, newest, id_, fact.name, at, fact, previous, following)
        state[id_] = fact.name
    return [row for id_ in sorted(told) for row in _closed(told[id_])]


def _other_half(near: Fact | None, fact: Fact, its: str, mine: str) -> str | None:
    if near is None or (near.operation, fact.operation) != (its, mine) or near.lsn != fact.lsn:
        return None
    return json.dumps({"id": near.id}, separators=(",", ":"))


def _tell(
    told: dict[int, list[Version]],
    newest: dict[int, datetime],
    id_: int,
    name: str | None,
    at: datetime,
    fact: Fact,
    previous: str | None,
    following: str | None,
) -> None:
    newest[id_] = max(newest.get(id_, at), at)
    versions = told.setdefault(id_, [])
    if versions and versions[-1]["valid_from"] == newest[id_]:
        replaced = versions.pop()
        previous = max((k for k in (previous, replaced["_previous_key"]) if k), default=None)
    versions.append(
        {
            "id": id_,
            "name": name,
            "valid_from": newest[id_],
            "_deleted": name is None,
            "_seq_hi": fact.hi,
            "_seq_lo": fact.lo,
            "_transaction": None if fact.transaction is None else str(fact.transaction),
            "_previous_key": previous,
            "_next_key": following,
        }
    )


def _closed(versions: list[Version]) -> list[Version]:
    ends = [version["valid_from"] for version in versions[1:]] + [None]
    return [version | {"valid_to": end} for version, end in zip(versions, ends, strict=True)]
