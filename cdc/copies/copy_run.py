"""One copy: parallel readers of one exported snapshot, each chunk staged by one commit.

    exported snapshot -> N readers: COPY -> blocks of text -> Staging -> Install per table

A reader takes a transaction per chunk, so that it holds a table's lock no longer than that. What is
staged already is not read again. Memory is bounded by the readers: a block and a row group each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from cdc.copies.copy_plan import CopyPlan, TablePlan
from cdc.database import Connection, connected
from cdc.snapshot.chunks import chunk_condition
from cdc.snapshot.copying import read, set_up
from cdc.snapshot.slot import ExportedSnapshot, adopt
from cdc.sources import Source
from kernel import failpoints
from kernel.errors import (
    Conflict,
    Incompatible,
    NotFound,
    PenstockError,
    SchemaViolation,
    Unavailable,
    first_line,
)
from kernel.retry import Backoff, retrying
from lake.layout import Lake
from pipeline.installs.install_book import ALL, Install
from pipeline.installs.staging import Staging
from schemas.lake_columns import captured_columns

_AGAIN = Backoff(attempts=5, base_s=0.5, cap_s=10.0)


class CopyStopped(Exception):
    """The pipeline ends; the copy goes on at the next start."""


class TableChanged(Exception):
    """A table is not what was planned any more: it is read again from its beginning."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"{table}: {reason}")
        self.table = table


@dataclass(slots=True)
class _Failure:
    """The first error of any reader; the others stop."""

    error: BaseException | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, error: BaseException) -> None:
        with self.lock:
            self.error = self.error or error


class CopyRun:
    """Reads everything of a plan that is not staged yet."""

    def __init__(
        self,
        lake: Lake,
        source: Source,
        plan: CopyPlan,
        *,
        dsn: str,
        salt: str,
        readers: int,
        stop: threading.Event,
        on_rows: Callable[[str, int], None] = lambda table, rows: None,
        shortage: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._source = source
        self._plan = plan
        self._dsn = dsn
        self._salt = salt
        self._readers = readers
        self._stop = stop
        self._on_rows = on_rows
        self._shortage = shortage
        self.failed: dict[str, PenstockError] = {}
        """The tables that cannot be copied, each with its first error; all others are read."""
        self._staged: dict[str, Staging] = {}
        for table in plan.tables:
            try:
                self._staged[table.table] = Staging(
                    lake,
                    id=table.install,
                    source=plan.source,
                    table=table.table,
                    columns=table.columns,
                    soft_deletes=table.soft_deletes,
                    keys=captured_columns(table.keys),
                )
            except Exception as error:
                self._fail(table.table, error)

    def read_all(self, exported: ExportedSnapshot) -> None:
        """Read what is missing as of the snapshot, but for tables that `failed`.

        Those fail as well of which two rows would be one of the lake. Raises `CopyStopped`,
        `TableChanged`, or `Unavailable`, which names table and chunk.
        """
        jobs = iter(
            [
                (table, chunk)
                for table in self._plan.tables
                if table.table not in self.failed
                for chunk in range(len(table.ranges))
                if self._staged[table.table].lsn_of(chunk) is None
            ]
        )
        failure, taking = _Failure(), threading.Lock()

        def work() -> None:
            try:
                self._work(exported, jobs, taking, failure)
            except BaseException as error:
                failure.note(error)

        readers = [
            threading.Thread(
                target=copy_context().run, args=(work,), name=f"copy-{number}", daemon=True
            )
            for number in range(self._readers)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        if failure.error is not None:
            raise failure.error
        if self._stop.is_set():
            raise CopyStopped
        for name, staged in self._staged.items():
            try:
                staged.refuse_met_keys()
            except SchemaViolation as error:
                told = f"{name}: {error.message}"
                self._fail(name, SchemaViolation(told, remedy=error.remedy))

    def installs(self) -> list[Install]:
        """Return the tables as staged, those that did not fail."""
        return [self._install(each) for each in self._plan.tables if each.table not in self.failed]

    def _install(self, table: TablePlan) -> Install:
        staged = self._staged[table.table]
        lsns = [staged.lsn_of(chunk) for chunk in range(len(table.ranges))]
        known = tuple(lsn for lsn in lsns if lsn is not None)
        assert len(known) == len(lsns), "every chunk was read"
        return Install(
            id=table.install,
            source=self._plan.source,
            table=table.table,
            kind=ALL,
            low=None,
            high=None,
            lsn=max(known),
            columns=table.columns,
            keys=captured_columns(table.keys),
            rows=staged.rows,
            read_at=self._plan.read_at,
            lsns=known,
            run=self._plan.run,
            slots=self._plan.slots,
            version=staged.version,
            releases=self._plan.releases,
            since=self._plan.since,
        )

    def _work(
        self,
        exported: ExportedSnapshot,
        jobs: Iterator[tuple[TablePlan, int]],
        taking: threading.Lock,
        failure: _Failure,
    ) -> None:
        while failure.error is None and not self._stop.is_set():
            with taking:
                job = next(jobs, None)
            if job is None:
                return
            table, chunk = job
            if table.table in self.failed:
                continue
            short = self._shortage()
            if short is not None:
                raise Unavailable(short)
            try:
                again = partial(self._chunk, exported, table, chunk)
                retrying(again, backoff=_AGAIN, sleep=self._pause)
            except (Conflict, NotFound) as error:
                raise TableChanged(table.table, error.message) from error
            except PenstockError as error:
                place = f"{table.table}, chunk {chunk + 1} of {len(table.ranges)}"
                told = type(error)(f"{place}: {error.message}", remedy=error.remedy)
                if isinstance(error, Unavailable):
                    raise told from error
                self._fail(table.table, told)
            except Exception as error:
                self._fail(table.table, error)
            failpoints.hit(failpoints.SNAPSHOT_AFTER_CHUNK)

    def _fail(self, table: str, error: Exception) -> None:
        if not isinstance(error, PenstockError):
            told = Incompatible(f"{table} cannot be copied: {first_line(error)}")
            told.__cause__ = error
            error = told
        self.failed.setdefault(table, error)

    def _chunk(self, exported: ExportedSnapshot, table: TablePlan, chunk: int) -> None:
        with connected(self._dsn) as connection:
            set_up(connection)
            adopt(connection, exported.name)
            blocks = self._counted(table, self._blocks(connection, table, chunk))
            self._staged[table.table].stage(chunk, exported.lsn, blocks)
            connection.execute("ROLLBACK")

    def _blocks(self, connection: Connection, table: TablePlan, chunk: int) -> Iterator[pa.Table]:
        return read(
            connection,
            table.table,
            table.columns,
            condition=chunk_condition(table.ranges[chunk], table.keys),
            options=self._source.options_of(table.table),
            salt=self._salt,
        )

    def _counted(self, table: TablePlan, blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for block in blocks:
            if self._stop.is_set():
                raise Unavailable("the pipeline ends")
            self._on_rows(table.table, block.num_rows)
            yield block

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)
