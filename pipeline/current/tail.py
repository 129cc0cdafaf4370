"""Base and tail: `current` tables for which a merge in every epoch would cost too much.

A merge of random keys rewrites nearly the whole table, whatever the number of changes. Above a
size the epoch's newest images are therefore only appended to `current/_tail/<source>.<table>`
(columns of the table, `__op`, `__epoch`, `__keys`), and a thread has them merged into the base
beside ingest (`merging`), as often as the policy says. Who reads by name sees base plus tail,
newest wins (`layers`); who reads the base's path sees it as of its own epoch: the version of its
guard.

One writer each: ingest alone writes tails, the folding thread alone writes bases, and `settle`
makes it stand still. A pair of versions in the manifest is always right: the tail holds every
epoch after the one that the base has, and may hold some before it, which change nothing. A crash
repeats the append by its guard; rows that the base lacks are found in the tail again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import LeaseLost, PenstockError
from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.datasets import schema_of
from lake.file_actions import size_of
from lake.layers import EPOCH, FOLDER, KEYS, keys_of, marked, newest_image, tail_name
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard, reached
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.merging import BaseMerge, MergeHere

_REWRITE_FILES = 24
_LOOK_S = 0.05
_PATIENCE_S = 2.0
"""So long who needs a base waits for the merge that the folding thread is at."""
_PAUSES_S = (1.0, 5.0, 15.0, 60.0)
"""After one fold that failed, two, three, and more."""

log = logging.getLogger("penstock.fold")


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
    spent: tuple[float, ...] = ()
    failures: int = 0
    rests_until: float = 0.0

    rows: int = 0
    size: int = 0

    @property
    def spent_s(self) -> float:
        """What merges take: the shorter of the last two, since one may have met a busy disk."""
        return min(self.spent, default=0.0)

    def put(self, epoch: int, rows: pa.Table) -> None:
        """Take an epoch's images in."""
        with self.lock:
            if not self.parts:
                self.since = time.monotonic()
            self.parts.append((epoch, rows))
            self.rows, self.size = self.rows + rows.num_rows, self.size + rows.nbytes

    def drop(self, count: int) -> None:
        """Let go of the oldest parts: the base has them."""
        with self.lock:
            for _, rows in self.parts[:count]:
                self.rows, self.size = self.rows - rows.num_rows, self.size - rows.nbytes
            del self.parts[:count]
            self.since = time.monotonic()


