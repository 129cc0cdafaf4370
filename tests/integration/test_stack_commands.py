"""The commands of the stack as people type them, on a stack of PostgreSQL alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernel.errors import (
    EXIT_FAILED,
    EXIT_NEEDS_CONFIRMATION,
    EXIT_OK,
    EXIT_UNHEALTHY,
    EXIT_USAGE,
)
from stack.status import status as status_of
from stack.workspace import Workspace
from tests.support.services.port_blocks import PortBlock
from tests.support.services.waiting import until

BASE = str(int(PortBlock.COMMANDS))
PENSTOCK = str(Path(sys.executable).with_name("penstock"))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "a workspace"
    made.mkdir()
    yield made
    penstock(made, "reset", "--yes")


def penstock(root: Path, *arguments: str, check: int | None = EXIT_OK) -> tuple[str, str]:
    """Run a command in a workspace; return what it printed and what it complained of."""
    done = subprocess.run(
        [PENSTOCK, *arguments, "--workspace", str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check is None or done.returncode == check, done.stderr or done.stdout
    return done.stdout, done.stderr


def answer(root: Path, *arguments: str, check: int = EXIT_OK) -> Any:
    return json.loads(penstock(root, *arguments, "--json", check=check)[0])


def test_a_life_from_up_to_reset(root: Path) -> None:
    assert answer(root, "status", check=EXIT_UNHEALTHY)["state"] == "stopped"
    endpoints = answer(root, "up", "--only", "postgres", "--port-base", BASE)
    assert set(endpoints) == {"postgres.dsn"}

    status = answer(root, "status")
    assert status["state"] == "ready"
    (part,) = status["parts"]
    assert {"name", "state", "pid", "port", "version", "memory_mb", "restarts", "reason"} <= set(
        part
    )
    assert part["memory_mb"] is None
    assert answer(root, "status", "--memory")["memory_mb"] > 10
    assert "postgres" in penstock(root, "status")[0]

    lines = penstock(root, "logs", "postgres", "-n", "200")[0]
    assert "database system is ready to accept connections" in lines
    first = json.loads(penstock(root, "logs", "--json")[0].splitlines()[0])
    assert set(first) == {"part", "line"}

    text, progress = penstock(root, "up", "--only", "postgres", "--port-base", BASE)
    assert "postgres: ready" in progress
    password = (root / ".penstock" / "password").read_text()
    assert password in endpoints["postgres.dsn"]
    assert password not in text, "people copy what they see"

    assert answer(root, "down") == {"stopped": True}
    assert answer(root, "down") == {"stopped": False}
    assert not psutil.pid_exists(part["pid"])

    assert "needs" in answer(root, "reset", check=EXIT_NEEDS_CONFIRMATION)
    assert (root / ".penstock").exists()
    assert answer(root, "reset", "--yes")["removed"]
    assert not (root / ".penstock").exists()


@pytest.mark.matrix
def test_logs_are_followed(root: Path) -> None:
    penstock(root, "up", "--only", "postgres", "--port-base", BASE)
    log = Workspace.at(root).log_of("postgres")
    command = [PENSTOCK, "logs", "postgres", "-f", "-n", "0"]
    with subprocess.Popen(
        [*command, "--workspace", str(root)], stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        # It has opened the log once it has that file among its own.
        os.set_blocking(follower.stdout.fileno(), False)
        seen: list[str] = []

        def heard() -> bool:
            with log.open("a") as file:
                file.write("a new line\n")
            seen.extend(follower.stdout or ())
            return "a new line\n" in seen

        until(heard, "the line is shown")
        follower.send_signal(signal.SIGINT)


@pytest.mark.matrix
def test_the_foreground_stops_all_on_ctrl_c(root: Path) -> None:
    command = [PENSTOCK, "up", "--only", "postgres", "--foreground"]
    with subprocess.Popen(
        [*command, "--port-base", BASE, "--workspace", str(root)],
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        endpoints = Workspace.at(root).endpoints_file
        until(endpoints.exists, "it has begun")
        until(lambda: status_of(root)["state"] == "ready", "it is ready")
        pid = answer(root, "status")["parts"][0]["pid"]
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == EXIT_OK
    assert not psutil.pid_exists(pid)
    assert not endpoints.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("up", "--only", "postgres,mysql"), EXIT_USAGE, "no part 'mysql'"),
        (("up", "--only", "connect"), EXIT_USAGE, "connect needs kafka"),
        (("logs", "ghost"), EXIT_FAILED, "no log of 'ghost'"),
        (("up", "--only", "registry"), EXIT_FAILED, "--postgres DSN"),
    ],
)
def test_a_wrong_request_is_explained(
    root: Path, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    assert complaint in penstock(root, *arguments, check=code)[1]


def test_doctor_answers_for_people_and_programs(root: Path) -> None:
    found = json.loads(penstock(root, "doctor", "--json", check=None)[0])
    assert {"name", "required", "found", "ok", "fix"} == set(found["checks"][0])
    assert found["ok"] == all(check["ok"] for check in found["checks"])
    assert "required" in penstock(root, "doctor", check=None)[0]
