"""Delta tables without Spark: opening, creating, reading ranges. One handle per table, kept fresh.

deltalake reads the transaction log in about a millisecond when a handle is kept; opening anew
costs more with every commit since the last checkpoint. But what each commit added a handle keeps by
itself, and goes through all of that with every further one: 0.1 to 0.2 ms of a core for each commit
that it has seen, where a file that was there when it was opened takes 5 µs. Who appends to a table
in every epoch says so therefore (`appended`), and the handle is opened anew after `RENEWED_AFTER`
commits (docs/adr/0054); on a disk, where the handle reads commits by itself, before deltalake would
go through all of them.

Even to learn that nothing came, deltalake reads the log's whole folder: 2 ms of a core. On a disk
a handle reads the next commit by its name (`lake.handles`); an object store lists what is newer,
and asking for one object is no cheaper there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from lake.datasets import (
    dataset_of,
    dataset_since,
    missing_file,
    scanner_of,
    schema_of,
)
from lake.file_actions import actions_of
from lake.handle_answers import answer
from lake.handles import Handle
from lake.layout import TableAt as TableAt
from lake.storage import is_local
from lake.table_settings import make_table

RENEWED_AFTER = 25
"""To open takes as long as some 20 commits of a handle that has seen as many."""


class Tables:
    """Opens tables by path and keeps their handles. Safe for use from several threads.

    `owned` says of a path that nobody else changes the table's rows: its handle is as new as our
    own last write, and the log is not looked at again, unless `changed` told of a write through
    another handle. After an error `forget_all`.
    """

    def __init__(self, *, owned: Callable[[str], bool] = lambda path: False) -> None:
        self._handles: dict[str, Handle] = {}
        self._opened_at: dict[str, int] = {}
        self._owned = owned
        self._changed: set[str] = set()
        self._looked: set[str] | None = None
        self._lock = threading.Lock()

    @contextmanager
    def looked_at_once(self) -> Iterator[None]:
        """Look at each table's log once in the block: its handle has that, and what it wrote since.

        What others commit meanwhile is seen behind the block; a commit that it contradicts fails,
        as it would if they had come between a look and a commit.
        """
        self._looked = set()
        try:
            yield
        finally:
            self._looked = None

    def open(self, path: str) -> DeltaTable | None:
        """Return the table at its newest version, or None where there is none."""
        with self._lock:
            handle = self._handles.get(path)
            if handle is None:
                return self._opened(path)
            if path in self._changed or not (self._owned(path) or self._was_looked_at(path)):
                self._changed.discard(path)
                handle.update_incremental()
            return handle

    def _was_looked_at(self, path: str) -> bool:
        """Say whether this block has looked at a table before; it has now."""
        looked = self._looked
        if looked is None or path in looked:
            return looked is not None
        looked.add(path)
        return False

    def appended(self, path: str) -> None:
        """Have a table opened anew next time, if its handle has seen many commits.

        For who has just appended to it, and while nobody else in this process does: a handle that
        is opened anew lacks a commit that is under way.
        """
        with self._lock:
            handle = self._handles.get(path)
            if handle is not None and not self._is_fresh(path, handle):
                self._handles.pop(path)

    def _is_fresh(self, path: str, handle: Handle) -> bool:
        if is_local(path):
            return not handle.is_listed_soon()
        return handle.version() - self._opened_at[path] < RENEWED_AFTER

    def _opened(self, path: str) -> DeltaTable | None:
        """Open a table; what was `changed` before is in it."""
        self._changed.discard(path)
        try:
            handle = Handle(path)
        except TableNotFoundError:
            return None
        self._was_looked_at(path)
        self._handles[path] = handle
        self._opened_at[path] = handle.version()
        return handle

    def ensure(
        self,
        path: str,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """Return the table at `path`, created empty when it is not there.

        `settings` are of a new table, in place of the usual ones.
        """
        handle = self.open(path)
        if handle is not None:
            return handle
        with self._lock:
            make_table(path, schema, partition_by=partition_by, settings=settings)
            handle = self._handles[path] = Handle(path)
            self._opened_at[path] = handle.version()
            return handle

    def changed(self, path: str) -> None:
        """Take note that a table was written through another handle."""
        with self._lock:
            self._changed.add(path)

    def forget(self, path: str) -> None:
        """Drop a handle, after a restore or a change made by another engine."""
        with self._lock:
            self._handles.pop(path, None)

    def forget_all(self) -> None:
        """Drop every handle: each table is opened anew."""
        with self._lock:
            self._handles.clear()

    def columns(self, path: str, version: int) -> pa.Schema:
        """Return the columns that a table had at a version."""
        handle = self.open(path)
        if handle is None or handle.version() != version:
            handle = DeltaTable(path, version=version)
        return schema_of(handle)

    def read(
        self,
        path: str,
        *,
        where: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        since: tuple[str, int] | None = None,
    ) -> pa.Table | None:
        """Read rows that satisfy `where`; files are skipped by their statistics.

        `since` (an integer column and its least value) is an aid for tables of many files where
        only the last ones matter: files below are not looked at; rows below may come all the same.
        Returns None where there is no table. Rows come in no order.
        """
        if version is not None:
            table: DeltaTable | None = DeltaTable(path, version=version)
        else:
            table = self.open(path)
        if table is None:
            return None
        dataset = dataset_of(table) if since is None else dataset_since(table, *since)
        return scanner_of(dataset, where, columns).to_table()

    def rows(self, path: str) -> list[dict[str, Any]]:
        """Return all rows of a table of few; none where there is no table."""
        found = self.read(path)
        return [] if found is None else found.to_pylist()

    def version(self, path: str) -> int:
        """Return a table's version; -1 where there is no table."""
        table = self.open(path)
        return -1 if table is None else table.version()


