"""A command loads what it needs when it runs, and help loads nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from apps.access import Access
from apps.pipeline.endpoint import serve
from apps.pipeline.metrics import PipelineMetrics
from lake.layout import Lake
from lake.table_columns import QUARANTINE
from lake.writer import ArrowWriter, Guard
from tests.docs.cli_reference import leaves
from tests.support.lake.handmade import HandMade, words

READER = "deltalake"
"""Reads Delta's log, and loads in a tenth of a second where Arrow and pandas take two."""
LAKE = {READER, "pandas", "pyspark", "sqlglot", "pyarrow", "pyarrow.dataset", "duckdb"}
SLOW = LAKE | {"fastapi", "uvicorn", "httpx", "pydantic", "rich", "psycopg"}

OF_THE_LAKE = (
    "query",
    "projection apply",
    "projection validate",
    "projection explain",
    "projection test",
    "replay",
    "source add",
    "source check",
    "source status",
    "source verify",
    "source resume",
    "source resnapshot",
    "source remove",
    "stream archive",
    "store export",
    "store import",
    "store rebuild",
    "store verify",
    "trace",
    "demo",
    "up",
)
"""Commands and groups that ask databases or compile SQL: they alone may load what that takes."""

PAGES: dict[str, list[str]] = {
    "quarantine retry": ["t"],
    "quarantine waive": ["t", "--reason", "r", "--yes"],
    "projection pause": ["report"],
    "projection resume": ["report"],
    "table retry": ["typed/events.thing.told"],
    "savepoint create": ["first"],
    "savepoint list": [],
    "savepoint drop": ["first"],
}
"""Commands that read rows of the lake's own tables or write a decision: Arrow writes and filters
them, and no engine or parser of SQL has a part in that."""
STATEMENTS: dict[str, list[str]] = {"projection status": ["report"]}
"""Commands that read a statement of SQL, and run none: its parser is all that this takes."""
CONNECT: dict[str, list[str]] = {"source pause": ["shop"]}
"""Commands that tell Kafka Connect something: they know a source by the name of its file."""
REFUSED = (
    ["source", "status", "none"],
    ["source", "verify", "none"],
    ["source", "pause", "none"],
    ["source", "resume", "none"],
    ["source", "resnapshot", "none", "--yes"],
    ["source", "remove", "none", "--yes"],
)
"""Calls with a name that no source has."""
SQL = {"pyspark", "duckdb", "sqlglot"}

LISTS: dict[str, list[str]] = {
    "epoch list": [],
    "epoch show": ["1"],
    "quarantine list": ["--all"],
    "quarantine show": ["t", "0", "0"],
    "quarantine export": ["/dev/null"],
    "projection list": [],
    "projection drop": ["report"],
    "table list": [],
    "table path": ["current.shop.public.orders"],
    "table history": ["current.shop.public.orders"],
}
"""Lists of what is in the lake: they may load what reads Delta's log, and no more."""

WAIT = "wait"
"""It polls, so that a script that calls it often does not pay for pandas."""

ALONE: dict[str, list[str]] = {
    "source list": [],
    "token": [],
    "append": ["order-1", "placed", "{}"],
    "read": ["order-1"],
    "tail": [],
    "command": ["account", "1", "open"],
    "entity": ["account", "1"],
    "restart": ["postgres"],
    "store renew-id": [],
    "stream list": [],
    "stream categories": [],
    "stream show": ["order-1"],
    "stream delete": ["order-1", "--yes"],
    "stream truncate": ["order-1", "--before", "1"],
    "stream bound": ["order-1", "--max-count", "1"],
    "stream export": ["order-1"],
    "stream import": ["/dev/null"],
    "subscription list": [],
    "subscription create": ["audit"],
    "subscription show": ["audit"],
    "subscription delete": ["audit", "--yes"],
    "subscription replay-parked": ["audit"],
    "schema list": [],
    "schema add": ["order.placed", "/dev/null", "--compatibility", "full"],
    "schema check": ["order.placed", "/dev/null"],
    "status": [],
    "logs": [],
    "down": [],
    "doctor": [],
    "reset": [],
    "init": ["new"],
    "config show": [],
}
"""All others, with arguments: each runs until the service does not answer, or to its end."""

RUNNER = """
import contextlib, io, json, sys
from apps.cli import build
from kernel.errors import PenstockError
slow, calls = json.loads(sys.stdin.read())
loaded = {}
for call in calls:
    shown = io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(shown), contextlib.suppress(PenstockError):
        build()(call, standalone_mode=False)
    for name in slow:
        if name in sys.modules:
            loaded.setdefault(name, call)
print(json.dumps(loaded))
"""


