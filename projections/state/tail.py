"""Base and tail: `current` tables for which a merge in every epoch would cost too much.

A merge of random keys rewrites nearly the whole table, whatever the number of changes. Above a
size the epoch's newest images are therefore only appended to `current/_tail/<source>.<table>`
(columns of the table, `__op`, `__epoch`, `__keys`), and a thread merges them into the base beside
ingest, as often as the policy says. Who reads by name sees base plus tail, newest wins (`whole`);
who reads the base's path sees it as of its own epoch: the version of its guard.

One writer each: ingest alone writes tails, the folding thread alone writes bases, and `settle`
makes it stand still. A pair of versions in the manifest is always right: the tail holds every
epoch after the one that the base has, and may hold some before it, which change nothing. A crash
repeats the append by its guard; rows that the base lacks are found in the tail again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import LeaseLost
from kernel.positions import Epoch
from projections.log.layout import Lake
from projections.log.tables import TableAt, Tables, dataset_of, schema_of
from projections.log.writer import OP, UPSERT, ArrowWriter, Guard, reached

EPOCH, KEYS = "__epoch", "__keys"
MARKS = (OP, EPOCH, KEYS)
_FOLDER = "current/_tail/"
_REWRITE_FILES = 24
_LOOK_S = 0.05

log = logging.getLogger("penstock.fold")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPolicy:
    """When a table gets a tail, and when the tail is folded. Sizes in bytes, times in seconds.

    Up to `direct_bytes` a table is merged in every epoch and has no tail. Above, its base is at
    most about `freshness_s` behind, plus the time of a merge. Above `eager_bytes` it waits until
    the tail has `share` of the base's rows, at most `longest_s`: what is rewritten then stays in
    proportion to what changes. `most_rows` bounds a tail in memory: beyond, ingest waits.
    """

    freshness_s: float = 0.4
    direct_bytes: int = 2 * 2**20
    eager_bytes: int = 96 * 2**20
    share: float = 0.01
    longest_s: float = 60.0
    most_rows: int = 250_000

    def due(self, *, age_s: float, rows: int, base_rows: int, base_bytes: int) -> bool:
        """Say whether a tail of `rows`, the oldest `age_s` old, is to be folded now."""
        if base_bytes <= self.eager_bytes or rows >= self.most_rows:
            return age_s >= self.freshness_s
        return age_s >= self.longest_s or rows >= self.share * base_rows


@dataclass(slots=True)
class _Tail:
    """One table's tail in memory: images per epoch that the base does not have yet.

    `folding` is held by whoever writes the base, `lock` for a look at the parts only.
    """

    keys: tuple[str, ...]
    parts: list[tuple[int, pa.Table]] = field(default_factory=list)
    since: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    folding: threading.Lock = field(default_factory=threading.Lock)
    base_rows: int = 0
    base_bytes: int = 0
    base: TableAt | None = None

    @property
    def rows(self) -> int:
        return sum(part.num_rows for _, part in self.parts)


def tail_name(name: str) -> str:
    """Name the tail of a `current` table: `current/_tail/shop.public.orders`."""
    return _FOLDER + name.removeprefix("current/")


class TailTables:
    """Keeps the tails of one lake and folds them in a thread of its own. Ingest calls the rest."""

    def __init__(self, lake: Lake, tables: Tables, policy: FoldPolicy | None = None) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._policy = policy or FoldPolicy()
        self._tails: dict[str, _Tail] = {}
        self._without: set[str] = set()
        self._moved: dict[str, TableAt] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        # The folding thread has handles of its own: ingest refreshes its own meanwhile.
        self._own = Tables()

    def resume(self, known: Mapping[str, TableAt]) -> None:
        """Take up the tails that the manifest names, after a start."""
        for name in known:
            if name.startswith(_FOLDER):
                self._load("current/" + name.removeprefix(_FOLDER))

    def wants(self, base: DeltaTable | None) -> bool:
        """Say whether a table is large enough for a tail."""
        return base is not None and _size(base)[1] > self._policy.direct_bytes

    def add(
        self, name: str, rows: pa.Table, keys: Sequence[str], epoch: Epoch
    ) -> dict[str, TableAt]:
        """Append an epoch's newest images (one per key, with `__op`) to the tail of a table.

        Waits for the folding thread while the tail is full. Returns the versions of both tables.
        """
        tail = self._load(name) or self._tails.setdefault(name, _Tail(keys=tuple(keys)))
        self._without.discard(name)
        path = self._lake.path(tail_name(name))
        stored = self._tables.open(path)
        odd = stored is not None and not _fits(schema_of(stored), rows.schema)
        if tail.keys != tuple(keys) or odd or tail.rows + rows.num_rows > self._policy.most_rows:
            self.settle(name)
            tail.keys = tuple(keys)
        guard = Guard(tail_name(name), epoch)
        if not reached(stored, guard):
            added = marked(rows, keys, epoch)
            if stored is not None and (odd or len(stored.file_uris()) >= _REWRITE_FILES):
                rest = [marked(part, tail.keys, old) for old, part in list(tail.parts)]
                added = pa.concat_tables([*rest, added], promote_options="permissive")
                self._writer.overwrite(path, added, guard)
            else:
                self._writer.append(path, added, guard)
            failpoints.hit(failpoints.TAIL_AFTER_APPEND)
            with tail.lock:
                if not tail.parts:
                    tail.since = time.monotonic()
                tail.parts.append((epoch, rows))
        self._start()
        return self._versions(name, epoch)

    def newest(self, name: str) -> pa.Table | None:
        """Return the newest image per key that the base lacks, with `__op`; None for no tail."""
        tail = self._load(name)
        if tail is None:
            return None
        with tail.lock:
            parts = list(tail.parts)
        return _newest(parts, tail.keys)

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the key columns of a table that has a tail."""
        return self._tails[name].keys

    def settle(self, name: str) -> None:
        """Fold the tail of a table at once; return when its base has everything."""
        tail = self._load(name)
        if tail is not None:
            self._fold(name, tail)

    def clear(self, name: str, epoch: Epoch) -> dict[str, TableAt]:
        """Empty the tail after its base was written as of `epoch`; returns the tail's version."""
        # A base that was settled first has moved on since.
        self._moved.pop(name, None)
        if name in self._without:
            return {}
        path = self._lake.path(tail_name(name))
        stored = self._tables.open(path)
        if stored is None:
            self._without.add(name)
            return {}
        if stored.count():
            empty = schema_of(stored).empty_table()
            self._writer.overwrite(path, empty, Guard(tail_name(name), epoch))
        self._tails.pop(name, None)
        return {tail_name(name): TableAt(version=stored.version(), as_of_epoch=epoch)}

    def moved(self) -> dict[str, TableAt]:
        """Return the bases that were folded since the last call: the manifest is to name them."""
        moved, self._moved = self._moved, {}
        return moved

    def close(self) -> None:
        """End the folding thread after the merge that it is at."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _versions(self, name: str, epoch: Epoch) -> dict[str, TableAt]:
        # The tail first: a base that moves on meanwhile only has more of the tail's rows.
        tail = self._tables.open(self._lake.path(tail_name(name)))
        base = self._tables.open(self._lake.path(name))
        assert tail is not None
        assert base is not None
        self._moved.pop(name, None)
        if not self._tails[name].base_bytes:
            self._tails[name].base_rows, self._tails[name].base_bytes = _size(base)
        return {
            name: TableAt(version=base.version(), as_of_epoch=epoch),
            tail_name(name): TableAt(version=tail.version(), as_of_epoch=epoch),
        }

    def _load(self, name: str) -> _Tail | None:
        """Return the tail in memory, read from its table once."""
        if name in self._tails:
            return self._tails[name]
        rows = None
        if name not in self._without:
            rows = self._tables.read(self._lake.path(tail_name(name)))
        if rows is None:
            self._without.add(name)
        if rows is None or rows.num_rows == 0:
            return None
        keys = _keys_of(rows)
        base = self._tables.open(self._lake.path(name))
        done = (base.transaction_version(name) if base is not None else None) or 0
        missing = rows.filter(pc.greater(rows[EPOCH], done))
        parts = [
            (epoch, missing.filter(pc.equal(missing[EPOCH], epoch)).drop_columns([EPOCH, KEYS]))
            for epoch in sorted(pc.unique(missing[EPOCH]).to_pylist())
        ]
        tail = _Tail(keys=keys, parts=parts, since=time.monotonic())
        tail.base_rows, tail.base_bytes = (0, 0) if base is None else _size(base)
        self._tails[name] = tail
        if parts:
            self._start()
        return tail

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="fold", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            for name, tail in list(self._tails.items()):
                if not tail.parts or self._stop.is_set():
                    continue
                if not self._policy.due(
                    age_s=time.monotonic() - tail.since,
                    rows=tail.rows,
                    base_rows=tail.base_rows,
                    base_bytes=tail.base_bytes,
                ):
                    continue
                try:
                    self._fold(name, tail)
                except LeaseLost as error:
                    log.warning("folding %s: %s", name, error.message)
                    return
                except Exception as error:
                    # The rows stay in the tail; readers by name miss nothing.
                    log.warning("folding %s is tried again: %s", name, error, exc_info=error)
                    tail.since = time.monotonic()

    def _fold(self, name: str, tail: _Tail) -> None:
        with tail.folding:
            with tail.lock:
                parts = list(tail.parts)
            rows = _newest(parts, tail.keys)
            if rows is None:
                return
            last = Epoch(parts[-1][0])
            path = self._lake.path(name)
            version = ArrowWriter(self._own).merge(path, rows, Guard(name, last), keys=tail.keys)
            failpoints.hit(failpoints.TAIL_AFTER_FOLD)
            base = self._own.open(path)
            assert base is not None
            tail.base_rows, tail.base_bytes = _size(base)
            self._moved[name] = TableAt(version=version, as_of_epoch=last)
            with tail.lock:
                del tail.parts[: len(parts)]
                tail.since = time.monotonic()


def newest_of(tail: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """Return the newest image per key of a tail table's rows, with `__op`, and the key columns."""
    if tail.num_rows == 0:
        return tail.drop_columns([EPOCH, KEYS]), ()
    keys = _keys_of(tail)
    parts = [
        (epoch, tail.filter(pc.equal(tail[EPOCH], epoch)).drop_columns([EPOCH, KEYS]))
        for epoch in sorted(pc.unique(tail[EPOCH]).to_pylist())
    ]
    newest = _newest(parts, keys)
    assert newest is not None
    return newest, keys


