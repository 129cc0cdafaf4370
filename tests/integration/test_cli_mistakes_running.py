"""What a new user gets wrong while all runs: the answer says what happened and what to do."""

from __future__ import annotations

import shlex
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from apps.cli import main
from kernel.errors import EXIT_CONFLICT, EXIT_FAILED, EXIT_USAGE, ContractViolation, NotFound
from lake.layout import Lake
from tests.support.lake.handmade import HandMade, words
from tests.support.services.http import service_in_thread
from tests.support.store.postgres import TEMPLATE, Cluster, admin

PYTHON = ("Traceback", "Errno", "None", "\x1b", "<class", "list[", "Exception")
GENERIC = (ContractViolation.remedy, NotFound.remedy)
"""Say that something is wrong, and not what to write."""
FOREIGN = ("Binder", "Catalog Error", "Conversion Error", "Parser Error", "LINE 1", "__0")

OF_STREAMS = [
    (
        "read order-99",
        EXIT_FAILED,
        "stream order-99 has no events\n  fix: See what streams there are: penstock stream list",
    ),
    ("stream show order-99", EXIT_FAILED, "fix: See what streams there are: penstock stream list"),
    ("stream delete order-99", EXIT_FAILED, "stream order-99 has no events"),
    ("stream export order-99", EXIT_FAILED, "stream order-99 has no events"),
    ("read Order-1", EXIT_FAILED, "'Order-1' is not a stream name"),
    ("read order", EXIT_FAILED, "fix: Name streams category-id"),
    ("append order-1 Placed! {}", EXIT_USAGE, "'Placed!' is not an event type"),
    ("append order-1 placed {} --expect 7", EXIT_CONFLICT, "order-1"),
    ("append order-1 placed {} --expect no_stream", EXIT_CONFLICT, "order-1"),
    ("entity account 1", EXIT_FAILED, "no decider for category account"),
    ("append order-1 placed {} --expect 7 --json-lines", EXIT_USAGE, "no option --json-lines"),
    ("schema add order.placed /dev/null", EXIT_FAILED, "fix: Write a record, as {"),
    ("schema add order /dev/null", EXIT_USAGE, "order"),
    ("stream truncate order-1 --before 9", EXIT_USAGE, "the end of the stream, 1"),
    ("subscription create Audit", EXIT_USAGE, "Audit"),
    ("subscription show nope", EXIT_FAILED, "no subscription is named 'nope'"),
    ("subscription delete nope", EXIT_FAILED, "no subscription is named 'nope'"),
]
OF_TABLES = [
    (
        "query 'select wrod from report'",
        EXIT_USAGE,
        "no column wrod in what the query reads\n  fix: Did you mean word? There are: ",
    ),
    ("query 'select a.word from report'", EXIT_USAGE, 'Referenced table "a" not found'),
    ("query 'select fooo(word) from report'", EXIT_USAGE, "fooo does not exist"),
    ("query 'select cast(word as int) from report'", EXIT_USAGE, "Could not convert string 'w'"),
    ("query 'select word from reprot'", EXIT_FAILED, "did you mean projection/report?"),
    ("query 'select word from report where ('", EXIT_USAGE, "read: PAREN is incomplete"),
    ("query 'select word from report' --epoch 9", EXIT_FAILED, "epoch 9"),
    ("query 'delete from report'", EXIT_USAGE, "DELETE is not a query"),
    ("query 'select 1; select 2'", EXIT_USAGE, "expected one statement, found 2"),
    ("table path reprot", EXIT_FAILED, "did you mean projection/report?"),
    ("table retry report", EXIT_FAILED, "is not held by an error"),
    ("epoch show 9", EXIT_FAILED, "epoch 9 is not committed\n  fix: penstock epoch list"),
    ("projection pause reprot", EXIT_FAILED, "no projection reprot; there are: report"),
    ("projection drop reprot", EXIT_FAILED, "no projection reprot; there are: report"),
    ("projection apply broken.sql", EXIT_USAGE, "fix: Correct the SQL at that place"),
    ("replay verify reprot", EXIT_FAILED, "no projection reprot; there are: report"),
    ("replay verify report", EXIT_FAILED, "report has no generation that is built"),
    ("replay plan report --sql absent.sql", EXIT_USAGE, "absent.sql cannot be read"),
    ("quarantine show t 0 1", EXIT_FAILED, "no record t 0 1 in quarantine"),
]


@pytest.fixture(scope="module")
def running(postgres_cluster: Cluster) -> Iterator[httpx.Client]:
    name = f"mistakes_{uuid.uuid4().hex[:12]}"
    admin(postgres_cluster, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    with service_in_thread(postgres_cluster.dsn(name)) as client:
        event = {"events": [{"type": "placed", "data": {}}]}
        assert client.post("/v1/streams/order-1", json=event).status_code == 201
        yield client
    admin(postgres_cluster, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one projection in its lake."""
    folder = tmp_path_factory.mktemp("filled")
    made = HandMade(Lake.at(folder / "lake"))
    made.deploy("report")
    row = words((1, "w"))
    epoch = made.epoch(head=1)
    made.derive({"typed/events.thing.told": row}, epoch)
    made.run("report", row, epoch)
    (folder / "broken.sql").write_text("CREATE PROJECTION x WITH (key = a) AS SELECT a FROM (b")
    return folder


@pytest.fixture
def told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str]]:
    """Run a command line to its end; return its exit code and what it complained of."""

    def run(words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *shlex.split(words)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capfd.readouterr()
        assert not shown.out
        assert not [each for each in (*PYTHON, *FOREIGN) if each in shown.err]
        assert "  fix: " in shown.err
        assert not [each for each in GENERIC if each in shown.err]
        return int(str(ended.value.code)), shown.err

    return run


@pytest.mark.parametrize(("words", "code", "said"), OF_STREAMS, ids=[m[0] for m in OF_STREAMS])
def test_a_mistake_about_streams_is_answered_in_words(
    words: str,
    code: int,
    said: str,
    running: httpx.Client,
    told: Callable[[str], tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVICE_URL", str(running.base_url))
    found, shown = told(words)
    assert said in shown
    assert found == code


@pytest.mark.parametrize(("words", "code", "said"), OF_TABLES, ids=[m[0] for m in OF_TABLES])
def test_a_mistake_about_tables_is_answered_in_words(
    words: str,
    code: int,
    said: str,
    filled: Path,
    told: Callable[[str], tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(filled)
    found, shown = told(words)
    assert said in shown
    assert found == code
