"""Which pipeline writes a lake: one at a time, by a lease with a fencing number; others stand by.

Who takes the lease adds a row to the ledger `leases`; the row's number is the fencing number, and
of two who try at once one fails. The holder then says again and again that it lives, in a small
file that bears the number. Clocks of machines are not compared: who stands by takes over when the
file has not changed for the lease's time by its own clock. So a process that was stopped finds at
its next beat that there is a higher number.

A lease keeps two pipelines from working against each other. That a late one changes nothing is
what the guards of commits see to, which do not ask for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from arro3.core import DataType, Field, Schema

from kernel.errors import Conflict, LeaseLost
from lake import storage
from lake.layout import Lake
from lake.ledger import Ledger
from lake.rows import SmallTables
from schemas.identifiers import text_literal

LEASES = "leases"
_TAKEN, _GIVEN_BACK = "taken", "given back"
SCHEMA = Schema(
    [
        Field("number", DataType.int64()),
        Field("name", DataType.utf8()),
        Field("kind", DataType.utf8()),
        Field("holder", DataType.utf8()),
        Field("place", DataType.utf8()),
        Field("at", DataType.timestamp("us", tz="UTC")),
    ]
)
_NEWEST = """
SELECT number, kind, holder, place FROM rows WHERE name = {name} ORDER BY number DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease as its newest row has it. `free`: its holder, at this `place`, gave it back."""

    number: int
    holder: str
    place: str
    free: bool


class WriterLease:
    """The lease `name` of one lake, for one holder; for one thread."""

    def __init__(
        self,
        lake: Lake,
        name: str,
        *,
        holder: str,
        place: str,
        ttl_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`holder` names this process; its predecessor, which is known to be dead, has the same.

        `place` is what people call the machine.
        """
        self.name, self.holder, self._place = name, holder, place
        self.number: int | None = None
        """The fencing number while the lease is held."""
        self._path = lake.path(LEASES)
        self._ledger = Ledger(self._path, SmallTables(), SCHEMA, f"{LEASES}/{name}")
        self._rows = SmallTables()
        self._folder = f"{lake.root}/_beats"
        self._ttl_s = ttl_s
        self._now = now
        self._beats = 0
        self._seen: tuple[int, bytes | None, float] = (0, None, now())

    def take(self) -> LeaseRow | None:
        """Take the lease; return who has it where that is another one.

        To be called often: how long the holder has been silent is what was seen between two calls.
        """
        newest = self.newest()
        held = newest is not None and not newest.free and newest.holder != self.holder
        if newest is not None and held and not self._silent(newest.number):
            return newest
        try:
            self.number = self._write(_TAKEN, newest)
        except Conflict:
            return self.newest()
        self.keep()
        if newest is not None:
            storage.remove_file(self._folder, self._file(newest.number))
        return None

    def keep(self) -> None:
        """Say that the holder lives. Raises `LeaseLost` when another one has taken the lease."""
        newest = self.newest()
        if newest is None or newest.number != self.number:
            self.number = None
            other = "nobody" if newest is None else newest.place
            raise LeaseLost(f"{self.name} of this lake is held by {other} now")
        self._beats += 1
        storage.make_folder(self._folder)
        storage.write_whole(self._folder, self._file(newest.number), f"{self._beats}".encode())

    def release(self) -> None:
        """Give the lease back, so that the next one need not wait."""
        if self.number is None:
            return
        held, number = self.newest(), self.number
        self.number = None
        if held is not None and held.number == number:
            self._write(_GIVEN_BACK, held)
            storage.remove_file(self._folder, self._file(number))

    def newest(self) -> LeaseRow | None:
        """Return the lease as it is; None where nobody ever had it."""
        rows = self._rows.select(self._path, _NEWEST.format(name=text_literal(self.name)))
        return _lease_row(rows[0]) if rows else None

    def _write(self, kind: str, after: LeaseRow | None) -> int:
        """Add a row behind the one that was looked at. Raises `Conflict` where there is another."""

        def rows(number: int) -> Sequence[Mapping[str, object]]:
            if self.newest() != after:
                raise Conflict(f"{self.name} was taken meanwhile")
            moment = datetime.now(UTC)
            who = {"name": self.name, "holder": self.holder, "place": self._place}
            return [{"number": number, "kind": kind, "at": moment, **who}]

        return self._ledger.put(rows)

    def _silent(self, number: int) -> bool:
        """Say whether a holder has not been seen to live for the lease's time."""
        beat = self._beat(number)
        if self._seen[:2] != (number, beat):
            self._seen = number, beat, self._now()
        return self._now() - self._seen[2] >= self._ttl_s

    def _beat(self, number: int) -> bytes | None:
        try:
            return storage.read(self._folder, self._file(number))
        except FileNotFoundError:
            return None

    def _file(self, number: int) -> str:
        return f"{storage.place_of(self._folder)[1]}/{self.name}.{number}"


def _lease_row(row: Mapping[str, object]) -> LeaseRow:
    number, free = row["number"], row["kind"] == _GIVEN_BACK
    assert isinstance(number, int)
    return LeaseRow(number, str(row["holder"]), str(row["place"]), free)
