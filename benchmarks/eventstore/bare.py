"""Driver: INSERT and commit of one row after another, by psycopg, prepared."""

from __future__ import annotations

import psycopg

from benchmarks.peers.closed_loop import Call, Work, report, run_threads, work


def inserting(asked: Work, _number: int) -> Call:
    connection = psycopg.connect(asked.address, autocommit=True)
    data = asked.data.encode()

    def call() -> int:
        connection.execute("INSERT INTO bare (data) VALUES (%s)", (data,), prepare=True)
        return 1

    return call


if __name__ == "__main__":
    asked_for = work()
    report(run_threads(asked_for, lambda number: inserting(asked_for, number)))
