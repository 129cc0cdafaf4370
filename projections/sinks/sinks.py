"""Sends what changes in projections to their sinks, in a thread of its own.

What fails of one sink stays its own: it is told with its cause and remedy, and tried again after a
pause. Where it is not known whether a transaction is there, all of them begin anew from what the
last transactions say.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, assert_never

from kernel.errors import cause_and_fix
from kernel.loops import Loop, passed
from lake.layout import Lake
from lake.tables import Tables
from pipeline.read.kafka_topics import KafkaTopics
from projections.run.catalog import DeployedCatalog, Deployment
from projections.serve.feed_places import table_id_of
from projections.serve.newest_runs import WatchedTable
from projections.serve.row_changes import ReadRows
from projections.serve.row_values import documents
from projections.serve.table_steps import TableSteps
from projections.sinks.projection_sink import Outlet, ProjectionSink, SinkState
from projections.sinks.sink_metrics import SinkMetrics
from projections.sinks.sink_records import RecordForm
from projections.sinks.sink_transactions import SinkTransactions
from projections.sinks.topic_sink import TopicOutlet
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.words.sinks import EventSink, Sink, TopicSink
from schemas.registry import SchemaRegistry
from schemas.row_avro import plain

LOOK_S = 0.2
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

log = logging.getLogger("penstock.sinks")


@dataclass(slots=True, kw_only=True)
class _Trouble:
    """A sink that fails: how often in a row, when it is tried again, since when it is behind."""

    behind_since: float
    failures: int = 0
    again_at: float = 0.0


EventOutlets = Callable[[EventSink, str, SinkTransactions], Outlet[Any]]
"""Makes what appends the events of a sink, by its declaration and its projection's name."""


