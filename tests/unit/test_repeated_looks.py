"""A table that cannot be compared is looked at again, within the time for all looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from cdc.options import PLAIN
from cdc.verification.comparison import Captured, Comparison
from cdc.verification.reports import TableReport
from kernel.errors import NotFound, Unavailable
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from projections.run.captured_tables import CapturedTable
from schemas.key_ranges import KeyRange

ONE, OTHER = "public.one", "public.other"


def captured(table: str) -> Captured:
    catalog = CapturedTable(keys=("id",))
    return Captured(source="shop", table=table, catalog=catalog, options=PLAIN)


@dataclass
class Source:
    """Answers looks, each of which takes a while; fails from the second one on."""

    seconds: float
    failure: Exception | None = None
    looks: list[tuple[list[str], float]] = field(default_factory=list)
    now: float = 100.0

    def clock(self) -> float:
        return self.now

    def look(self, tables: list[str], timeout_s: float) -> dict[str, TableReport]:
        self.now += self.seconds
        self.looks.append((tables, timeout_s))
        if self.failure is not None and len(self.looks) > 1:
            raise self.failure
        return {
            table: TableReport(
                table=table, lsn="0/1", epoch=Epoch(1), held="altered", again=table == OTHER
            )
            for table in tables
        }


class NoSchemas:
    """A registry without a schema."""

    def schema(self, schema_id: int) -> str:
        raise NotFound(f"no schema {schema_id}")


class Looking(Comparison):
    """Looks at a source that is made up."""

    def __init__(self, folder: Path, source: Source) -> None:
        super().__init__(Lake.at(folder), Tables(), NoSchemas(), clock=source.clock)
        self.source = source

    def _compare(
        self,
        dsn: str,
        wanted: Sequence[Captured],
        ranges: int | None,
        timeout_s: float,
        within: KeyRange,
    ) -> dict[str, TableReport]:
        return self.source.look([each.table for each in wanted], timeout_s)


def looked(folder: Path, source: Source) -> list[TableReport]:
    wanted = [captured(ONE), captured(OTHER)]
    return Looking(folder, source).compare("", wanted, timeout_s=60)


def test_all_looks_together_take_the_time_that_was_given(tmp_path: Path) -> None:
    source = Source(seconds=25)
    looked(tmp_path, source)
    assert source.looks == [([ONE, OTHER], 60), ([OTHER], 35), ([OTHER], 10)]
    slow = Source(seconds=61)
    assert [report.again for report in looked(tmp_path, slow)] == [False, True]
    assert len(slow.looks) == 1


@pytest.mark.parametrize("failure", [psycopg.OperationalError("lost"), Unavailable("too late")])
def test_what_a_first_look_found_stands_when_a_second_one_fails(
    tmp_path: Path, failure: Exception
) -> None:
    reports = looked(tmp_path, Source(seconds=1, failure=failure))
    assert [(report.table, report.again) for report in reports] == [(ONE, False), (OTHER, True)]
