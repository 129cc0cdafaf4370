"""The lake that is measured: two logs and two captured tables with a history, and what comes then.

A longer history is of more accounts and of a longer time: about twenty payments an account, and as
many rows an hour. What comes is of accounts all over, and a twentieth of it of any time there was.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.loaded_epoch import commit_load
from benchmarks.operators.queries import statements
from kernel.positions import Epoch
from lake.layout import Lake
from lake.table_columns import UTC_MICROS
from lake.tables import TableAt, Tables
from lake.writer import UPSERT, ArrowWriter, Guard, with_op
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Projected
from pipeline.typed.columns import EVENT_COLUMNS
from projections.run.catalog import CAPTURE, LIVE, PROJECTION, DeployedCatalog, Entry

LOGS = {"typed/events.account.paid": 1.0, "typed/events.account.done": 0.25}
"""The typed tables of the logs, and how many rows they have beside the rows that are asked for."""
TABLES = {"shop.public.rates": "account", "shop.public.kinds": "id"}
SHOPS, KINDS, PER_ACCOUNT = 1_000, 1_000, 20
LATE_PART = 0.05
"""Of what comes, so much is of any time there was."""
_APART_US = 2_592_000
"""Between two payments: a million in thirty days."""
_RECENT_US = 3_600_000_000
_FILE_ROWS = 500_000
_Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class OperatorWorld:
    """A lake with so many payments. `came` epochs came behind them, a part of each is late."""

    lake: Lake
    rows: int
    tables: Tables = field(default_factory=Tables)
    came: int = 1
    late_part: float = LATE_PART

    @property
    def accounts(self) -> int:
        """How many accounts there are."""
        return max(1, self.rows // PER_ACCOUNT)

    @property
    def ends_us(self) -> int:
        """When the history ends, in microseconds since 1970."""
        return self.rows * _APART_US

    def fill(self) -> None:
        """Write history, and deploy all projections."""
        manifest, at = Manifest(self.lake, self.tables), dict[str, TableAt]()
        commit_load(manifest, Epoch(1), self.rows)
        writer = ArrowWriter(self.tables)
        for name, part in LOGS.items():
            version, rows = 0, int(self.rows * part)
            for number, first in enumerate(range(0, rows, _FILE_ROWS), start=1):
                numbers = np.arange(first, min(first + _FILE_ROWS, rows))
                chance = np.random.default_rng([first, len(name)])
                facts = self._facts(numbers, numbers * self.ends_us // rows, chance, 1)
                version = writer.append(self.lake.path(name), facts, Guard(name, Epoch(number)))
            at[name] = TableAt(version=version, as_of_epoch=1)
        for name, version in self._fill_tables(writer).items():
            at[name] = TableAt(version=version, as_of_epoch=1)
        manifest.project(Projected(epoch=Epoch(1), name="typed", tables=at))
        keys = {name.removeprefix("shop."): [key] for name, key in TABLES.items()}
        self.deploy({"shop": json.dumps(keys)}, CAPTURE)
        self.deploy(statements())

    def deploy(self, texts: Mapping[str, str], kind: str = PROJECTION) -> None:
        """Deploy what has these texts, by name."""
        entries = [
            Entry(kind=kind, name=name, generation=1, status=LIVE, text=text)
            for name, text in texts.items()
        ]
        DeployedCatalog(self.lake, self.tables).put(entries)

    def copied(self, folder: Path) -> OperatorWorld:
        """Return the same in another folder, for one projection: files that nobody writes to."""
        shutil.copytree(self.lake.root, folder, copy_function=os.link)
        return replace(self, lake=Lake.at(folder), tables=Tables())

    def change(self, count: int) -> Epoch:
        """Let so many payments come, and a quarter of that of the others; a few rates change."""
        self.came += 1
        epoch, writer = Epoch(self.came), ArrowWriter(self.tables)
        for name, part in LOGS.items():
            chance = np.random.default_rng([self.came, len(name)])
            numbers = self.rows + self.came * count + np.arange(int(count * part))
            recent = self.ends_us + self.came * _RECENT_US
            times = recent + chance.integers(0, _RECENT_US, numbers.size)
            late = chance.random(numbers.size) < self.late_part
            times[late] = chance.integers(0, self.ends_us, int(late.sum()))
            facts = self._facts(numbers, times, chance, self.came)
            writer.append(self.lake.path(name), facts, Guard(name, Epoch(1_000_000 + epoch)))
        return epoch

    def change_table(self, count: int) -> None:
        """Let the rates of so many accounts get another version, in the epoch that came last."""
        apart = max(1, self.accounts // count)
        # Of another epoch they are others: of each the first version ends.
        accounts = np.arange(self.came % apart, self.accounts, apart)
        at = self.ends_us + self.came * _RECENT_US
        ended = _versions(self._rates(accounts, 1), 0, at)
        begun = _versions(self._rates(accounts, self.came), at, None)
        rows = pa.concat_tables([ended, begun])
        rows = rows.append_column("_epoch", pa.repeat(pa.scalar(self.came, pa.int64()), len(rows)))
        name = "history/shop.public.rates"
        ArrowWriter(self.tables).merge(
            self.lake.path(name),
            with_op(rows, UPSERT),
            Guard(name, Epoch(self.came)),
            keys=("account", "valid_from"),
        )

    def _fill_tables(self, writer: ArrowWriter) -> dict[str, int]:
        """Write the histories of the tables, and a row of each as its typed table has them."""
        rates = self._rates(np.arange(self.accounts), 1)
        kinds = pa.table({"id": np.arange(KINDS), "kind": pa.array(np.arange(KINDS) % 7)})
        found: dict[str, int] = {}
        for name, rows in {"shop.public.rates": rates, "shop.public.kinds": kinds}.items():
            numbers = np.arange(rows.num_rows)
            versions = _versions(rows, 0, None)
            stamped = versions.append_column(
                "_epoch", pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
            )
            history, typed = f"history/{name}", f"typed/{name}"
            found[history] = writer.append(
                self.lake.path(history), stamped, Guard(history, Epoch(1))
            )
            times = pa.array(numbers[:1]).cast(UTC_MICROS)
            row = {each: rows[each].slice(0, 1) for each in rows.column_names}
            row |= {"committed_at": times, "_operation": pa.array(["r"])}
            row |= _stamps(numbers[:1], times, 1)
            found[typed] = writer.append(
                self.lake.path(typed), pa.table(row), Guard(typed, Epoch(1))
            )
        return found

    def _rates(self, accounts: _Numbers, epoch: int) -> pa.Table:
        return pa.table(
            {
                "account": accounts,
                "rate": (accounts + epoch) % 97 / 100,
                "kind_id": (accounts + epoch) % KINDS,
            }
        )

    def _facts(
        self, numbers: _Numbers, times_us: _Numbers, chance: np.random.Generator, epoch: int
    ) -> pa.Table:
        amounts, nothing = chance.integers(1, 10_000, numbers.size), pa.nulls(numbers.size)
        times = pa.array(times_us.astype(np.int64)).cast(UTC_MICROS)
        columns: Mapping[str, pa.Array] = {
            "account": pa.array(chance.integers(0, self.accounts, numbers.size)),
            "shop": pa.array(chance.integers(0, SHOPS, numbers.size)),
            "amount": pa.array(amounts),
            "price": pa.array(amounts / 100),
            **dict.fromkeys(("event_id", "stream", "entity_id", "type"), nothing),
            "version": pa.array(numbers),
            "position": pa.array(numbers + 1),
            "occurred_at": times,
            "recorded_at": times,
            **_stamps(numbers, times, epoch),
        }
        kinds = {each.name: each.type for each in EVENT_COLUMNS}
        return pa.table({n: each.cast(kinds.get(n, each.type)) for n, each in columns.items()})


def _versions(rows: pa.Table, begin_us: int, end_us: int | None) -> pa.Table:
    """Return versions of rows that hold from a moment on, up to another one where there is one."""
    count = rows.num_rows
    place, end = (pa.repeat(pa.scalar(us, pa.int64()), count) for us in (begin_us, end_us))
    columns = {
        "valid_from": place.cast(UTC_MICROS),
        "valid_to": end.cast(UTC_MICROS),
        "_deleted": pa.repeat(pa.scalar(False), count),
        "_seq_hi": place,
        "_seq_lo": pa.repeat(pa.scalar(0, pa.int64()), count),
    }
    for name, values in columns.items():
        rows = rows.append_column(name, values)
    return rows


def _stamps(numbers: _Numbers, times: pa.Array, epoch: int) -> dict[str, pa.Array]:
    return {
        "_epoch": pa.array(np.full(numbers.size, epoch, np.int64)),
        "_late": pa.array(np.zeros(numbers.size, bool)),
        "_time": times,
        "_seq_hi": pa.array(numbers),
        "_seq_lo": pa.array(np.zeros(numbers.size, np.int64)),
        "_ingested_at": times,
    }
