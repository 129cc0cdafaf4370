"""The servers beside the pipeline: whether each answers, whoever needs it now.

Ingest asks the registry for a schema that is new, and nobody asks Connect where no source changes:
one that hangs meanwhile would be found by the first who needs it. Here all are asked, now and then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import psycopg
from prometheus_client import Gauge

from cdc.connect import ConnectClient
from kernel.errors import FIX, cause_and_fix
from kernel.loops import Loop
from pipeline.read.kafka_topics import KafkaTopics
from schemas.registry import SchemaRegistry

LOOK_S = 5.0
STRIKES = 3
"""So many questions in a row without an answer make a server one that stands still."""
_TIMEOUT_S = 10
_NOBODY = "penstock"
"""A subject that nobody registers: the registry looks for it in its storage, and has none."""

Ask = Callable[[], object]
"""Asks a server one question, within seconds. Raises where it does not answer."""


class Neighbours:
    """Asks each server in turn with the others; `silent` says which do not answer, and why."""

    def __init__(self, asks: Mapping[str, Ask], up: Gauge) -> None:
        """`up` is set to 1 or 0 for each, by `part`."""
        self._asks = asks
        self._up = up
        self._strikes = dict.fromkeys(asks, 0)
        self.loop = Loop("neighbours")
        self.silent: dict[str, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Ask until `stop` is set."""
        with ThreadPoolExecutor(len(self._asks), thread_name_prefix="neighbours") as pool:
            while not stop.wait(LOOK_S):
                with self.loop.working("a question to each server"):
                    self.look(pool)

    def look(self, pool: ThreadPoolExecutor) -> None:
        """Ask all of them once, side by side: one that hangs takes the time of no other."""
        asked = {part: pool.submit(ask) for part, ask in self._asks.items()}
        found = {}
        for part, answer in asked.items():
            try:
                answer.result()
                self._strikes[part] = 0
            except Exception as error:
                self._strikes[part] += 1
                if self._strikes[part] >= STRIKES:
                    found[part] = cause_and_fix(error, most=500).partition(FIX)[0]
            self._up.labels(part).set(part not in found)
        self.silent = found


def neighbours_of(
    dsn: str, connect_url: str, registry: SchemaRegistry, topics: KafkaTopics, up: Gauge
) -> Neighbours:
    """Return these servers, called as parts of the local stack are; Connect where it has a URL."""

    def ask_postgres() -> None:
        psycopg.connect(dsn, connect_timeout=_TIMEOUT_S).close()

    def ask_connect() -> None:
        with ConnectClient(connect_url, timeout_s=_TIMEOUT_S) as connect:
            connect.ask()

    asks: dict[str, Ask] = {
        "postgres": ask_postgres,
        "kafka": topics.ask,
        "registry": lambda: registry.latest(_NOBODY),
    }
    return Neighbours(asks | ({"connect": ask_connect} if connect_url else {}), up)
