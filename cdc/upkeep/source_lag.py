"""How far captured databases are ahead of the tables, as the databases themselves say.

What the connector has not read yet is not in Kafka, so Kafka's end offsets would understate it.
The measure is PostgreSQL's WAL: everything up to some LSN is *settled* when it is folded or not
ours. An LSN is settled
- up to the source's cut, or
- up to what the connector had confirmed when Kafka's end offsets were read after that, once an
  epoch has all records before those ends and no transaction waits for rows.

Between two looks more may have been settled than is known: lag is never reported smaller than it
is, and in a busy database whose captured tables rest it may be shown as some seconds too large.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import psycopg
import pyarrow.compute as pc

from cdc import sources
from cdc.connectors import replication_name
from cdc.site import CaptureSite
from cdc.upkeep.silent_connectors import SilentConnectors
from kernel.errors import NotFound
from kernel.positions import Offsets, covers, lsn_from_text
from lake.layout import Lake, changes_log
from lake.table_columns import TRANSACTIONS_TABLE
from lake.tables import Tables
from pipeline.commit.manifest_rows import Committed
from pipeline.commit.pending_transactions import has_many
from pipeline.position.lag import SourceLag
from pipeline.position.progress import Progress
from pipeline.read.kafka_topics import KafkaTopics
from schemas.identifiers import EVENTS, OUTBOX

T = TypeVar("T")

_LOOK = """
SELECT pg_current_wal_lsn()::text AS head,
       (SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %(slot)s)