def standing(path: str, name: str, version: int, epoch: int) -> int | None:
    """Return the version of a table; where it is not kept, the newest if that stands at the epoch.

    `name` is the app id of the table's epochs. A vacuum, a compaction and the fold of a tail make
    versions that no epoch has named yet. None where neither is there.
    """
    if kept(path, version) is not None:
        return version
    newest = DeltaTable(path)
    return None if written_by(newest, name) > epoch else int(newest.version())


def written_by(table: DeltaTable, name: str) -> int:
    """Return the newest epoch that wrote anything of a table: rows, columns, a TRUNCATE."""
    return max(int(table.transaction_version(guard) or 0) for guard in guards_of(name))


def guards_of(name: str) -> tuple[str, ...]:
    """Return the app ids of a table's epochs: each makes up to one commit under each of them."""
    return name, columns_guard(name), cleared_guard(name)


def columns_guard(name: str) -> str:
    """Return the app id under which an epoch brings a table's rows to new columns."""
    return f"{name}/columns"


def rewritten_guard(name: str) -> str:
    """Return the app id under which rows that a table had got other values, or other names."""
    return f"{columns_guard(name)}/rewritten"


def outlived_guard(name: str) -> str:
    """Return the app id under which an epoch takes in what came before a TRUNCATE of its own."""
    return f"{name}/outlived"


def cleared_guard(name: str) -> str:
    """Return the app id under which an epoch marks rows deleted that a TRUNCATE took."""
    return f"{name}/cleared"


def kept(path: str, version: int) -> DeltaTable | None:
    """Return a table at a version; None where the version or one of its files is not kept."""
    try:
        table = DeltaTable(path, version=version)
    except DeltaError:
        return None
    return table if missing_file(dataset_of(table)) is None else None


def greatest(table: DeltaTable, column: str) -> int | None:
    """Return the greatest value of an integer column without nulls; None when empty."""
    value = answer(table, ("greatest", column), lambda: _bound(table, column, "max", pc.max))
    return None if value is None else int(value)


def least(table: DeltaTable, column: str) -> int | None:
    """Return the least value of an integer column without nulls; None when empty."""
    value = _bound(table, column, "min", pc.min)
    return None if value is None else int(value)


def earliest(table: DeltaTable, column: str) -> datetime | None:
    """Return the least value of a column of times, to the millisecond; None when empty."""
    value = _bound(table, column, "min", pc.min)
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _bound(table: DeltaTable, column: str, side: str, of: Callable[[Any], pa.Scalar]) -> Any:
    """Return a bound from file statistics, or from the column where a file has none of it."""
    actions = actions_of(table)
    name = f"{side}.{column}"
    if actions.num_rows == 0 or column not in schema_of(table).names:
        return None
    if name not in actions.column_names or _without_bound(actions, name):
        return of(dataset_of(table).to_table(columns=[column])[column]).as_py()
    return of(actions[name]).as_py()


def _without_bound(actions: pa.Table, bound: str) -> bool:
    rows = pc.fill_null(actions["num_records"], 1)
    return bool(pc.any(pc.and_(pc.is_null(actions[bound]), pc.greater(rows, 0))).as_py())
