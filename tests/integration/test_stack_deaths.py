"""Real parts die on an awkward machine: what they keep outlives them, they find each other again.

The workspace's path has a space and lies in folders that are closed to other accounts, which is
how home folders look; as root, PostgreSQL then has to keep its data elsewhere.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from cdc.connect import ConnectClient
from stack import control, status
from stack.plan import LOCAL_PARTS
from stack.planning import UpOptions
from stack.status import status as status_of
from stack.workspace import Workspace
from tests.support.services.port_blocks import PortBlock
from tests.support.services.waiting import until

BASE = int(PortBlock.PARTS)
# The whole stack's parts die in tests/faults; these die alone.
# Its ports are those of test_stack_parts.py, too.
pytestmark = [pytest.mark.matrix, pytest.mark.xdist_group("stack")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workspace with all parts running, in a closed home."""
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    workspace = home / "my clone" / "work"
    # Taken beforehand: the stack has to make way.
    with socket.create_server(("127.0.0.1", BASE + 2)):
        control.up(workspace, UpOptions(port_base=BASE, parts=LOCAL_PARTS))
    yield workspace
    control.reset(workspace)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.fixture(scope="module")
def endpoints(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Workspace.at(root).endpoints_file.read_text())
    return found


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def parts(root: Path) -> dict[str, dict[str, Any]]:
    return {str(part["name"]): part for part in status.parts(root)}


def test_a_taken_port_was_avoided(root: Path) -> None:
    assert parts(root)["postgres"]["port"] == BASE + 12
    assert parts(root)["kafka"]["port"] == BASE + 3


def test_the_four_parts_leave_room_for_spark_within_five_gigabytes(root: Path) -> None:
    assert int(str(status_of(root, memory=True)["memory_mb"])) < 2500


def test_schemas_outlive_a_killed_registry_and_a_killed_database(
    root: Path, endpoints: dict[str, Any]
) -> None:
    schema = json.dumps({"schema": '"string"'}).encode()
    request = urllib.request.Request(
        f"{endpoints['registry.url']}/apis/ccompat/v7/subjects/kept/versions",
        data=schema,
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer)["id"] > 0
    before = {name: parts(root)[name]["restarts"] for name in ("registry", "postgres")}
    for name in before:
        control.kill_part(root, name)
    until(
        lambda: all(parts(root)[name]["restarts"] > count for name, count in before.items()),
        "both deaths are noticed",
    )
    until(
        lambda: all(part["state"] == "ready" for part in parts(root).values()),
        "all is ready again",
        deadline_s=90,
    )
    assert "kept" in get(f"{endpoints['registry.url']}/apis/ccompat/v7/subjects")


def test_topics_outlive_a_killed_broker_and_connect_finds_back(
    root: Path, endpoints: dict[str, Any]
) -> None:
    admin = AdminClient({"bootstrap.servers": endpoints["kafka.bootstrap"]})
    for future in admin.create_topics([NewTopic("durable", num_partitions=1)]).values():
        future.result(timeout=20)
    before = parts(root)["kafka"]["restarts"]
    control.kill_part(root, "kafka")
    until(lambda: parts(root)["kafka"]["restarts"] > before, "the death is noticed")
    until(
        lambda: all(part["state"] == "ready" for part in parts(root).values()),
        "all is ready again",
        deadline_s=90,
    )
    assert "durable" in admin.list_topics(timeout=20).topics
    with ConnectClient(endpoints["connect.url"]) as connect:
        assert connect.names() == ()


def test_a_killed_supervisor_leaves_no_server_and_up_brings_all_back(
    root: Path, endpoints: dict[str, Any]
) -> None:
    supervisor = Workspace.at(root).supervisor_pid()
    assert supervisor is not None
    servers = [
        process
        for part in parts(root).values()
        for process in (psutil.Process(part["pid"]), *psutil.Process(part["pid"]).children())
    ]
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not any(map(psutil.Process.is_running, servers)), "all servers have ended")
    assert control.up(root, UpOptions(port_base=BASE, parts=LOCAL_PARTS)) == endpoints