"""
_SAMPLES = 7_200
"""Looks that are remembered. Of more, every second one goes and the oldest stays: a source that has
been behind for a day is said to be behind for a day."""


@dataclass(slots=True)
class _Source:
    """What is remembered of one source: (time, head) of past looks, and what is settled."""

    connection: psycopg.Connection[tuple[str, str | None]] | None = None
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    pending: deque[tuple[int, Offsets]] = field(default_factory=deque)
    settled: int = 0

    def remember(self, now: float, head: int, confirmed: int, ends: Offsets) -> None:
        """Take in a look. What is forgotten for it never makes the lag look smaller."""
        self.samples.append((now, head))
        self.pending.append((confirmed, ends))
        _thin(self.samples)
        _thin(self.pending)

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class SourceHeads:
    """Looks at every captured source, over one connection each. Call `look` about once a second."""

    def __init__(self, site: CaptureSite, topics: KafkaTopics) -> None:
        self._site = site
        self._topics = topics
        self._lake = Lake(site.lake)
        self._known: dict[str, _Source] = {}
        self._connectors = SilentConnectors()
        self.lags: dict[str, SourceLag] = {}

    @property
    def silent(self) -> Mapping[str, str]:
        """Connectors that run and bring nothing, `outbox` among them, each with what to do."""
        return dict(self._connectors.reasons)

    def look(self, names: Iterable[str], last: Committed | None) -> Mapping[str, SourceLag]:
        """Return the lag of each named source; one that does not answer keeps its last, growing."""
        wanted = list(names)
        for gone in set(self._known) - set(wanted):
            self._known.pop(gone).disconnect()
            self.lags.pop(gone, None)
            self._connectors.forget(gone)
        for name in wanted:
            try:
                self.lags[name] = self._lag(name, last)
            except Exception as error:
                # Whatever it is: one source may not make the figures of the others stand still.
                known = self._known.setdefault(name, _Source())
                known.disconnect()
                self._connectors.forget(name)
                before = self.lags.get(name, SourceLag(bytes=0, seconds=0.0, records=0))
                self.lags[name] = SourceLag(
                    bytes=before.bytes,
                    seconds=self._age(known, before),
                    records=before.records,
                    unknown=(str(error) or repr(error))[:200],
                )
        return self.lags

    def look_at_store(self, events: int, last: Committed | None) -> None:
        """Take note that so many events of the store are not in the log."""
        heads = dict(last.heads) if last is not None else {}
        self._connectors.look(
            OUTBOX,
            behind=events > 0,
            marks=heads,
            unread=lambda: _unread(self._ends(EVENTS), last) > 0,
        )

    def close(self) -> None:
        """Leave the databases."""
        for known in self._known.values():
            known.disconnect()

    def _lag(self, name: str, last: Committed | None) -> SourceLag:
        known = self._known.setdefault(name, _Source())
        cut = last.cuts.get(name, 0) if last is not None else 0
        if not known.samples and last is not None:
            self._remember_cut(name, known, last, cut)
        now = time.time()
        head, confirmed = self._positions(name, known)
        # Read after what is confirmed: all of that is before these ends.
        ends = self._ends(name)
        known.remember(now, head, confirmed, ends)
        whole = last is None or waits_for_nothing(last, name)
        if last is not None and whole:
            while known.pending and covers(last.end, known.pending[0][1]):
                known.settled = max(known.settled, known.pending.popleft()[0])
        settled = max(cut, known.settled)
        behind = max(0, head - settled)
        while len(known.samples) > 1 and known.samples[1][1] <= settled:
            known.samples.popleft()
        records = _unread(ends, last)
        self._connectors.look(
            name,
            # A transaction that waits for rows is told by what it lacks.
            behind=behind > 0 and whole,
            marks=(settled, confirmed, ends),
            unread=lambda: records > 0,
        )
        age = now - known.samples[0][0] if behind else 0.0
        return SourceLag(bytes=behind, seconds=age, records=records)

    def _positions(self, name: str, known: _Source) -> tuple[int, int]:
        if known.connection is None or known.connection.closed:
            source = sources.load(self._site.folder, name)
            dsn = source.full_dsn(self._site.folder)
            known.connection = psycopg.connect(dsn, autocommit=True, connect_timeout=5)
        slot = replication_name(self._site.name, name)
        row = known.connection.execute(_LOOK, {"slot": slot}).fetchone()
        if row is None:
            raise NotFound(f"the database of {name} does not say where it is")
        return lsn_from_text(row[0]), lsn_from_text(row[1] or "0/0")

    def _ends(self, name: str) -> Offsets:
        prefix = self._site.topic_prefix
        return self._topics.ends(self._topics.of_source(prefix, name))

    def _remember_cut(self, name: str, known: _Source, last: Committed, cut: int) -> None:
        """What is missing was committed after the last folded transaction: the first sample."""
        lsn = pc.field("lsn")
        ends = Tables().read(
            self._lake.path(changes_log(name)),
            where=(pc.field("table") == TRANSACTIONS_TABLE) & (lsn == cut),
            columns=["committed_at"],
        )
        moment = pc.max(ends["committed_at"]).as_py() if ends is not None else None
        known.samples.append(((moment or last.at).timestamp(), cut))

    @staticmethod
    def _age(known: _Source, before: SourceLag) -> float:
        return time.time() - known.samples[0][0] if known.samples else before.seconds


def _thin(looks: deque[T]) -> None:
    """Drop every second of too many looks. The first one stays, and the last one."""
    if len(looks) > _SAMPLES:
        kept = [look for place, look in enumerate(looks) if place % 2 == 0 or look is looks[-1]]
        looks.clear()
        looks.extend(kept)


def _unread(ends: Offsets, last: Committed | None) -> int:
    """Count the records before these ends that no epoch has."""
    taken = last.end if last is not None else {}
    return sum(
        max(0, end - taken.get(topic, {}).get(part, 0))
        for topic, parts in ends.items()
        for part, end in parts.items()
    )


def waits_for_nothing(last: Committed, name: str) -> bool:
    """Say whether all that was read of a source is folded."""
    cuts = Progress.from_json(last.progress).cuts
    return name not in cuts or (cuts[name].waiting_for() is None and not has_many(last, name))