class Sinks:
    """All sinks of a workspace's projections. `states` says how each is, for health."""

    def __init__(
        self,
        lake: Lake,
        registry: SchemaRegistry,
        metrics: SinkMetrics,
        topics: KafkaTopics,
        *,
        transact: Callable[[], SinkTransactions],
        outlet_of_events: EventOutlets,
        most_bytes: int,
    ) -> None:
        """`transact` begins the workspace's transactions; `most_bytes` of a table are held."""
        self._transact = transact
        self._outlet_of_events = outlet_of_events
        self._most_bytes = most_bytes
        self._lake = lake
        self._registry = registry
        self._metrics = metrics
        self._deployed = DeployedCatalog(lake, Tables())
        self._deployment: Deployment | None = None
        self._epochs = WatchedTable(lake.epochs)
        self._topics = topics
        self._transactions: SinkTransactions | None = None
        self._declared: dict[str, tuple[Sink, tuple[str, ...]]] = {}
        self._sinks: dict[str, ProjectionSink[Any]] = {}
        self._troubles: dict[str, _Trouble] = {}
        self.states: dict[str, SinkState] = {}
        self.troubles: dict[str, str] = {}
        """Why none of them could be looked at, by the name of the loop."""
        self.loop = Loop("sinks")

    def run(self, stop: threading.Event) -> None:
        """Send until `stop` is set."""
        while not stop.is_set():
            busy = False
            try:
                with self.loop.working("a look at the sinks"):
                    busy = self.step()
                self.troubles.clear()
            except Exception as error:
                self.troubles[self.loop.name] = cause_and_fix(error, most=500)
                log.error("sinks: %s", error, exc_info=error)
            if not busy:
                stop.wait(LOOK_S)
        self.close()

    def close(self) -> None:
        """Give up what is open: the next step begins anew, from what the topics have."""
        transactions, self._transactions = self._transactions, None
        self._sinks.clear()
        if transactions is not None:
            transactions.close()

    def documents(self) -> Mapping[str, Mapping[str, object]]:
        """Return what the pipeline says of its sinks, by projection."""
        return {name: asdict(state) for name, state in self.states.items()}

    def step(self) -> bool:
        """Send what is due of each sink; return whether anything was sent."""
        wanted, live = self._wanted()
        for name in self.states.keys() - wanted.keys():
            self._forget(name)
        busy = False
        if not self._lake_is_known():
            return False
        for name, decl in wanted.items():
            passed(f"sink of {name}")
            # A swap may bring another key to the same topic.
            declared = (_sink_of(decl), decl.key)
            if self._declared.get(name) != declared:
                self._forget(name)
                self._declared[name] = declared
            state = self.states.setdefault(name, SinkState(target=_sink_of(decl).target))
            if self._rests(name, state):
                self._metrics.stands(name, state)
                continue
            try:
                sink = self._sink(name, decl)
                busy |= sink.step(live[name])
                self.states[name] = sink.state
                self._metrics.stands(name, sink.state)
                self._troubles.pop(name, None)
            except Exception as error:
                self._failed(name, state, error)
        return busy

    def _lake_is_known(self) -> bool:
        """Say whether there was an epoch: before it the lake has no name by which its tables are
        known again, and none of them has a row to send.
        """
        if not self._epochs.table_id:
            self._epochs.moved()
        return bool(self._epochs.table_id)

    def _wanted(self) -> tuple[dict[str, ProjectionDecl], dict[str, int]]:
        """Return the statements that have a sink, and all live generations."""
        if self._deployment is None or self._deployment.version != self._deployed.version():
            self._deployment = self._deployed.deployment()
        found = self._deployment
        return {n: d for n, d in found.declared.items() if d.sink is not None}, found.generations

    def _sink(self, name: str, decl: ProjectionDecl) -> ProjectionSink[Any]:
        declared = _sink_of(decl)
        if name in self._sinks:
            return self._sinks[name]
        if self._transactions is None:
            self._transactions = self._transact()
        self._epochs.moved()
        outlet, read = self._outlet(declared, decl, self._transactions)
        table = f"projection/{name}"
        made = self._sinks[name] = ProjectionSink(
            outlet=outlet,
            key=decl.key,
            projection=name,
            target=declared.target,
            cursor=self._transactions.cursors.get((name, outlet.name)),
            steps=TableSteps(
                name=table,
                path=self._lake.path(table),
                table_id=table_id_of(self._epochs.table_id, name),
                read=read,
                most_bytes=self._most_bytes,
            ),
        )
        return made

    def _outlet(
        self, declared: Sink, decl: ProjectionDecl, transactions: SinkTransactions
    ) -> tuple[Outlet[Any], ReadRows]:
        """Return what takes the changes, and the form in which it wants the values of rows."""
        match declared:
            case TopicSink():
                form = RecordForm(
                    projection=decl.name,
                    topic=declared.topic,
                    key=decl.key,
                    registry=self._registry,
                )
                topic = TopicOutlet(
                    declared=declared, form=form, topics=self._topics, transactions=transactions
                )
                return topic, plain
            case EventSink():
                return self._outlet_of_events(declared, decl.name, transactions), documents
            case _:
                assert_never(declared)

    def _rests(self, name: str, state: SinkState) -> bool:
        """Say whether a sink that failed is not to be tried yet; it gets later meanwhile."""
        trouble = self._troubles.get(name)
        if trouble is None:
            return False
        now = time.monotonic()
        state.lag_s = now - trouble.behind_since
        return now < trouble.again_at

    def _failed(self, name: str, state: SinkState, error: Exception) -> None:
        now = time.monotonic()
        trouble = self._troubles.setdefault(name, _Trouble(behind_since=now - state.lag_s))
        trouble.failures += 1
        trouble.again_at = now + _PAUSES_S[min(trouble.failures, len(_PAUSES_S)) - 1]
        state.error = cause_and_fix(error, most=500)
        self._metrics.failed(name)
        self._metrics.stands(name, state)
        self._sinks.pop(name, None)
        if self._transactions is not None and self._transactions.doubtful:
            # Whether the last transaction is there is not known: all are asked about again.
            self.close()
        log.error("the sink of %s: %s", name, state.error, exc_info=error)

    def _forget(self, name: str) -> None:
        if name in self.states:
            self._metrics.forgotten(name)
        for kept in (self.states, self._declared, self._sinks, self._troubles):
            kept.pop(name, None)


def _sink_of(decl: ProjectionDecl) -> Sink:
    assert decl.sink is not None, "only projections with a sink are asked"
    return decl.sink
