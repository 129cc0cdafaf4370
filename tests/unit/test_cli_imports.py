"""A command loads what it needs when it runs, and help loads nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest

from apps.pipeline.metrics import PipelineMetrics
from lake.layout import Lake
from lake.table_columns import QUARANTINE
from lake.writer import ArrowWriter, Guard
from service.access import Access
from service.pipeline_endpoint import serve
from tests.docs.cli_reference import leaves
from tests.support.lake.handmade import HandMade, words

READER = "deltalake"
"""Reads Delta's log, and loads in a tenth of a second where Arrow and pandas take two."""
SLOW = {
    *(READER, "pandas", "pyspark", "sqlglot", "pyarrow", "pyarrow.dataset", "duckdb", "numpy"),
    *("fastapi", "uvicorn", "httpx", "pydantic", "rich", "psycopg", "fastavro", "confluent_kafka"),
}

HEAVY: dict[str, str] = {
    "query": "DuckDB answers it from Arrow's tables",
    "projection apply": "compiles SQL",
    "projection validate": "compiles SQL",
    "projection explain": "compiles SQL",
    "projection test": "compiles SQL and runs it",
    "projection status": "reads the statement that it shows",
    "projection drop": "asks the statements of others whether they read it",
    "replay plan": "compiles SQL",
    "replay apply": "Spark computes it",
    "replay resume": "Spark computes it",
    "replay verify": "compares tables row for row",
    "replay compare": "compares tables row for row",
    "replay swap": "compiles SQL, Spark brings the generation up to date",
    "replay rollback": "compiles SQL",
    "replay events": "reads the lake's log as Arrow",
    "replay cancel": "asks the live table whether it is the generation, with Delta and SQL",
    "savepoint create": "writes down the files of every table, in Arrow's form",
    "savepoint drop": "removes the files that only it kept, which are listed in Arrow's form",
    "source add": "asks the database and Kafka Connect, writes the catalog",
    "source check": "asks the database and Kafka Connect",
    "source status": "asks the database and Kafka Connect",
    "source verify": "reads the database and the lake",
    "source pause": "asks Kafka Connect",
    "source resume": "asks the database and Kafka Connect",
    "source resnapshot": "asks the database and Kafka Connect",
    "source remove": "asks the database and Kafka Connect",
    "stream archive": "moves events from PostgreSQL behind the lake's log",
    "store renew-id": "writes to PostgreSQL",
    "store export": "writes Parquet files",
    "store import": "reads Parquet files",
    "store rebuild": "reads the lake's log as Arrow",
    "store verify": "reads the lake's log as Arrow",
    "store restore-registry": "reads PostgreSQL and the lake",
    "wait": "asks PostgreSQL how far it is",
    "demo": "runs the whole system",
    "up": "starts the whole system",
}
"""Commands that load more than `READER`, and what for. What they refuse is refused before that:
`REFUSED`. A new command is light, or it is justified here."""

REFUSED = (
    ["source", "status", "none"],
    ["source", "verify", "none"],
    ["source", "pause", "none"],
    ["source", "resume", "none"],
    ["source", "resnapshot", "none", "--yes"],
    ["source", "remove", "none", "--yes"],
    ["projection", "drop", "none", "--yes"],
    ["projection", "drop", "report"],
    ["projection", "status", "none"],
    *(["replay", each, "none"] for each in ("plan", "apply", "swap", "verify", "compare")),
    *(["replay", each, "report"] for each in ("resume", "swap", "verify", "compare")),
    *(["replay", each, "report"] for each in ("cancel", "rollback")),
    ["savepoint", "create", "No Name"],
    ["savepoint", "drop", "none"],
    ["store", "renew-id"],
    ["stream", "archive", "--before", "1"],
    ["demo", "--flights", "0"],
    ["up", "--only", "nothing"],
    ["up", "--port-base", "99999"],
)
"""Calls of heavy commands with a name that nothing has, or without what they want."""

