"""A source and the lake at one LSN: hashes of ranges first, keys only where a range differs.

    exported snapshot at L -> hashes by ranges (PostgreSQL) --+
                                                              +-> equal | ranges -> keys -> columns
    current at L           -> hashes by ranges (DuckDB)     --+

Executors hash the lake's files where these are large and there are executors.

Writers go on meanwhile: both sides are exactly at L. Memory holds one differing range's keys.

A table that cannot be compared at L is looked at again at a later LSN: DDL lies right before L, or
came while the source was read; its changes are too many; it was released from a hold right then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
from deltalake.exceptions import DeltaError

from cdc.columns import set_text_output
from cdc.database import Connection, connected
from cdc.options import TableOptions
from cdc.snapshot.slot import adopt, exported_snapshot
from cdc.verification import watermarks
from cdc.verification.narrowing import Narrowing
from cdc.verification.reports import (
    NO_DIFFERENCES,
    TableReport,
)
from cdc.verification.source_rows import (
    NOTHING,
    GroupHash,
    SourceTable,
    Split,
    count,
    describe,
    group_hashes,
    split_of,
)
from cdc.verification.table_shapes import same_shape
from kernel.errors import InvalidRequest, NotComparable, NotFound, Unavailable, first_line
from kernel.positions import Epoch, Lsn, lsn_to_text
from lake.layout import Lake, current_name
from lake.tables import Tables
from pipeline.verification.as_of import NOT_YET, Between, StateReader
from pipeline.verification.foreign_commits import stranger
from pipeline.verification.hashing import LakeRows
from pipeline.verification.lake_state import LakeState
from pipeline.verification.large_states import LargeStates
from projections.run.captured_tables import CapturedTable
from schemas.key_ranges import WHOLE, KeyRange, cut_at, joined
from schemas.registry import SchemaLookup
from schemas.row_hash import hash_text

RANGE_ROWS = 10_000
MOST_RANGES = 1_000
_LOOK_S = 0.1
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A captured table with what is needed to compare it."""

    source: str
    table: str
    catalog: CapturedTable
    options: TableOptions
    salt: str = ""

    def described(self, connection: Connection) -> SourceTable:
        """Read what the source says of the table. Raises what `verification.describe` raises."""
        return describe(
            connection, self.table, self.catalog.keys, options=self.options, salt=self.salt
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The source's side of one table at L."""

    table: SourceTable
    split: Split
    groups: dict[int, GroupHash]
    captured: Captured
    seconds: float


class Comparison:
    """Compares tables of one source with the lake. For one thread."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        schemas: SchemaLookup,
        *,
        large: LargeStates | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `large` executors hash the lake's rows where they are many."""
        self._lake = lake
        self._large = large
        self._tables = tables
        self._reader = StateReader(lake, tables, schemas)
        self._sleep = sleep
        self._clock = clock

    @property
    def reader(self) -> StateReader:
        """What reads the lake's side."""
        return self._reader

    def compare(
        self,
        dsn: str,
        wanted: Sequence[Captured],
        *,
        ranges: int | None = None,
        timeout_s: float,
        within: KeyRange = WHOLE,
    ) -> list[TableReport]:
        """Compare tables of one source, all at one LSN; `within` limits them to a range of keys.

        Those that cannot be compared there are looked at again at a later LSN, with what keeps
        them from it as `held` in the end. `ranges`: how many per table; by default one for every
        10,000 rows. All looks together wait for `timeout_s` at most. Raises `Unavailable` when no
        snapshot is to be had or the lake does not come to its LSN within that.
        """
        found: dict[str, TableReport] = {}
        late = list(wanted)
        deadline = self._clock() + timeout_s
        for _ in range(_ATTEMPTS):
            left_s = max(deadline - self._clock(), 0.0)
            try:
                found |= self._compare(dsn, late, ranges, left_s, within)
            except (Unavailable, psycopg.OperationalError):
                if not found:
                    raise
                # The verdicts on the other tables stand.
                break
            late = [each for each in wanted if found[each.table].again]
            if not late or self._clock() > deadline:
                break
        return [found[each.table] for each in wanted]

    def _compare(
        self,
        dsn: str,
        wanted: Sequence[Captured],
        ranges: int | None,
        timeout_s: float,
        within: KeyRange,
    ) -> dict[str, TableReport]:
        if not wanted:
            return {}
        since = self._reader.last().epoch
        with at_one_lsn(dsn, timeout_s=timeout_s) as (connection, lsn):
            with connected(dsn) as now:
                watermarks.emit(now)
                looks = {
                    each.table: _try_look(connection, now, each, ranges, within) for each in wanted
                }
            source = wanted[0].source
            between = self.await_lsn(source, lsn, since=since, timeout_s=timeout_s)
            held = self._reader.held(source, between, looks)
            return {
                table: _held(table, between, held[table])
                if table in held
                else self._reported(connection, table, look, between, within)
                for table, look in looks.items()
            }

    def await_lsn(self, source: str, lsn: Lsn, *, since: Epoch, timeout_s: float) -> Between:
        """Wait until the lake has everything up to an LSN. Raises `Unavailable`, saying why not."""
        deadline = self._clock() + timeout_s
        while (between := self._reader.around(source, lsn, since=since)) is None:
            if self._clock() > deadline:
                raise Unavailable(
                    f"the lake did not come to {lsn_to_text(lsn)} of {source} within"
                    f" {timeout_s:.0f} s: {self._reader.waiting_for(source)}",
                    remedy=f"See what holds it: penstock source status {source}; then verify again"
                    " with a longer --timeout.",
                )
            self._sleep(_LOOK_S)
        return between

    def _reported(
        self,
        connection: Connection,
        table: str,
        look: _Look | NotComparable | str,
        between: Between,
        within: KeyRange,
    ) -> TableReport:
        try:
            if isinstance(look, NotComparable):
                raise look
            if isinstance(look, str):
                return _held(table, between, look)
            with connection.transaction():
                return self._report(connection, look, between, within)
        except NotComparable as error:
            reason = f"it cannot be compared at this LSN: {error.message}; {error.remedy}"
            return replace(_held(table, between, reason), again=True)
        except (FileNotFoundError, DeltaError):
            assert isinstance(look, _Look), "the lake's files are read for what was looked at"
            return _held(table, between, _files_gone(look.captured))
        except (Unavailable, psycopg.OperationalError):
            raise
        except Exception as error:
            # Whatever it is that one table meets: the verdicts of the others stand.
            return _held(table, between, _failure(error))

    def _report(
        self, connection: Connection, look: _Look, between: Between, within: KeyRange
    ) -> TableReport:
        began = time.monotonic()
        table, captured = look.table, look.captured
        rows = self._lake_rows(captured, table, between)
        if rows is None:
            if look.groups:
                return _held(captured.table, between, NOT_YET)
            rows = LakeRows(
                LakeState(key=table.lake_key, base=None), table.lake_names, table.ordered
            )
        if table.ordered is not None and rows.ordered is None:
            look = _look(connection, captured, None, within, ordered=False)
            table = look.table
        groups = rows.group_hashes(look.split.bounds, look.split.buckets, within=within)
        found = {number: GroupHash(rows=n, hash=digest) for number, (n, digest) in groups.items()}
        wrong = [
            number
            for number in range(look.split.groups)
            if look.groups.get(number, NOTHING) != found.get(number, NOTHING)
        ]
        narrowing = Narrowing(connection, table, rows)
        differences = NO_DIFFERENCES
        for number in wrong:
            size = max(look.groups.get(number, NOTHING).rows, found.get(number, NOTHING).rows)
            if look.split.bounds:
                area = cut_at(look.split.bounds)[number]
                differences += narrowing.narrow(area, None, size)
            else:
                differences += narrowing.narrow(within, (look.split, number), size)
        named = narrowing.with_columns(differences)
        name = current_name(captured.source, captured.table)
        total, current = _total(look.groups.values()), _total(found.values())
        return TableReport(
            table=captured.table,
            lsn=lsn_to_text(between.lsn),
            epoch=between.base.epoch,
            rows=total.rows,
            hash=total.hash,
            rows_current=current.rows,
            hash_current=current.hash,
            columns=table.names,
            not_compared=table.left_out,
            ranges=look.split.groups,
            differing_ranges=_ranges_of(look.split, wrong, within),
            differences=named,
            cause=_doubled(captured, named.doubled)
            or (stranger(self._lake, self._tables, name) if wrong else None),
            seconds=look.seconds + time.monotonic() - began,
        )

    def _lake_rows(
        self, captured: Captured, table: SourceTable, between: Between
    ) -> LakeRows | None:
        """Open the lake's side; None for a table that no epoch has folded yet."""
        found = self._reader.table(
            captured.source,
            captured.table,
            between,
            key=table.lake_key,
            soft=captured.catalog.soft_deletes,
        )
        ordered = table.ordered
        if ordered is not None and not found.state.keeps_order(ordered):
            ordered = None
        if not found.versions and not found.state.layers:
            return None
        return LakeRows(found.state, table.lake_names, ordered, self._large)


@contextmanager
def at_one_lsn(dsn: str, *, timeout_s: float) -> Iterator[tuple[Connection, Lsn]]:
    """Open a connection whose transaction sees the source exactly at an LSN."""
    with exported_snapshot(dsn, timeout_s=timeout_s) as exported, connected(dsn) as connection:
        set_text_output(connection)
        adopt(connection, exported.name)
        yield connection, Lsn(exported.lsn)


def _held(table: str, between: Between, reason: str) -> TableReport:
    return TableReport(
        table=table, lsn=lsn_to_text(between.lsn), epoch=between.base.epoch, held=reason
    )


def _doubled(captured: Captured, count: int) -> str | None:
    """Say why one row of the lake stands for several of the source; None where none does."""
    if not count:
        return None
    keys = ", ".join(captured.catalog.keys)
    return (
        f"{count} values of the key {keys} are in several rows of {captured.table}, of which the"
        " lake keeps one: make them unique in the source, or declare another key in"
        f" sources/{captured.source}.toml; see penstock source check {captured.source}"
    )


def _files_gone(captured: Captured) -> str:
    source, table = captured.source, captured.table
    return (
        "files of that epoch are not there any more: old versions of tables that change all the"
        f" time are kept for ten minutes. Verify it alone: penstock source verify {source} --table"
        f" {table}; if it says the same again, files were lost: penstock source resnapshot {source}"
        f" --tables {table}"
    )


def _try_look(
    connection: Connection,
    now: Connection,
    captured: Captured,
    ranges: int | None,
    within: KeyRange,
) -> _Look | NotComparable | str:
    """Hash the source's side; say why not for a table that cannot be compared, or not now."""
    try:
        # A statement that fails undoes its own savepoint, not the snapshot of all tables.
        with connection.transaction():
            found: _Look | str = _look(connection, captured, ranges, within)
    except (NotFound, InvalidRequest) as error:
        found = f"{error.message}; {error.remedy}"
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        found = _failure(error)
    if same_shape(connection, now, captured.table):
        return found
    return NotComparable(f"{captured.table} was altered or truncated while it was looked at")


def _failure(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error) or 'no message'}"


