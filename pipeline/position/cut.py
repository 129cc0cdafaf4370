"""The cut of one captured source: the last commit up to which its state may be folded.

Kafka delivers the rows of one source transaction over several topics, at different times. A
transaction is complete when, for every table that its END event counts, that many rows arrived
(duplicates excluded: they never reach this class). The cut is the last complete transaction all of
whose predecessors are complete too, in the order of the END events, which is commit order. State
that is folded up to the cut therefore never shows half a transaction.

The rows of a snapshot that the connector reads come before all transactions and count as one: they
become foldable together, when every table has as many rows as its end-of-snapshot record says.

A connector that starts again amid a transaction says BEGIN once more, and the END of one that goes
on amid it may count only what it sent since. Such a transaction is complete when it has that many
rows and all has been read that Kafka held after the END was seen: its rows were written before it.

A source whose rows we copy ourselves is *held* instead: the cut stands still while transactions
complete behind it, and is released by the install of the copied tables (`installs`).

A record in quarantine names no transaction. One that lacks rows is complete without them when all
has been read that Kafka held after its END was seen, and as many records of these tables are in
quarantine: the tables stand still then (`Advance.lacks`), nothing else does. A logical message may
have told of any table, and an END in quarantine is lacking altogether: these hold the cut until
somebody has the record decoded again, or waives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping

from kernel.positions import Offsets, covers
from lake.table_columns import TRANSACTIONS_TABLE
from pipeline.position.shortfalls import Shortfalls
from pipeline.position.transactions import NOWHERE, Advance, End, SeenRows
from schemas.identifiers import topic_part
from schemas.records import MESSAGES


class Cut:
    """Tracks one source. Feed it rows and ends in any order; ask it to advance per epoch.

    The footprint is bounded by the transactions that are in flight between topics.
    """

    def __init__(self) -> None:
        self.lsn = 0
        self.snapshot_done = False
        self._ends: deque[End] = deque()
        self._last_end_lsn = 0
        self._seen: dict[str, SeenRows] = {}
        self._snapshot = SeenRows(0, {})
        self._snapshot_lsn = 0
        self._expected: dict[str, int] = {}
        self._snapshot_ended = False
        self.held = False
        self.copied: set[str] | None = None
        self._ready_lsn = 0
        self._ready_from: int | None = None
        self._begun: set[str] = set()
        self._restarted: dict[str, Offsets | None] = {}
        self.shortfalls = Shortfalls()

    def begin(self, transaction_id: str) -> None:
        """Take note of a BEGIN. The second one of a transaction without an END is a restart's."""
        if transaction_id in self._begun:
            self._restarted.setdefault(transaction_id, {})
        self._begun.add(transaction_id)

    def settle(self, read: Offsets, ends: Callable[[], Offsets]) -> None:
        """Complete ended transactions that may lack rows for good, if all was read.

        `read` are the offsets up to which Kafka has been read; `ends` gives those at which the
        source's topics end now. It is asked in one epoch and compared with from the next one on:
        an epoch that is done again must come to the same, whatever Kafka holds by then.
        """
        now: Offsets | None = None
        any_of_them = self.shortfalls.unread[TRANSACTIONS_TABLE] > 0
        for end in self._ends:
            name = end.transaction_id
            if any_of_them or self.shortfalls.concerns(self._lacking(end)):
                self._restarted.setdefault(name, {})
            until = self._restarted.get(name)
            if until == {}:
                now = ends() if now is None else now
                self._restarted[name] = now
            elif until is not None and covers(read, until):
                self._restarted[name] = None

    def row(
        self,
        name: str,
        table: str,
        *,
        epoch: int,
        lsn: int = 0,
        rows: int = 1,
        order: int = 0,
        size: int = 0,
    ) -> None:
        """Count a row of the transaction `name`, or several. `lsn` is the row's, or the greatest.

        `order` is the end of the commit before the transaction, 0 where it is not known; `size` the
        bytes of the rows.
        """
        seen = self._seen.setdefault(name, SeenRows(epoch, {}))
        seen.add(table, rows, size, lsn, order)

    def snapshot_row(self, table: str, *, lsn: int, epoch: int, size: int = 0) -> None:
        """Count a row of a snapshot, of `size` bytes. One at a higher LSN starts it over."""
        if lsn > self._snapshot_lsn:
            self._snapshot_lsn = lsn
            self._snapshot = SeenRows(epoch, {})
        if lsn == self._snapshot_lsn:
            self._snapshot.add(table, 1, size, lsn, 0)

    def snapshot_end(self, table: str | None, rows: int) -> None:
        """Take note that a table's snapshot has `rows` rows; None: that there is no other table."""
        if table is None:
            self._snapshot_ended = True
        else:
            self._expected[table] = rows

    def end(self, transaction_id: str, lsn: int, counts: Mapping[str, int]) -> bool:
        """Take note of a committed transaction; return False for one that was noted before."""
        self._begun.discard(transaction_id)
        if lsn <= self._last_end_lsn:
            return False
        self._last_end_lsn = lsn
        self._ends.append(End(transaction_id, lsn, dict(counts)))
        return True

    def late_end(self, transaction_id: str, lsn: int, counts: Mapping[str, int]) -> bool:
        """Take note of an END that was in quarantine; return False for one of no use any more."""
        if lsn <= self.reached or any(end.transaction_id == transaction_id for end in self._ends):
            return False
        ends = [*self._ends, End(transaction_id, lsn, dict(counts))]
        self._ends = deque(sorted(ends, key=lambda end: end.lsn))
        self._last_end_lsn = max(lsn, self._last_end_lsn)
        return True

    @property
    def snapshot_lsn(self) -> int:
        """LSN of the snapshot whose rows count."""
        return self._snapshot_lsn

    @property
    def reached(self) -> int:
        """LSN up to which every transaction is complete: `lsn`, or ahead of it while held."""
        return max(self.lsn, self._ready_lsn)

    @property
    def seen_up_to(self) -> int:
        """LSN up to which ENDs have come, complete or not: those before it are duplicates."""
        return max(self.reached, self._last_end_lsn)

    def hold(self) -> None:
        """Keep the cut where it is until `release`: tables are being copied from the source."""
        self.held = True

    def release(self, *, copied: Collection[str], since: int) -> None:
        """Let the cut go on from `reached`: the tables `copied` hold the state of a place below.

        From now on a table that was not copied is folded only after an install of its own.
        `since` is where the present slot began: transactions that a slot before it left incomplete
        are forgotten, the copied rows have what they did.
        """
        self.copied = set(copied)
        self.lsn, self._ready_lsn, self._ready_from = self.reached, 0, None
        self.held, self.snapshot_done = False, True
        self._ends = deque(end for end in self._ends if end.lsn > since)
        open_ = {end.transaction_id for end in self._ends}
        self._seen = {
            tx: seen for tx, seen in self._seen.items() if tx in open_ or seen.lsn > since
        }
        known = open_ | self._seen.keys() | self._begun
        self._restarted = {tx: ends for tx, ends in self._restarted.items() if tx in known}

    def give_up(self, since: int) -> None:
        """While held, pass transactions up to `since` that lack rows for good: copies have them.

        Kafka may have lost what it was to bring of them. Their rows are waited for until all has
        been read that it held after this was asked first.
        """
        lacking = [end for end in self._ends if end.lsn <= since]
        for end in lacking:
            self._restarted.setdefault(end.transaction_id, {})
        for end in lacking:
            if not self._settled(end):
                break
            self._ends.popleft()
            del self._restarted[end.transaction_id]
            self._leave_behind(end)
        if self._last_end_lsn > since and not (self._ends and self._ends[0].lsn <= since):
            # ENDs come in order: that of rows which stand before one behind `since` never does.
            open_ = {end.transaction_id for end in self._ends}
            self._seen = {
                tx: seen
                for tx, seen in self._seen.items()
                if tx in open_ or max(seen.lsn, seen.order) > since
            }
        self._advance_behind()

    def installed(self, table: str) -> None:
        """Take note that a table has been copied by itself."""
        if self.copied is not None:
            self.copied.add(table)

    def folds(self, table: str) -> bool:
        """Say whether changes of a table are folded, or wait for its install."""
        return not self.held and (self.copied is None or table in self.copied)

    def advance(self, up_to: int = NOWHERE, most: int = NOWHERE) -> Advance:
        """Move the cut as far as it goes, at most `up_to` an LSN; say what became foldable.

        That is no more than `most` transactions that have rows.
        """
        if self.held:
            self._advance_behind()
            return Advance(transactions=(), snapshot=False, from_epoch=None)
        snapshot = not self.snapshot_done and self._snapshot_complete()
        if snapshot:
            self.snapshot_done = True
            self.lsn = max(self.lsn, self._snapshot_lsn)
        done: dict[str, SeenRows] = {}
        lacks: set[str] = set()
        first = self._first_without_end()
        while self.snapshot_done and self._ends and self._complete(self._ends[0], first):
            if self._ends[0].lsn > up_to or len(done) >= most:
                break
            end = self._ends.popleft()
            lacks |= self._pass(end)
            seen = self._seen.pop(end.transaction_id, None)
            if seen is not None:
                done[end.transaction_id] = seen
            self.lsn = end.lsn
        self._forget_without_end(first)
        return Advance.of(done, self._snapshot if snapshot else None, lacks, self.folds)

    def _advance_behind(self) -> None:
        """Forget complete transactions: at the release they are found in the log again."""
        first = self._first_without_end()
        while self._ends and self._complete(self._ends[0], first):
            end = self._ends.popleft()
            self._pass(end)
            self._leave_behind(end)
        self._forget_without_end(first)

    def _leave_behind(self, end: End) -> None:
        seen = self._seen.pop(end.transaction_id, None)
        if seen is not None:
            since = self._ready_from
            self._ready_from = min(seen.first_epoch, since if since is not None else 2**62)
        self._ready_lsn = end.lsn

    def waiting_for(self) -> str | None:
        """Say what holds the cut: the transaction or snapshot and the rows missing, or None."""
        if self.held and self.poisoned() is None:
            return "its tables are being copied"
        if not (self.held or self.snapshot_done) and (self._expected or self._snapshot.counts):
            return f"snapshot: expected {self._expected}, have {self._snapshot.counts}"
        if not self._ends:
            return None
        end = self._ends[0]
        if until := self._restarted.get(end.transaction_id):
            return (
                f"transaction {end.transaction_id}, which may lack rows (its connector started "
                f"again, or they are in quarantine), until all is read: {until}"
            )
        seen = self._seen.get(end.transaction_id)
        have = seen.counts if seen else {}
        return f"transaction {end.transaction_id}: expected {dict(end.counts)}, have {have}"

    def poisoned(self) -> str | None:
        """Return what its records in quarantine hold the cut: `_messages`, `_transactions`."""
        if not self._ends or not self._settled(self._ends[0]):
            return None
        end, unread = self._ends[0], self.shortfalls.unread
        if unread[MESSAGES] and MESSAGES in self._lacking(end):
            return MESSAGES
        without = unread[TRANSACTIONS_TABLE] and self._first_without_end() < end.lsn
        return TRANSACTIONS_TABLE if without else None

    def pending_from_epoch(self, *, default: int) -> int:
        """Return the oldest epoch with rows that are not foldable yet, else `default`."""
        epochs = [seen.first_epoch for seen in self._seen.values()]
        if not self.snapshot_done and self._snapshot.counts:
            epochs.append(self._snapshot.first_epoch)
        if self._ready_from is not None:
            epochs.append(self._ready_from)
        return min(epochs, default=default)

    def _snapshot_complete(self) -> bool:
        have = self._snapshot.counts
        waived = self.shortfalls.waived
        return self._snapshot_ended and all(
            have.get(table, 0) + waived[topic_part(table)] >= rows
            for table, rows in self._expected.items()
        )

    def _complete(self, end: End, first_without_end: int) -> bool:
        settled = self._settled(end)
        if end.transaction_id in self._restarted and not settled:
            return False
        if self.shortfalls.unread[TRANSACTIONS_TABLE] and (
            not settled or first_without_end < end.lsn
        ):
            return False
        lacking = self._lacking(end)
        return not lacking or (settled and self.shortfalls.excuses(lacking))

    def _settled(self, end: End) -> bool:
        """Say whether all has been read that Kafka held after an END that was in question."""
        return self._restarted.get(end.transaction_id, {}) is None

    def _lacking(self, end: End) -> dict[str, int]:
        seen = self._seen.get(end.transaction_id)
        have = seen.counts if seen else {}
        lacking = {table: rows - have.get(table, 0) for table, rows in end.counts.items()}
        return {table: rows for table, rows in lacking.items() if rows > 0}

    def _first_without_end(self) -> int:
        """Return where the first transaction with rows stands whose END has not come.

        One that stands before another's END committed before it: its own END was lost.
        """
        ended = {end.transaction_id for end in self._ends}
        orders = (seen.order for tx, seen in self._seen.items() if tx not in ended)
        return min(orders, default=NOWHERE)

    def _forget_without_end(self, first: int) -> None:
        """Forget transactions passed without an END, if one was waived."""
        if not self.shortfalls.waived[TRANSACTIONS_TABLE] or first >= self.reached:
            return
        ended = {end.transaction_id for end in self._ends}
        gone = [t for t, s in self._seen.items() if t not in ended and s.order < self.reached]
        for transaction in gone:
            del self._seen[transaction]
        self.shortfalls.take({TRANSACTIONS_TABLE: 1})

    def _pass(self, end: End) -> set[str]:
        """Settle accounts for a complete transaction; return tables that lack an unread row."""
        self._restarted.pop(end.transaction_id, None)
        return self.shortfalls.take(self._lacking(end))

    def to_json(self) -> dict[str, object]:
        """Return the form in which the manifest keeps it."""
        return {
            "lsn": self.lsn,
            "snapshot_done": self.snapshot_done,
            "last_end_lsn": self._last_end_lsn,
            "ends": [[e.transaction_id, e.lsn, dict(e.counts)] for e in self._ends],
            "seen": {tx: seen.to_json() for tx, seen in self._seen.items()},
            "snapshot": [self._snapshot_lsn, self._snapshot.first_epoch, self._snapshot.counts],
            # By itself: versions that counted no bytes read the manifest all the same.
            "snapshot_sizes": self._snapshot.sizes,
            "expected": self._expected,
            "snapshot_ended": self._snapshot_ended,
            "held": self.held,
            "copied": None if self.copied is None else sorted(self.copied),
            "ready": [self._ready_lsn, self._ready_from],
            "begun": sorted(self._begun),
            "restarted": self._restarted,
            "shortfalls": self.shortfalls.to_json(),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, object]) -> Cut:
        """Restore what `to_json` gave."""
        cut = cls()
        match kept:
            case {
                "lsn": int(lsn),
                "snapshot_done": bool(done),
                "last_end_lsn": int(last),
                "ends": list(ends),
                "seen": dict(seen),
                "snapshot": [int(at), int(first), dict(counts)],
                "expected": dict(expected),
                "snapshot_ended": bool(ended),
            }:
                cut.lsn, cut.snapshot_done, cut._last_end_lsn = lsn, done, last
                cut._ends = deque(End(tx, at_lsn, wanted) for tx, at_lsn, wanted in ends)
                cut._seen = {tx: SeenRows(*found) for tx, found in seen.items()}
                cut._snapshot_lsn, cut._snapshot = at, SeenRows(first, counts)
                cut._expected, cut._snapshot_ended = expected, ended
            case _:
                raise ValueError(f"not a kept cut: {kept!r}")
        match kept:
            # Manifests of before there were copies lack these.
            case {"held": bool(held), "copied": copied, "ready": [int(ready), from_epoch]}:
                cut.held, cut._ready_lsn = held, ready
                cut._ready_from = from_epoch if isinstance(from_epoch, int) else None
                cut.copied = set(copied) if isinstance(copied, list) else None
        match kept:  # And these manifests of before restarts amid a transaction were told.
            case {"begun": list(begun), "restarted": dict(restarted)}:
                cut._begun, cut._restarted = set(begun), restarted
        if isinstance(sizes := kept.get("snapshot_sizes"), dict):
            cut._snapshot.sizes = sizes
        cut.shortfalls = Shortfalls.from_json(kept.get("shortfalls"))
        return cut