def loaded_by(
    calls: list[list[str]], folder: Path, *, look: str = "", **set_: str
) -> dict[str, list[str]]:
    """Return the slow libraries that calls of one fresh process loaded, and the first such call."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    done = subprocess.run(
        [sys.executable, "-c", look + RUNNER],
        input=json.dumps([sorted(SLOW), calls]),
        env={**environment, "PENSTOCK_SERVICE_URL": "http://127.0.0.1:1", **set_},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.fixture
def names() -> list[str]:
    return [name.removeprefix("penstock ") for name, _ in leaves()]


def test_every_command_is_of_one_kind(names: list[str]) -> None:
    others = (ALONE, LISTS, PAGES, STATEMENTS, CONNECT, (WAIT,))
    kinds = {
        name: (*(name in kind for kind in others), name.startswith(OF_THE_LAKE)) for name in names
    }
    assert not [name for name, kind in kinds.items() if sum(kind) != 1]


def test_help_loads_no_library_of_a_command(names: list[str], tmp_path: Path) -> None:
    calls = [["--help"], *([*name.split(), "--help"] for name in names)]
    assert loaded_by(calls, tmp_path) == {}


def test_a_command_of_the_service_or_the_stack_loads_no_library_of_the_lake(tmp_path: Path) -> None:
    calls = [[*name.split(), *arguments] for name, arguments in ALONE.items()]
    assert loaded_by(calls, tmp_path) == {}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a workspace whose lake has a table of each kind."""
    made = HandMade(Lake.at(tmp_path / "lake"))
    made.deploy("report")
    row = words((1, "w"))
    epoch = made.epoch(logs={"current/shop.public.orders": row}, head=1)
    made.derive({"typed/events.thing.told": row}, epoch)
    made.run("report", row, epoch)
    record = {"epoch": 1, "topic": "t", "partition": 0, "offset": 0, "value": b"x"}
    unread = pa.Table.from_pylist([record], schema=QUARANTINE)
    ArrowWriter(made.tables).append(made.lake.quarantine, unread, Guard("q", epoch))
    return tmp_path


def test_a_list_of_the_lake_loads_the_reader_of_its_log_alone(lake: Path) -> None:
    calls = [[*name.split(), *arguments] for name, arguments in LISTS.items()]
    assert loaded_by(calls, lake).keys() == {READER}


@pytest.mark.parametrize(
    ("commands", "unneeded"), [(PAGES, SQL), (STATEMENTS, SLOW - {READER, "sqlglot"})]
)
def test_a_page_or_a_decision_loads_no_engine(
    commands: dict[str, list[str]], unneeded: set[str], lake: Path
) -> None:
    calls = [[*name.split(), *arguments] for name, arguments in commands.items()]
    assert not loaded_by(calls, lake).keys() & unneeded


def test_a_word_to_connect_loads_its_client_alone(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "shop.toml").touch()
    calls = [[*name.split(), *arguments] for name, arguments in CONNECT.items()]
    assert loaded_by(calls, tmp_path).keys() <= {"httpx", "rich"}


def test_a_name_that_no_source_has_is_refused_before_anything_loads(lake: Path) -> None:
    """Whether a source on a topic has it stands in the lake's catalog."""
    assert loaded_by([*REFUSED], lake).keys() <= {READER}


def test_who_waits_loads_no_datasets(lake: Path) -> None:
    """The database that it asks first is left out; the look at the lake is a real one."""
    look = """
from apps import settings
from apps.caught_up import CaughtUp, Goal, Waiting
class Heads:
    def lag(self, heads): return "store", 0, 0.0
found = Waiting(settings=settings.load(), goal=Goal(store="store", head=1, cuts={}), heads=Heads())
assert isinstance(found.look(), CaughtUp)
"""
    loaded = loaded_by([[WAIT]], lake, look=look).keys()
    assert READER in loaded
    assert not loaded & {"pandas", "pyspark", "sqlglot", "duckdb", "pyarrow.dataset"}


def test_a_list_of_sources_is_asked_of_the_pipeline(tmp_path: Path) -> None:
    shown = {"source": "shop", "state": "runs", "slot": {"wal_status": "reserved"}}
    (tmp_path / "penstock.toml").write_text('[connect]\nurl = "http://127.0.0.1:1"\n')
    server = serve("127.0.0.1", 0, Access(), PipelineMetrics(), lambda: (True, {}), lambda: [shown])
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert loaded_by([["source", "list"]], tmp_path, PENSTOCK_PIPELINE_URL=url) == {}
    finally:
        server.shutdown()
        server.server_close()
