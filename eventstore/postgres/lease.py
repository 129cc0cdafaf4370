"""Who may append: a lease with a fencing number.

Each take-over counts `number` up, under the append lock. A writer compares the number inside each
group's transaction, so a stale one, however late it wakes, commits nothing. A lease is taken over
when the holder's connection is gone, which the advisory lock on it tells at once, or when it has
not been renewed in time: a process that is stopped, or cut off, still has a connection.
"""

from __future__ import annotations

import asyncio
from typing import cast

from eventstore.feed import diverged
from eventstore.postgres.connect import Connection, half_filled
from eventstore.postgres.locks import APPEND_LOCK, LEASE_LOCK
from eventstore.postgres.queries import results
from kernel import failpoints
from kernel.errors import Standby, Unavailable


class Lease:
    """The lease of one writer, on the writer's own connection."""

    def __init__(self, *, holder: str, ttl_s: float) -> None:
        self.holder = holder
        self.number: int | None = None
        self.store_id = ""
        self.categories: set[str] = set()
        self.refused = False
        self._ttl_s = ttl_s
        self._renew_at = 0.0

    def forget(self) -> None:
        """Hold nothing: the connection is a new one."""
        self.number = None

    async def hold(self, connection: Connection) -> int | None:
        """Take the lease, or renew it when a third of its time is over.

        Returns the store's head when it was read. Raises `Standby` while another holds it.
        """
        now = asyncio.get_running_loop().time()
        self.refused = False
        if self.number is None:
            head = await self._take(connection)
        elif now >= self._renew_at:
            head = await self._renew(connection)
        else:
            return None
        self._renew_at = now + self._ttl_s / 3
        return head

    async def release(self, connection: Connection) -> None:
        """Give the lease back, so that the next writer need not wait."""
        if self.number is not None:
            await results(connection, "release_lease", number=self.number)
        self.number = None

    async def _take(self, connection: Connection) -> int:
        _, taken, _, state, categories = await results(
            connection,
            "take_lease",
            append_lock=APPEND_LOCK,
            lease_lock=LEASE_LOCK,
            holder=self.holder,
            ttl_s=self._ttl_s,
        )
        holder, head, store_id, known_head, filling = state[0]
        if filling:
            raise half_filled()
        if known_head is not None:
            raise diverged(head, known_head)
        if not taken:
            self.refused = True
            raise Standby(f"{holder} is the writer now")
        failpoints.hit(failpoints.LEASE_AFTER_TAKE)
        self.number = taken[0][0]
        self.store_id = str(store_id)
        self.categories = {category for (category,) in categories}
        return cast(int, head)

    async def _renew(self, connection: Connection) -> int:
        (renewed,) = await results(connection, "renew_lease", number=self.number, ttl_s=self._ttl_s)
        if not renewed:
            self.number = None
            raise Unavailable("another writer took over while this one was silent")
        return cast(int, renewed[0][0])