def whole(base: pa.Table | None, newest: pa.Table | None, keys: Sequence[str]) -> pa.Table | None:
    """Lay newest images (with `__op`, one per key) over base rows; deleted keys are gone."""
    if base is None or newest is None or newest.num_rows == 0:
        return base
    names = list(keys)
    touched = newest.select(names).cast(pa.schema([base.schema.field(k) for k in names]))
    kept = base.take(_untouched(base.select(names), touched))
    added = newest.filter(pc.equal(newest[OP], UPSERT)).drop_columns([OP])
    return pa.concat_tables([kept, added], promote_options="permissive")


def read_whole(
    lake: Lake,
    tables: Tables,
    name: str,
    *,
    at: Mapping[str, TableAt] | None = None,
    where: pc.Expression | None = None,
) -> pa.Table | None:
    """Read a `current` table with its tail, at the versions that `at` names, or the newest.

    `where` must be about key columns: it is applied to both parts.
    """
    if at is not None and name not in at:
        return None
    versions = {} if at is None else {n: t.version for n, t in at.items()}
    tail_at = tail_name(name)
    tail = None
    if at is None or tail_at in versions:
        # The tail first: a base that moves on meanwhile only has more of its rows.
        tail = tables.read(lake.path(tail_at), where=where, version=versions.get(tail_at))
    path, version = lake.path(name), versions.get(name)
    if tail is None or tables.open(path) is None:
        return tables.read(path, where=where, version=version)
    # A handle of its own: rows and epoch must be of one version.
    handle = DeltaTable(path, version=version)
    base = dataset_of(handle).to_table(filter=where)
    return whole(base, *newest_of(beyond(tail, handle, name)))


