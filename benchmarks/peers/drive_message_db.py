"""Reads message-db by category, the widest order that it has. Appends are driven by pgbench."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from benchmarks.peers.closed_loop import Call, Work, report, run_threads, work

PAGE = 1_000
CATEGORY = "order1"
READ = "SELECT * FROM message_store.get_category_messages(%s, %s, %s)"
GLOBAL_POSITION = 4


def reading(asked: Work) -> Callable[[int], Call]:
    def caller(_number: int) -> Call:
        connection = psycopg.connect(asked.address, autocommit=True)
        position = 1

        def call() -> int:
            nonlocal position
            page = connection.execute(READ, (CATEGORY, position, PAGE)).fetchall()
            position = page[-1][GLOBAL_POSITION] + 1 if page else 1
            return len(page)

        return call

    return caller


if __name__ == "__main__":
    asked_for = work()
    report(run_threads(asked_for, reading(asked_for)))
