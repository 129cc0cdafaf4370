"""The real parts: what they tell, what they are set to, and which requests are refused."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from apps.settings import Settings
from kernel.errors import Conflict, Misconfigured, Unavailable
from stack import control, status
from stack.plan import LOCAL_PARTS
from stack.planning import UpOptions
from stack.workspace import Workspace
from tests.support.services.port_blocks import PortBlock
from tests.support.services.waiting import until

pytestmark = pytest.mark.xdist_group("stack")
BASE = int(PortBlock.PARTS)


@pytest.fixture(scope="module")
def root(stack: Settings) -> Path:
    return stack.workspace


@pytest.fixture(scope="module")
def endpoints(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Workspace.at(root).endpoints_file.read_text())
    return found


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def parts(root: Path) -> dict[str, dict[str, Any]]:
    return {str(part["name"]): part for part in status.parts(root)}


def test_every_part_is_ready_and_tells_what_it_is(root: Path) -> None:
    told: Any = status.status(root, memory=True)["parts"]
    found = {part["name"]: part for part in told}
    assert set(found) == set(LOCAL_PARTS)
    for name, part in found.items():
        assert part["state"] == "ready", name
        assert part["pid"], name
        assert part["memory_mb"] > 10, name
    assert {name: part["version"] for name, part in found.items()} == {
        "postgres": "18.6",
        "kafka": "4.3.1",
        "registry": "3.0.9",
        "connect": "3.7.0.Final",
    }


def test_postgres_is_ready_for_capture(endpoints: dict[str, Any]) -> None:
    with psycopg.connect(endpoints["postgres.dsn"]) as connection:
        shown = {
            name: connection.execute(f"SHOW {name}").fetchone()
            for name in ("wal_level", "listen_addresses", "unix_socket_directories", "TimeZone")
        }
        encoding = connection.execute("SELECT current_database(), getdatabaseencoding()")
        assert encoding.fetchone() == ("penstock", "UTF8")
    assert shown == {
        "wal_level": ("logical",),
        "listen_addresses": ("127.0.0.1",),
        "unix_socket_directories": ("",),
        "TimeZone": ("UTC",),
    }


def test_postgres_wants_its_password(endpoints: dict[str, Any]) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(endpoints["postgres.dsn"], password="another")


def test_kafka_makes_topics_only_when_told(endpoints: dict[str, Any]) -> None:
    admin = AdminClient({"bootstrap.servers": endpoints["kafka.bootstrap"]})
    assert "surprise" not in admin.list_topics("surprise", timeout=10).topics or (
        admin.list_topics("surprise", timeout=10).topics["surprise"].error is not None
    )
    for future in admin.create_topics([NewTopic("wanted", num_partitions=2)]).values():
        future.result(timeout=20)
    until(
        lambda: len(admin.list_topics("wanted", timeout=10).topics["wanted"].partitions) == 2,
        "both partitions are told",
    )


def test_connect_has_the_plugins_that_capture_needs(endpoints: dict[str, Any]) -> None:
    listed = get(f"{endpoints['connect.url']}/connector-plugins?connectorsOnly=false")
    assert {plugin["class"] for plugin in listed} >= {
        "penstock.connect.WholeTransactions",
        "penstock.connect.KeepNulls",
        "io.debezium.transforms.outbox.EventRouter",
        "io.debezium.converters.BinaryDataConverter",
        "io.apicurio.registry.utils.converter.AvroConverter",
    }


def test_a_second_up_attaches_and_keeps_the_ports(root: Path, endpoints: dict[str, Any]) -> None:
    before = status.status(root)
    again = control.up(root, UpOptions(port_base=PortBlock.WARM, parts=LOCAL_PARTS, offline=True))
    assert again == endpoints
    assert status.status(root)["supervisor"] == before["supervisor"]


def test_another_database_for_a_running_stack_is_refused(root: Path) -> None:
    with pytest.raises(Conflict, match="another PostgreSQL"):
        control.up(root, UpOptions(port_base=BASE, postgres_dsn="postgresql://127.0.0.1:1/other"))


@pytest.mark.matrix
def test_a_postgres_of_ones_own_serves_instead(tmp_path: Path, endpoints: dict[str, Any]) -> None:
    options = UpOptions(
        port_base=BASE + 100,
        parts=("postgres", "registry"),
        postgres_dsn=endpoints["postgres.dsn"],
        registry_database="registry_other",
    )
    try:
        found = control.up(tmp_path, options)
        assert found["postgres.dsn"] == endpoints["postgres.dsn"]
        assert set(parts(tmp_path)) == {"registry"}
        assert get(f"{found['registry.url']}/apis/ccompat/v7/subjects") == []
    finally:
        control.down(tmp_path)


def test_a_database_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    dsn = "postgresql://me:secret@127.0.0.1:9/x"
    options = UpOptions(port_base=BASE + 200, parts=("registry",), postgres_dsn=dsn)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 does not answer") as caught:
        control.up(tmp_path, options)
    assert "secret" not in caught.value.message


def test_a_registry_without_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="there is none") as caught:
        control.up(tmp_path, UpOptions(port_base=BASE + 300, parts=("registry",)))
    assert "--postgres DSN" in caught.value.remedy


# A user namespace in which this process is not root any more, yet may read what it could before.
NOT_ROOT = """
import ctypes, os
if os.geteuid() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())
    open("/proc/self/setgroups", "w").write("deny")
    open("/proc/self/uid_map", "w").write("65534 0 1")
    open("/proc/self/gid_map", "w").write("65534 0 1")
"""


def test_an_ordinary_user_needs_no_help(tmp_path: Path) -> None:
    root = tmp_path / "a b"
    script = f"""{NOT_ROOT}
from pathlib import Path
from stack import control
from stack.planning import UpOptions
root = Path({str(root)!r})
print(os.geteuid(), control.up(root, UpOptions(port_base={BASE + 400}, parts=("postgres",))))
print(control.down(root), control.reset(root))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout.startswith("0 ")
    assert "postgresql://postgres:" in done.stdout
    assert f"True [PosixPath('{root}/.penstock/postgres')" in done.stdout