def _look(
    connection: Connection,
    captured: Captured,
    ranges: int | None,
    within: KeyRange,
    *,
    ordered: bool = True,
) -> _Look:
    began = time.monotonic()
    table = captured.described(connection)
    if not ordered:
        table = replace(table, ordered=None)
    if within.is_all:
        rows = count(connection, table)
        wanted = ranges or min(MOST_RANGES, -(-rows // RANGE_ROWS))
        split = split_of(connection, table, wanted, rows)
    else:
        split = Split()
    return _Look(
        table=table,
        split=split,
        groups=group_hashes(connection, table, split, within=within),
        captured=captured,
        seconds=time.monotonic() - began,
    )


def _ranges_of(split: Split, wrong: Sequence[int], within: KeyRange) -> tuple[KeyRange, ...]:
    """Return what differs as ranges of keys; groups by hash have none but the whole."""
    if not wrong:
        return ()
    if not split.bounds:
        return (within,)
    areas = cut_at(split.bounds)
    return joined([areas[number] for number in wrong])


def _total(groups: Iterable[GroupHash]) -> GroupHash:
    rows = high = low = 0
    for one in groups:
        rows += one.rows
        high += int(one.hash[:16], 16)
        low += int(one.hash[16:], 16)
    return GroupHash(rows=rows, hash=hash_text(high, low))