class TailTables:
    """Keeps the tails of one lake and folds them in a thread of its own. Ingest calls the rest.

    `beside` merges for that thread. What ingest itself waits for is merged here.
    """

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        policy: FoldPolicy | None = None,
        *,
        beside: BaseMerge | None = None,
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._policy = policy or FoldPolicy()
        self._tails: dict[str, _Tail] = {}
        self._without: set[str] = set()
        self._moved: dict[str, TableAt] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._beginning = threading.Lock()
        self._beside = beside or MergeHere()
        # Handles of its own: ingest refreshes the ones that it reads with meanwhile.
        self._here = MergeHere()

    def resume(self, known: Mapping[str, TableAt]) -> None:
        """Take up the tails that the manifest names, after a start."""
        for name in known:
            if name.startswith(FOLDER):
                own = "current/" + name.removeprefix(FOLDER)
                with Attempts().of(own):  # What fails here fails again where the table is folded.
                    self._load(own)

    def wants(self, base: DeltaTable | None, in_memory: int | None = None) -> bool:
        """Say whether a table is large enough for a tail.

        One whose rows take few bytes in memory is not: its files need not be looked at.
        """
        if in_memory is not None and 2 * in_memory <= self._policy.direct_bytes:
            return False
        return base is not None and size_of(base)[1] > self._policy.direct_bytes

    def add(
        self,
        name: str,
        rows: pa.Table,
        keys: Sequence[str],
        epoch: Epoch,
        *,
        anew: bool = False,
    ) -> dict[str, TableAt]:
        """Append an epoch's newest images (one per key, with `__op`) to the tail of a table.

        `anew`: in place of all that it has, which are rows of other columns that the base has.
        Waits for the folding thread while the tail is full. Returns the versions of both tables.
        """
        tail = self._load(name) or self._tails.setdefault(name, _Tail(keys=tuple(keys)))
        self._without.discard(name)
        path = self._lake.path(tail_name(name))
        stored = self._tables.open(path)
        odd = anew or (stored is not None and not _fits(schema_of(stored), rows.schema))
        if self._fills(tail, rows):
            # A merge that is under way is awaited: begun anew it would take as long again.
            with tail.folding:
                pass
        if tail.keys != tuple(keys) or odd or self._fills(tail, rows):
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
            tail.put(epoch, rows)
        self._start()
        return self.versions(name, epoch)

    def _fills(self, tail: _Tail, rows: pa.Table) -> bool:
        together = tail.rows + rows.num_rows, tail.size + rows.nbytes
        return self._policy.full(*together, tail.base_rows)

    def newest(self, name: str) -> pa.Table | None:
        """Return the newest image per key that the base lacks, with `__op`; None for no tail."""
        tail = self._load(name)
        if tail is None:
            return None
        with tail.lock:
            parts = list(tail.parts)
        return newest_image(parts, tail.keys)

    def parts(self, name: str) -> list[tuple[int, pa.Table]]:
        """Return the images that the base of a table lacks, by epoch."""
        tail = self._load(name)
        return [] if tail is None else [*tail.parts]

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the key columns of a table that has a tail."""
        return self._tails[name].keys

    def settle(self, name: str) -> None:
        """Fold the tail of a table at once; return when its base has everything."""
        tail = self._load(name)
        if tail is None:
            return
        if not tail.folding.acquire(timeout=_PATIENCE_S):
            # The process beside has a low priority, and ingest waits.
            self._beside.hurry()
            tail.folding.acquire()
        try:
            self._fold(name, tail, self._here)
        finally:
            tail.folding.release()

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
        version = stored.version()
        if stored.count():
            empty = schema_of(stored).empty_table()
            version = self._writer.overwrite(path, empty, Guard(tail_name(name), epoch))
        self._tails.pop(name, None)
        return {tail_name(name): TableAt(version=version, as_of_epoch=epoch)}

    def named(self, name: str) -> None:
        """Take note that the manifest is told a later version of a base than a fold before made."""
        self._moved.pop(name, None)

    def moved(self) -> dict[str, TableAt]:
        """Return the bases that were folded since the last call: the manifest is to name them."""
        moved, self._moved = self._moved, {}
        return moved

    def close(self) -> None:
        """End the folding thread after the merge that it is at."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():
                self._beside.hurry()
            self._thread.join()
        self._beside.close()

    def versions(self, name: str, epoch: Epoch) -> dict[str, TableAt]:
        """Return the versions of a table and of its tail, as of an epoch that both have."""
        # The tail first: a base that moves on meanwhile only has more of the tail's rows.
        tail = self._tables.open(self._lake.path(tail_name(name)))
        base = self._tables.open(self._lake.path(name))
        assert tail is not None
        assert base is not None
        self._moved.pop(name, None)
        if not self._tails[name].base_bytes:
            self._tails[name].base_rows, self._tails[name].base_bytes = size_of(base)
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
        keys = keys_of(rows)
        base = self._tables.open(self._lake.path(name))
        done = (base.transaction_version(name) if base is not None else None) or 0
        missing = rows.filter(pc.greater(rows[EPOCH], done))
        parts = [
            (epoch, missing.filter(pc.equal(missing[EPOCH], epoch)).drop_columns([EPOCH, KEYS]))
            for epoch in sorted(pc.unique(missing[EPOCH]).to_pylist())
        ]
        tail = _Tail(keys=keys)
        for epoch, part in parts:
            tail.put(epoch, part)
        tail.base_rows, tail.base_bytes = (0, 0) if base is None else size_of(base)
        self._tails[name] = tail
        if parts:
            self._start()
        return tail

    def _start(self) -> None:
        with self._beginning:  # Tables are folded side by side.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="fold", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            for name, tail in list(self._tails.items()):
                if not tail.parts or self._stop.is_set() or time.monotonic() < tail.rests_until:
                    continue
                if not self._policy.due(
                    age_s=time.monotonic() - tail.since,
                    rows=tail.rows,
                    size=tail.size,
                    base_rows=tail.base_rows,
                    base_bytes=tail.base_bytes,
                    spent_s=tail.spent_s,
                ):
                    continue
                try:
                    with tail.folding:
                        self._fold(name, tail, self._beside)
                except LeaseLost as error:
                    log.warning("folding %s: %s", name, error.message)
                    return
                except Exception as error:
                    # The rows stay in the tail; readers by name miss nothing.
                    odd = None if isinstance(error, PenstockError) else error
                    log.warning("folding %s is tried again: %s", name, error, exc_info=odd)
                    pause_s = _PAUSES_S[min(tail.failures, len(_PAUSES_S) - 1)]
                    tail.failures += 1
                    tail.rests_until = time.monotonic() + pause_s

    def _fold(self, name: str, tail: _Tail, merge: BaseMerge) -> None:
        """Fold what the tail has by now; the caller holds `tail.folding`."""
        with tail.lock:
            parts = list(tail.parts)
        rows = newest_image(parts, tail.keys)
        if rows is None:
            return
        last = Epoch(parts[-1][0])
        began = time.monotonic()
        base = merge(self._lake.path(name), rows, Guard(name, last), tail.keys)
        tail.spent = (*tail.spent[-1:], time.monotonic() - began)
        self._tables.changed(self._lake.path(name))
        failpoints.hit(failpoints.TAIL_AFTER_FOLD)
        tail.base_rows, tail.base_bytes = base.rows, base.size
        self._moved[name] = TableAt(version=base.version, as_of_epoch=last)
        tail.drop(len(parts))
        tail.failures = 0


def _fits(stored: pa.Schema, rows: pa.Schema) -> bool:
    """Say whether rows can be appended: no column has another type than the stored one."""
    known = {field.name: field.type for field in stored}
    return all(known.get(field.name, field.type) == field.type for field in rows)
