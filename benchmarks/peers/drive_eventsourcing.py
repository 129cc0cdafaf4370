"""Drives `eventsourcing` in its default mode: the recorder takes the table's EXCLUSIVE lock.

Data are ready-made bytes in both directions: the mapper's work is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit
from uuid import uuid4

from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresFactory
from eventsourcing.utils import Environment

from benchmarks.peers.closed_loop import Call, Work, report, run_threads, work
from benchmarks.peers.delivery import run_delivery

PAGE = 1_000


def recorder(asked: Work) -> PostgresApplicationRecorder:
    parts = urlsplit(asked.address)
    environment = Environment(
        name="bench",
        env={
            "POSTGRES_DBNAME": parts.path.strip("/"),
            "POSTGRES_HOST": str(parts.hostname),
            "POSTGRES_PORT": str(parts.port),
            "POSTGRES_USER": str(parts.username),
            "POSTGRES_PASSWORD": "none",
            "POSTGRES_POOL_SIZE": str(asked.clients + 1),
        },
    )
    made = PostgresFactory(environment).application_recorder()
    assert isinstance(made, PostgresApplicationRecorder)
    return made


def appending(asked: Work, store: PostgresApplicationRecorder) -> Callable[[int], Call]:
    data = asked.data.encode()

    def caller(_number: int) -> Call:
        # A caller must know the versions: each has streams of its own.
        streams = [uuid4() for _ in range(max(1, asked.streams // asked.clients))]
        turns = itertools.count()

        def call() -> int:
            rounds, turn = divmod(next(turns), len(streams))
            first = 1 + rounds * asked.batch
            store.insert_events(
                [
                    StoredEvent(streams[turn], version, "placed", data)
                    for version in range(first, first + asked.batch)
                ]
            )
            return asked.batch

        return call

    return caller


def reading(store: PostgresApplicationRecorder) -> Callable[[int], Call]:
    def caller(_number: int) -> Call:
        start = 1

        def call() -> int:
            nonlocal start
            page = store.select_notifications(start, PAGE)
            start = page[-1].id + 1 if page else 1
            return len(page)

        return call

    return caller


def delivering(asked: Work, store: PostgresApplicationRecorder) -> dict[str, float]:
    data = asked.data.encode()
    subscription = store.subscribe(gt=store.max_notification_id())

    def caller(number: int) -> Callable[[], int]:
        stream, versions = uuid4(), itertools.count(1)

        def call() -> int:
            ids = store.insert_events([StoredEvent(stream, next(versions), "placed", data)])
            assert ids is not None, number
            return ids[0]

        return call

    def positions() -> Iterator[int]:
        for notification in subscription:
            yield notification.id

    with subscription:
        return run_delivery(asked, caller, positions())


def main() -> None:
    asked = work()
    store = recorder(asked)
    match asked.line:
        case "append":
            report(run_threads(asked, appending(asked, store)))
        case "read":
            report(run_threads(asked, reading(store)))
        case _:
            report(delivering(asked, store))
    store.datastore.close()


if __name__ == "__main__":
    main()
