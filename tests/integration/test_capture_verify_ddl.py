"""A comparison amid DDL tells no difference that is none: equal, looked at again later, or held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from cdc.columns import set_text_output
from cdc.database import connected
from cdc.verification.comparison import Captured, Comparison
from cdc.verification.reports import TableReport
from cdc.verification.source_rows import NOTHING, GroupHash, SourceTable, Split, group_hashes
from kernel.errors import NotComparable
from kernel.positions import Epoch, Lsn, lsn_from_text
from lake.layout import Lake
from lake.tables import Tables
from pipeline.verification.as_of import StateReader
from pipeline.verification.hashing import LakeRows
from tests.support.sources.mirroring import Mirror, mirrored

DDL = {
    "renamed": "RENAME a TO b",
    "widened": "ALTER a TYPE bigint",
    "computed": "ALTER a TYPE text USING a::text || 'x'",
    "defaulted": "ADD c int DEFAULT 7",
    "added": "ADD c int",
    "dropped": "DROP a",
    "replaced": "DROP a, ADD a text",
    "again": "DROP a, ADD a int",
    "key": "RENAME id TO number",
    "keyless": "DROP CONSTRAINT keyless_pkey, ADD PRIMARY KEY (id, n)",
    "away": "RENAME TO gone",
}
HELD = {"computed": "USING", "keyless": "primary key"}
"""What the report of a table says that cannot be followed."""
AS_IT_IS = ("added", "dropped")
"""Tables whose files the epoch behind the DDL does not write anew: they are compared amid it."""
TABLES = tuple(f"public.{name}" for name in DDL)


def creation() -> str:
    return "\n".join(
        f"CREATE TABLE {name} (id int PRIMARY KEY, n int NOT NULL, a int);"
        f"INSERT INTO {name} SELECT g, g, g FROM generate_series(1, 6) g;"
        for name in DDL
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the source held at an LSN: its tables as they were described, and their hashes."""

    lsn: Lsn
    found: dict[str, tuple[SourceTable, GroupHash]]


@dataclass
class Amid:
    """A mirrored source that is altered, and what it held in between."""

    mirror: Mirror
    looks: list[Look] = field(default_factory=list)

    def write(self, name: str, number: int) -> list[str]:
        """Insert, update and delete, in a table whose columns have any name by now."""
        key = "number" if name == "key" and number > 10 else "id"
        return [
            f"INSERT INTO {name} ({key}, n) VALUES ({number}, {number})",
            f"UPDATE {name} SET n = n + 100 WHERE {key} % 3 = {number % 3}",
            f"DELETE FROM {name} WHERE {key} = {number % 10}",
        ]

    def alter(self, name: str) -> None:
        """Alter a table, with rows before and behind it: in its transaction, and by themselves."""
        later = "gone" if name == "away" else name
        altering = f"ALTER TABLE {name} {DDL[name]}"
        self.mirror.execute(*self.write(name, 9), altering, *self.write(later, 11))
        self.mirror.execute(*self.write(later, 12))
        self.look(name)

    def look(self, *names: str) -> None:
        """Hash tables of the source as it is now; all without arguments."""
        with connected(self.mirror.dsn) as connection:
            set_text_output(connection)
            at = connection.execute("SELECT pg_current_wal_insert_lsn()::text AS lsn").fetchone()
            assert at is not None
            found = {}
            for captured in self.captured(*names):
                table = captured.described(connection)
                hashed = group_hashes(connection, table, Split()).get(0, NOTHING)
                found[captured.table] = table, hashed
        self.looks.append(Look(lsn=lsn_from_text(str(at["lsn"])), found=found))

    def captured(self, *names: str) -> list[Captured]:
        """Return those tables that are there still, by the keys that they have now."""
        with psycopg.connect(self.mirror.dsn) as connection:
            rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname='public'")
            there = [str(row[0]) for row in rows.fetchall()]
        wanted = [f"public.{name}" for name in names or DDL if name in there]
        return self.mirror.captured(*wanted) if wanted else []

    def compare(self) -> dict[str, TableReport]:
        """Compare all tables; an epoch is made whenever the comparison waits for one."""
        comparison = Comparison(
            self.mirror.lake,
            Tables(),
            self.mirror.registry(),
            sleep=lambda _: self.mirror.epochs.run(),
        )
        reports = comparison.compare(self.mirror.dsn, self.captured(), timeout_s=120)
        return {report.table.removeprefix("public."): report for report in reports}


@pytest.fixture
def amid(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, new_source: Callable[[str], str]
) -> Iterator[Amid]:
    with mirrored(stack, spark, lake, prefix, new_source(creation()), TABLES) as mirror:
        mirror.catch_up()
        yield Amid(mirror)


def seen_at(reader: StateReader, source: str, since: Epoch, look: Look) -> dict[str, str]:
    """Say of each table what the lake had at a look: `equal`, `differs`, or `later`."""
    between = reader.around(source, look.lsn, since=since)
    assert between is not None, look.lsn
    verdicts = {}
    for name, (table, wanted) in look.found.items():
        try:
            state = reader.table(source, name, between, key=table.lake_key, soft=False).state
        except NotComparable:
            verdicts[name] = "later"
            continue
        rows, digest = (
            LakeRows(state, table.lake_names, None).group_hashes((), 1).get(0, (0, "0" * 32))
        )
        same = (rows, digest) == (wanted.rows, wanted.hash)
        verdicts[name] = "equal" if same else f"differs: {rows} rows of {wanted.rows}"
    return verdicts


@pytest.mark.matrix
def test_p4_no_comparison_amid_ddl_tells_a_difference(amid: Amid) -> None:
    mirror, since = amid.mirror, amid.mirror.epochs.ingest.last
    assert since is not None
    amid.look()
    for name in DDL:
        amid.alter(name)
    reports = amid.compare()
    assert not any(report.differences.any for report in reports.values()), reports
    for name, report in reports.items():
        assert report.equal is (name not in HELD), report
        assert HELD.get(name, "") in (report.held or "")
    amid.look()
    mirror.catch_up()
    reader = StateReader(mirror.lake, Tables(), mirror.registry())
    before, *others, behind = (
        seen_at(reader, mirror.name, since.epoch, look) for look in amid.looks
    )
    assert set(before.values()) == {"equal"}, before
    assert behind == {
        name: "later" if name.removeprefix("public.") in HELD else "equal" for name in behind
    }
    for each in others:
        for name, verdict in each.items():
            # Epochs may have ended between the DDL of two tables: the later ones are equal then.
            as_it_is = name.removeprefix("public.") in AS_IT_IS
            assert verdict in (("equal",) if as_it_is else ("equal", "later")), name
