"""How long a part was silent, as the supervisor counts it: only while it was watched itself."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from stack.plan import Part, Probe, StackPlan
from stack.probes import Complaint, serves
from stack.running_part import Running
from stack.supervisor import Supervisor
from stack.workspace import Workspace

SILENT_S = 240.0
SILENT, REFUSED = Complaint("no answer", silent=True), Complaint("answers 503")
PART = Part(
    name="service",
    argv=("true",),
    probe=Probe(kind="http", port=1, path="/health"),
    silent_after_s=SILENT_S,
)
Answers = Sequence[tuple[float, Complaint | None]]


def restarted(folder: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers) -> str | None:
    """Return why a part is started again that answers so, each after so many seconds."""
    workspace = Workspace.at(folder)
    monkeypatch.setattr(
        Workspace, "read_plan", lambda _: StackPlan(parts=(PART,), health_pause_s=0.001)
    )

    async def watch() -> str | None:
        loop, left, passed = asyncio.get_running_loop(), list(answers), 0.0
        real, died = loop.time, loop.create_future()

        async def answered(_: Probe) -> Complaint | None:
            nonlocal passed
            seconds, complaint = left.pop(0)
            passed += seconds
            if not left:
                died.set_result(0)
            return complaint

        monkeypatch.setattr("stack.supervisor.serves", answered)
        monkeypatch.setattr(loop, "time", lambda: real() + passed)
        running = Running(PART, workspace, 1000)
        return await Supervisor(workspace)._watch(running, asyncio.ensure_future(died))

    return asyncio.run(watch())


@pytest.mark.parametrize(
    ("answers", "again"),
    [
        ([(5.0, SILENT)] * 60, True),
        ([(5.0, SILENT)] * 40, False),
        ([*[(5.0, SILENT)] * 40, (5.0, None), *[(5.0, SILENT)] * 40], False),
        ([*[(5.0, SILENT)] * 40, (5.0, REFUSED), *[(5.0, SILENT)] * 40], False),
        ([(5.0, REFUSED)] * 90, False),
        # The machine stood still, and is slow at first.
        ([(600.0, SILENT), *[(5.0, SILENT)] * 4, (5.0, None)], False),
        ([(5.0, SILENT), (5.0, SILENT), (7200.0, SILENT), (5.0, None)], False),
    ],
)
def test_who_is_silent_for_long_is_started_again_and_nobody_who_was_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers, again: bool
) -> None:
    why = restarted(tmp_path, monkeypatch, answers)
    assert (why is not None) is again
    assert why is None or why.startswith("silent for 24")


@pytest.mark.parametrize(
    ("error", "silent"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), True),
        (EOFError(), True),
        (TimeoutError(), True),
        (OSError(errno.EMFILE, "too many open files"), False),
        (OSError(errno.EADDRNOTAVAIL, "no port left to ask from"), False),
    ],
)
def test_a_part_that_nobody_could_ask_was_not_silent(
    monkeypatch: pytest.MonkeyPatch, error: Exception, silent: bool
) -> None:
    async def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr("stack.probes.asyncio.open_connection", refused)
    found = asyncio.run(serves(Probe(kind="http", port=1)))
    assert found is not None
    assert found.silent is silent


def test_a_database_that_is_starting_is_told_in_its_own_words() -> None:
    """Its answer is fields with a letter before each; people read that for people alone."""
    fields = [b"SFATAL", b"VFATAL", b"C57P03", b"Mthe database system is starting up", b"Fx.c", b""]
    body = b"\0".join(fields) + b"\0"

    async def starting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"E" + struct.pack(">i", len(body) + 4) + body)
        writer.close()

    async def asked() -> Complaint | None:
        async with await asyncio.start_server(starting, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await serves(Probe(kind="postgres", port=port))

    assert asyncio.run(asked()) == Complaint("not yet: the database system is starting up")
