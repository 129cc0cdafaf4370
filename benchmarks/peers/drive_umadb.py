"""Drives UmaDB through its Python client: one client object, one thread per caller."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import umadb

from benchmarks.peers.closed_loop import Call, Work, report, run_threads, work
from benchmarks.peers.delivery import run_delivery


def appending(asked: Work, client: Any) -> Callable[[int], Call]:
    data = asked.data.encode()
    numbers = itertools.count()

    def caller(_number: int) -> Call:
        def call() -> int:
            tag = f"order-{next(numbers) % asked.streams}"
            events = [umadb.Event("placed", data, [tag]) for _ in range(asked.batch)]
            client.append(events)
            return asked.batch

        return call

    return caller


def reading(client: Any) -> Callable[[int], Call]:
    def caller(_number: int) -> Call:
        batches: Iterator[list[Any]] = iter(())

        def call() -> int:
            nonlocal batches
            batch = next(batches, None)
            if batch is None:
                batches = _batches(client)
                batch = next(batches, [])
            return len(batch)

        return call

    return caller


def _batches(client: Any) -> Iterator[list[Any]]:
    response = client.read()
    while batch := response.next_batch():
        yield batch


def delivering(asked: Work, client: Any) -> dict[str, float]:
    data = asked.data.encode()
    subscription = client.subscribe(after=client.head())

    def caller(number: int) -> Callable[[], int]:
        return lambda: int(client.append([umadb.Event("placed", data, [f"order-{number}"])]))

    return run_delivery(asked, caller, (event.position for event in subscription))


def main() -> None:
    asked = work()
    client = umadb.Client(asked.address)
    match asked.line:
        case "append":
            report(run_threads(asked, appending(asked, client)))
        case "read":
            report(run_threads(asked, reading(client)))
        case _:
            report(delivering(asked, client))
            # The subscriber's thread waits in Rust, and the interpreter crashes when it goes first.
            sys.stdout.flush()
            os._exit(0)


if __name__ == "__main__":
    main()
