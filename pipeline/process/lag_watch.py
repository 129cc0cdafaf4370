"""The loop that measures how far the store and captured sources are ahead of the tables."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from typing import Protocol

from kernel.errors import Unavailable, cause_and_fix
from kernel.loops import Loop
from pipeline.commit.manifest_rows import Committed
from pipeline.position.lag import SourceLag, StoreHeads
from pipeline.process.metrics import ProcessMetrics

log = logging.getLogger("penstock.pipeline")


class SourceLags(Protocol):
    """Reads how far captured databases have come: `lags` by source, after each look."""

    lags: dict[str, SourceLag]

    @property
    def silent(self) -> Mapping[str, str]:
        """Connectors that run and bring nothing, each with the cause."""
        ...

    def look(self, names: Collection[str], last: Committed | None) -> object:
        """Compare each source with an epoch."""
        ...

    def look_at_store(self, events: int, last: Committed | None) -> object:
        """Take note of how many events of the store an epoch lacks."""
        ...

    def close(self) -> None:
        """Close what it has opened."""
        ...


class TopicLags(Protocol):
    """Reads how far external topics have come: `lags` by source, after each look."""

    lags: dict[str, SourceLag]

    def look(self, last: Committed | None) -> object:
        """Compare each source with an epoch."""
        ...


class LagWatch:
    """Measures lag once a second. `last` and `captures` are what ingest has come to."""

    def __init__(
        self, store: StoreHeads, sources: SourceLags, topics: TopicLags, metrics: ProcessMetrics
    ) -> None:
        self._store = store
        self._sources = sources
        self._topics = topics
        self._metrics = metrics
        self.loop = Loop("lag")
        self.last: Committed | None = None
        self.captures: Collection[str] = ()
        self.unknown: dict[str, str] = {}
        """Why a lag cannot be measured: its gauges stand still."""

    @property
    def lags(self) -> dict[str, SourceLag]:
        """How far each source is ahead, as it was measured last."""
        return {**self._sources.lags, **self._topics.lags}

    @property
    def silent(self) -> Mapping[str, str]:
        """Connectors that run and bring nothing, each with the cause."""
        return self._sources.silent

    def run(self, stop: threading.Event) -> None:
        """Measure until `stop` is set."""
        while not stop.wait(1.0):
            for name, watch in (("sources", self._watch_sources), ("store", self._watch_store)):
                try:
                    with self.loop.working(f"the lag of {name}"):
                        watch(self.last)
                    self.unknown.pop(name, None)
                except Exception as error:
                    # Without this thread the gauges would show their last, low values for ever.
                    self.unknown[name] = cause_and_fix(error, most=500)
                    expected = isinstance(error, Unavailable)
                    log.warning("lag unknown: %s", error, exc_info=not expected)
        self._sources.close()

    def _watch_store(self, last: Committed | None) -> None:
        """Measure how far the event store is ahead of the tables."""
        store, events, seconds = self._store.lag(last.heads if last else {})
        self._metrics.lag_events.labels(store).set(events)
        self._metrics.lag_seconds.labels(store).set(seconds)
        self._sources.look_at_store(events, last)

    def _watch_sources(self, last: Committed | None) -> None:
        """Measure how far each source is ahead of the tables."""
        self._sources.look(self.captures, last)
        self._topics.look(last)
        for name, lag in self.lags.items():
            self._metrics.source_lag(name, lag)
