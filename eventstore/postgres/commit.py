"""One group, one transaction.

A group goes in one call, on the belief that nobody else has appended
(`eventstore.postgres.one_call`). When that is refused, and for all
other groups, the writer looks first:

1. Take the append lock, check the fencing number, read heads, known ids and the store's head.
2. Decide every request in queue order (`eventstore.decision`).
3. COPY the accepted events, and remember their tags, their categories and new streams.
4. Commit.

The lock is held over the commit, so positions follow commit order and every snapshot that a
reader can get is a prefix of the store. The cost is one fsync per group, not per request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime

import psycopg

from eventstore.archive import Archive, NoArchive
from eventstore.decision import (
    MAX_CATEGORIES,
    Outcome,
    SameData,
    StoreState,
    decide_group,
    ids_of,
    same_bytes,
    streams_of,
)
from eventstore.feed import diverged
from eventstore.lifecycle import StreamPolicy
from eventstore.postgres import one_call
from eventstore.postgres.connect import Connection, connect, wrapped
from eventstore.postgres.lease import Lease
from eventstore.postgres.locks import APPEND_LOCK
from eventstore.postgres.matching import BUDGET_UNDER_LOCK, MAX_WALKS, Probes, probes_of
from eventstore.postgres.queries import query, results
from eventstore.postgres.repeats import Recalled, archived_of, cleared, recall
from eventstore.postgres.rows import (
    COPY_EVENTS,
    copy_lines,
    of_row,
    policy_values,
    stored,
)
from eventstore.store import AppendRequest
from kernel import failpoints
from kernel.errors import (
    ContractViolation,
    LeaseLost,
    OutcomeUnknown,
    PenstockError,
    StoreDiverged,
    Unavailable,
)
from kernel.positions import Position

_HEADS_CACHED = 200_000
# Who repeats ids makes each group be sent twice, but only now and then.
_LOOKS_AFTER_REFUSAL = 16
# A group looks thousands of ids up at once. For that many the planner reads a store of some ten
# thousand events from end to end, which takes ten times as long as the index. For a condition, of a
# table that was never analysed, it would sort all events of a tag rather than read the newest one.
PLANNING = "SET enable_seqscan = off; SET enable_bitmapscan = off"


class PostgresGroupCommit:
    """Commits groups on a connection of its own, under a lease."""

    def __init__(
        self,
        dsn: str,
        *,
        holder: str,
        lease_ttl_s: float = 10.0,
        same_data: SameData = same_bytes,
        max_categories: int = MAX_CATEGORIES,
        archive: Archive | None = None,
    ) -> None:
        self._dsn = dsn
        self._archive = archive or NoArchive()
        self._same_data = same_data
        self._max_categories = max_categories
        self._lease = Lease(holder=holder, ttl_s=lease_ttl_s)
        self._connection: Connection | None = None
        # Heads of streams as of `_head`: true as long as the head stands where we left it.
        self._heads: OrderedDict[str, int] = OrderedDict()
        self._head = 0
        self._look_first = 0
        self._diverged: StoreDiverged | None = None
        self._noted = False
        self._sent = False

    async def prepare(self) -> Position:
        """Open the connection and take or renew the lease, as needed; return the head."""
        if self._diverged is not None:
            await self._note_diverged()
            raise self._diverged
        try:
            with wrapped("holding the append lease"):
                if self._connection is None:
                    self._connection = await connect(self._dsn, cursor=psycopg.AsyncClientCursor)
                    self._lease.forget()
                    await self._connection.execute(PLANNING)
                    await one_call.prepare(self._connection)
                head = await self._lease.hold(self._connection)
        except Unavailable:
            await self._discard(keep=self._lease.refused)
            raise
        except StoreDiverged as error:
            self._diverged = error  # An earlier process has found and noted it.
            self._noted = True
            await self._discard()
            raise
        except BaseException:
            await self._discard()
            raise
        if head is not None:
            self._moved_to(head)
        return Position(self._head)

    async def commit(self, requests: Sequence[AppendRequest]) -> tuple[list[Outcome], Position]:
        """Decide and commit a group; see `GroupCommit.commit`."""
        connection = self._connection
        if connection is None:
            raise Unavailable("not connected to PostgreSQL")
        self._sent = False
        try:
            with wrapped("appending"):
                outcomes = await self._at_once(connection, requests)
                if outcomes is None:
                    outcomes = await self._looking_first(connection, requests)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            with wrapped("appending"):
                await connection.execute("ROLLBACK")
            raise ContractViolation(f"PostgreSQL refused the data: {error}") from error
        except Unavailable as error:
            await self._discard()
            raise OutcomeUnknown(error.message) if self._sent else error from error
        except (PenstockError, asyncio.CancelledError):
            await self._discard()
            raise
        except Exception as error:
            await self._discard()
            if self._sent:
                raise OutcomeUnknown(f"{type(error).__name__} after the commit") from error
            raise
        return outcomes, Position(self._head)

    async def close(self) -> None:
        """Let go of the lease and close the connection."""
        if self._connection is not None and not self._connection.closed:
            try:
                with wrapped("releasing the append lease"):
                    await self._lease.release(self._connection)
            except PenstockError:
                pass  # It runs out by itself.
        await self._discard()

    async def _at_once(
        self, connection: Connection, requests: Sequence[AppendRequest]
    ) -> list[Outcome] | None:
        """Commit a group in one call. None when nothing was kept, for it needs a look first."""
        if self._look_first > 0:
            self._look_first -= 1
            return None
        state = await self._believed(connection, requests)
        if state is None:
            return None
        probes = probes_of(requests)
        if probes is not None:
            if len(probes.walks) > MAX_WALKS:
                return None
            # Most conditions hold: the call makes sure of it.
            state.matched = probes.presumed
        categories = len(state.categories)
        outcomes = self._decide(requests, state)
        # A refusal may stem from an id that is in the store already, which nobody has looked for.
        refused = any(isinstance(outcome, PenstockError) for outcome in outcomes)
        if refused or len(state.categories) > categories:
            return None
        belief = one_call.Belief(
            lease=self._lease.number or 0,
            before=Position(self._head),
            store_id=self._lease.store_id,
        )
        values = one_call.values_of(state.placed, belief, None if probes is None else probes.json)
        failpoints.hit(failpoints.APPEND_BEFORE_COMMIT)
        one_call.check_alive(connection)
        self._sent = True
        try:
            await one_call.commit(connection, values)
        except psycopg.Error as error:
            if connection.closed:
                raise
            self._sent = False
            if not one_call.refused(error):
                raise
            self._look_first = _LOOKS_AFTER_REFUSAL
            return None
        failpoints.hit(failpoints.APPEND_AFTER_COMMIT)
        self._remember(state)
        return outcomes

    async def _believed(
        self, connection: Connection, requests: Sequence[AppendRequest]
    ) -> StoreState | None:
        """Return the state as this writer knows it, None where that does not do for a group."""
        events = sum(len(append.events) for request in requests for append in request.appends)
        changes = any(request.change for request in requests)
        if changes or events > one_call.MAX_EVENTS:
            return None
        heads: dict[str, int] = {}
        unknown = []
        for stream in streams_of(requests):
            head = self._heads.get(stream)
            if head is None:
                unknown.append(stream)
            else:
                heads[stream] = head
        if unknown:
            # No lock is needed: what changes after this read moves the head too.
            (rows,) = await results(connection, "open_heads", streams=unknown)
            for stream, version, closed in rows:
                if closed:
                    return None
                heads[stream] = version
        return StoreState(
            position=self._head,
            recorded_at=datetime.now(UTC),  # PostgreSQL's time takes its place
            heads=heads,
            known={},
            categories=set(self._lease.categories),
        )

    async def _looking_first(
        self, connection: Connection, requests: Sequence[AppendRequest]
    ) -> list[Outcome]:
        state = await self._begin(connection, requests)
        outcomes = self._decide(requests, state)
        if not state.placed:
            await connection.execute("ROLLBACK")
            return outcomes
        await self._write(connection, state)
        failpoints.hit(failpoints.APPEND_BEFORE_COMMIT)
        self._sent = True
        await connection.execute("COMMIT")
        failpoints.hit(failpoints.APPEND_AFTER_COMMIT)
        self._remember(state)
        return outcomes

    def _decide(self, requests: Sequence[AppendRequest], state: StoreState) -> list[Outcome]:
        return decide_group(
            requests, state, same_data=self._same_data, max_categories=self._max_categories
        )

    async def _begin(
        self,
        connection: Connection,
        requests: Sequence[AppendRequest],
        recalled: Recalled | None = None,
    ) -> StoreState:
        streams = streams_of(requests)
        unknown = [stream for stream in streams if stream not in self._heads]
        probes = probes_of(requests)
        names = ("begin_group",) if probes is None else ("begin_group", "match_conditions")
        _, counter, heads, known, archived, *matches = await results(
            connection,
            *names,
            append_lock=APPEND_LOCK,
            streams=unknown,
            ids=ids_of(requests),
            **({} if probes is None else _walks(probes)),
        )
        number, position, recorded_at, known_head = counter[0]
        if number != self._lease.number:
            raise LeaseLost(f"writer {number} has taken over from writer {self._lease.number}")
        if known_head is not None:
            # Another process found that events are gone, after this one had taken the lease.
            raise diverged(position, known_head)
        if position != self._head:
            # Somebody appended in a transaction of their own: what we remember is old.
            self._moved_to(position)
            heads, categories = await results(connection, "heads", streams=list(streams))
            self._lease.categories = {category for (category,) in categories}
        repeats = await archived_of(connection, archived, requests)
        if repeats.unclear and recalled is None:
            # Nobody waits for the lock while the archive is read.
            await connection.execute("ROLLBACK")
            recalled = await recall(self._archive, repeats.unclear)
            return await self._begin(connection, requests, recalled)
        placed, unclear = cleared(repeats, recalled or {})
        found = {stream: self._heads[stream] for stream in streams if stream in self._heads}
        return StoreState(
            position=position,
            recorded_at=recorded_at,
            heads=found | {row[0]: row[1] for row in heads},
            policies={row[0]: of_row(StreamPolicy, row[2:]) for row in heads if row[2] or row[3]},
            known=dict(stored(row) for row in known) | placed,
            unclear=unclear,
            categories=set(self._lease.categories),
            matched={} if probes is None else probes.matched(matches[0]),
        )

    async def _write(self, connection: Connection, state: StoreState) -> None:
        placed = state.placed
        async with connection.cursor() as cursor, cursor.copy(COPY_EVENTS) as copy:
            await copy.write(copy_lines(placed, self._lease.store_id))
        if any(place.event.tags for place in placed):
            tagged = [(tag, place) for place in placed for tag in place.event.tags]
            values = {
                "tags": [tag for tag, _ in tagged],
                "positions": [place.position for _, place in tagged],
                "categories": [place.category for _, place in tagged],
                "types": [place.event.type for _, place in tagged],
            }
            await connection.execute(query("add_tags"), values)
        new = state.categories - self._lease.categories
        if new:
            await connection.execute(query("add_categories"), {"categories": sorted(new)})
        first = [place for place in placed if place.version == 0]
        if first:
            values = {
                "streams": [place.stream for place in first],
                "categories": [place.category for place in first],
            }
            await connection.execute(query("add_streams"), values)
        if state.changed:
            changed = {stream: state.policies[stream] for stream in sorted(state.changed)}
            await connection.execute(query("set_policies"), policy_values(changed))

    def _remember(self, state: StoreState) -> None:
        self._head = state.position
        self._lease.categories |= state.categories
        for place in state.placed:
            self._heads[place.stream] = state.heads[place.stream]
            self._heads.move_to_end(place.stream)
        for stream, policy in state.policies.items():
            # What is remembered of a stream is its version alone: that must be all there is to it.
            if policy.closed:
                self._heads.pop(stream, None)
        while len(self._heads) > _HEADS_CACHED:
            self._heads.popitem(last=False)

    def _moved_to(self, head: int) -> None:
        if head < self._head:
            self._diverged = diverged(head, self._head)
            raise self._diverged
        if head != self._head:
            self._heads.clear()
            self._head = head

    async def _note_diverged(self) -> None:
        """Let those who append in transactions of their own know, and who opens the store next."""
        if not self._noted:
            async with await connect(self._dsn) as connection:
                with wrapped("noting that events are gone"):
                    await connection.execute("UPDATE es.store SET known_head = %s", (self._head,))
            self._noted = True

    async def _discard(self, *, keep: bool = False) -> None:
        """Close the connection: the server rolls back, or has committed; what we know is void."""
        self._heads.clear()
        if self._connection is not None and not keep:
            connection, self._connection = self._connection, None
            await connection.close()


def _walks(probes: Probes) -> dict[str, object]:
    return {"walks": probes.json.decode(), "budget": BUDGET_UNDER_LOCK}