def beyond(tail: pa.Table, base: DeltaTable, name: str) -> pa.Table:
    """Return the rows of a tail that its base does not have: those of later epochs.

    Older ones change nothing, unless the base was mended since.
    """
    done = base.transaction_version(name) or 0
    return tail.filter(pc.greater(tail[EPOCH], done))


def _untouched(base: pa.Table, touched: pa.Table) -> pa.Array:
    """Return the places of base rows whose key is not among `touched`; a null equals a null."""
    if touched.num_columns == 1:
        hit = pc.is_in(base.column(0), value_set=touched.column(0).combine_chunks())
        return pc.indices_nonzero(pc.invert(hit))
    numbered = base.append_column("__row", pa.array(range(base.num_rows), pa.int64()))
    marks = touched.append_column("__hit", pa.array([True] * touched.num_rows))
    joined = numbered.join(marks, touched.column_names, join_type="left outer")
    return joined.filter(pc.is_null(joined["__hit"]))["__row"].combine_chunks().sort()


def _newest(parts: Sequence[tuple[int, pa.Table]], keys: tuple[str, ...]) -> pa.Table | None:
    if not parts:
        return None
    rows = pa.concat_tables([part for _, part in parts], promote_options="permissive")
    if len(parts) == 1:
        return rows
    numbered = rows.select(list(keys)).append_column(
        "__row", pa.array(range(rows.num_rows), pa.int64())
    )
    last = numbered.group_by(list(keys)).aggregate([("__row", "max")])
    return rows.take(last["__row_max"].combine_chunks().sort())


def marked(rows: pa.Table, keys: Sequence[str], epoch: int) -> pa.Table:
    """Add the columns by which a tail table knows the epoch and the key columns of its rows."""
    n = rows.num_rows
    rows = rows.append_column(EPOCH, pa.array([epoch] * n, pa.int64()))
    return rows.append_column(KEYS, pa.array([json.dumps(list(keys))] * n, pa.string()))


def _keys_of(tail: pa.Table) -> tuple[str, ...]:
    newest = tail.filter(pc.equal(tail[EPOCH], pc.max(tail[EPOCH])))
    return tuple(json.loads(newest[KEYS][0].as_py()))


def _fits(stored: pa.Schema, rows: pa.Schema) -> bool:
    """Say whether rows can be appended: no column has another type than the stored one."""
    known = {field.name: field.type for field in stored}
    return all(known.get(field.name, field.type) == field.type for field in rows)


def _size(table: DeltaTable) -> tuple[int, int]:
    actions = pa.table(table.get_add_actions())
    rows, size = pc.sum(actions["num_records"]).as_py(), pc.sum(actions["size_bytes"]).as_py()
    return int(rows or 0), int(size or 0)
