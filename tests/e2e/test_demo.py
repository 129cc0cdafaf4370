"""The whole demo on a few thousand events, and what it leaves: plain tables, no process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from apps.settings import load
from examples.flights import closing
from lake.layout import Lake
from stack import control
from stack.status import status as status_of
from tests.support.services.port_blocks import PortBlock
from tests.support.services.waiting import until

# `.ci/run` runs the demo itself.
pytestmark = pytest.mark.matrix
FLIGHTS = 1_500
TIMEOUT_S = 900
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("demo") / "a place with spaces"
    yield made
    control.reset(made)


@pytest.fixture(scope="module")
def outcome(folder: Path) -> dict[str, Any]:
    words = (
        "--flights",
        str(FLIGHTS),
        "--port-base",
        str(int(PortBlock.DEMO)),
        "--workspace",
        str(folder),
    )
    done = subprocess.run(
        [BIN / "penstock", "demo", "--json", *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6_000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_every_check_of_the_demo_holds(outcome: dict[str, Any]) -> None:
    assert outcome["holds"]
    assert all(check["holds"] for check in outcome["checks"])
    titles = "\n".join(check["title"] for check in outcome["checks"])
    for each in (
        *("acknowledged", "PostgreSQL", "Kafka", "log/events", "typed/events"),
        *("airlines", "airports", "planes", "weather", "finished by the new process"),
        *("flight_status = oracle", "carrier_delays = oracle", "departure_weather = oracle"),
        *("closed_late", "waiting for a replay", "rebuilt", "with every event"),
    ):
        assert each in titles


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_the_demo_measures_throughput_and_freshness(outcome: dict[str, Any]) -> None:
    assert outcome["figures"]["events"] > FLIGHTS
    assert {"log", "flight_status", "carrier_delays", "departure_weather"} <= set(
        outcome["figures"]["freshness"]
    )


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_the_demo_leaves_nothing_running(outcome: dict[str, Any], folder: Path) -> None:
    assert outcome["holds"]
    assert status_of(folder)["state"] == "stopped"

    def gone() -> bool:
        return not any(
            str(folder) in word
            for process in psutil.process_iter(["cmdline"])
            for word in process.info["cmdline"] or ()
        )

    # The supervisor says that all has stopped, and ends itself a moment later.
    until(gone, "no process of it is left")


@pytest.mark.timeout(TIMEOUT_S + 120)
def test_what_the_demo_tells_to_try_works_with_the_stack_stopped(
    outcome: dict[str, Any], folder: Path
) -> None:
    assert outcome["holds"]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    commands = closing.try_next(folder, Lake(str(folder / "lake")))
    assert len(commands) == 5
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr[-2_000:]}"
        assert done.stdout.strip()


@pytest.mark.timeout(TIMEOUT_S + 300)
def test_events_that_came_through_kafka_leave_postgresql_and_read_as_before(
    outcome: dict[str, Any], folder: Path
) -> None:
    """The log that the archive compares with was written by Debezium, Kafka and Spark."""
    assert outcome["holds"]

    def penstock(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [BIN / "penstock", *words, "--workspace", str(folder), "--json"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stderr[-2_000:]}{done.stdout[-2_000:]}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def stored(stream: str) -> tuple[str, int]:
        """Return a stream (the longest one, for none named) and its events in PostgreSQL."""
        with psycopg.connect(load(folder).required("postgres.dsn")) as connection:
            row = connection.execute(
                """
                SELECT stream, count(*) FROM es.events
                 WHERE stream = %(stream)s OR %(stream)s = '' AND stream NOT LIKE '$%%'
                 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 1
                """,
                {"stream": stream},
            ).fetchone()
        assert row is not None
        return str(row[0]), int(row[1])

    penstock("up", "--port-base", str(int(PortBlock.DEMO)))
    try:
        stream, there = stored("")
        assert there > 1
        before = penstock("read", stream)["events"]
        report = penstock("stream", "archive", stream, "--before", str(there - 1))
        assert report["events"] == there - 1
        assert stored(stream) == (stream, 1)
        assert penstock("read", stream)["events"] == before
    finally:
        control.down(folder)