LIGHT: dict[str, list[str]] = {
    "epoch list": [],
    "epoch show": ["1"],
    "quarantine list": ["--all"],
    "quarantine show": ["t", "0", "0"],
    "quarantine export": ["/dev/null"],
    "quarantine retry": ["t"],
    "quarantine waive": ["t", "--reason", "r", "--yes"],
    "projection list": [],
    "projection pause": ["report"],
    "projection resume": ["report"],
    "table list": [],
    "table path": ["current.shop.public.orders"],
    "table history": ["current.shop.public.orders"],
    "table retry": ["typed/events.thing.told"],
    "replay status": ["report"],
    "replay pause": ["report"],
    "savepoint list": [],
    "trace": ["0190a2c4-7d6e-7b3a-9f00-5b1d2c3e4f50"],
    "source list": [],
    "token": [],
    "append": ["order-1", "placed", "{}"],
    "read": ["order-1"],
    "tail": [],
    "command": ["account", "1", "open"],
    "entity": ["account", "1"],
    "restart": ["postgres"],
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

WITHOUT_LAKE = {
    *("source list", "token", "append", "read", "tail", "command", "entity", "restart"),
    *("status", "logs", "down", "doctor", "reset", "init", "config show"),
}
"""Commands that load not even `READER`, with those of the groups beneath."""
GROUPS_WITHOUT_LAKE = ("stream ", "subscription ", "schema ")

RUNNER = """
import contextlib, io, json, sys
import typer
from apps.cli import build
from kernel.errors import PenstockError
ENDED = (SystemExit, typer.Exit, typer.BadParameter)
slow, calls = json.loads(sys.stdin.read())
loaded = {}
for call in calls:
    shown = io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(shown), contextlib.suppress(PenstockError, *ENDED):
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
    assert sorted(names) == sorted([*HEAVY, *LIGHT])


def test_help_loads_no_library_of_a_command(names: list[str], tmp_path: Path) -> None:
    calls = [["--help"], *([*name.split(), "--help"] for name in names)]
    assert loaded_by(calls, tmp_path) == {}


def test_a_command_of_the_service_or_the_stack_loads_no_library_of_the_lake(tmp_path: Path) -> None:
    calls = [
        [*name.split(), *arguments]
        for name, arguments in LIGHT.items()
        if name in WITHOUT_LAKE or name.startswith(GROUPS_WITHOUT_LAKE)
    ]
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


def test_a_light_command_loads_the_reader_of_deltas_log_alone(lake: Path) -> None:
    calls = [[*name.split(), *arguments] for name, arguments in LIGHT.items()]
    assert loaded_by(calls, lake).keys() == {READER}


def test_a_heavy_command_refuses_before_anything_loads(lake: Path) -> None:
    assert {call[0] for call in REFUSED} <= {name.split()[0] for name in HEAVY}
    assert loaded_by([*REFUSED], lake).keys() <= {READER}


def test_a_statement_is_read_without_arrow(lake: Path) -> None:
    assert loaded_by([["projection", "status", "report"]], lake).keys() == {READER, "sqlglot"}


class KnowsNoConnector(BaseHTTPRequestHandler):
    """Kafka Connect without connectors: one that does not answer is waited for."""

    def do_PUT(self) -> None:
        """Answer as Connect does where there is no such connector."""
        body = b'{"error_code": 404, "message": "Unknown connector"}'
        self.send_response(404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


def test_a_word_to_connect_loads_its_client_alone(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "shop.toml").touch()
    with HTTPServer(("127.0.0.1", 0), KnowsNoConnector) as connect:
        Thread(target=connect.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{connect.server_port}"
        (tmp_path / "penstock.toml").write_text(f'[connect]\nurl = "{url}"\n')
        loaded = loaded_by([["source", "pause", "shop"]], tmp_path).keys()
        connect.shutdown()
    assert "httpx" in loaded
    assert loaded <= {"httpx", "rich"}


def test_a_source_is_asked_for_where_a_stack_runs(lake: Path) -> None:
    (lake / "sources").mkdir()
    (lake / "sources" / "shop.toml").touch()
    calls = [["source", each, "shop"] for each in ("status", "pause", "resume")]
    assert loaded_by(calls, lake).keys() <= {READER}


def test_who_waits_loads_no_datasets(lake: Path) -> None:
    """The database that it asks first is left out; the look at the lake is a real one."""
    look = """
from apps import settings
from lake.layout import Lake
from service.caught_up import Accounts, CaughtUpEpoch, Goal, Waiting
class Heads:
    def lag(self, heads): return "store", 0, 0.0
told = Accounts(pipeline=lambda: None, still=list)
goal = Goal(store="store", head=1, cuts={})
found = Waiting(Lake.at(settings.load().lake), told, goal, Heads())
assert isinstance(found.look(), CaughtUpEpoch)
"""
    loaded = loaded_by([["wait"]], lake, look=look).keys()
    assert READER in loaded
    assert not loaded & {"pandas", "pyspark", "sqlglot", "duckdb", "pyarrow"}


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
