"""DDL that takes a veil away: the connector stops, says why, and goes on when the file is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from apps.settings import Settings
from cdc.connect import ConnectClient
from kernel.errors import EXIT_UNHEALTHY, Misconfigured
from tests.support.services.waiting import until
from tests.support.sources.workspaces import Kept, Workspace

TABLES = "CREATE TABLE people (id int PRIMARY KEY, card text, phone text, note text)"
OPTIONS = '[table."public.people"]\nexclude = ["card"]\nmask = ["phone"]\n'


@pytest.fixture
def veiled(
    tmp_path: Path, stack: Settings, new_source: Callable[[str], str]
) -> Iterator[tuple[Workspace, Kept, str]]:
    dsn = new_source(TABLES)
    workspace = Workspace(tmp_path, stack, **{"postgres.dsn": dsn})
    name = workspace.source
    workspace("add", name, "--dsn", dsn, "--tables", "people", "--snapshot", "connector")
    workspace.file.write_text(f"{workspace.file.read_text()}\n{OPTIONS}")
    kept = Kept(workspace)
    try:
        assert kept.look() == "running"
        yield workspace, kept, dsn
    finally:
        workspace("remove", name, "--yes")


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def state_of(workspace: Workspace) -> str:
    with ConnectClient(workspace.settings.required("connect.url")) as connect:
        return connect.status(workspace.connector).connector


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("statement", "why", "old", "new"),
    [
        (
            "ALTER TABLE people RENAME card TO card_number",
            "public.people.card: no such column",
            'exclude = ["card"]',
            'exclude = ["card_number"]',
        ),
        pytest.param(
            "ALTER TABLE people ALTER phone TYPE bigint USING 0",
            "public.people.phone: mask does not work on int8",
            'exclude = ["card"]\nmask = ["phone"]',
            'exclude = ["card", "phone"]',
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_a_connector_whose_veil_misses_its_column_stops_and_says_why(
    veiled: tuple[Workspace, Kept, str], statement: str, why: str, old: str, new: str
) -> None:
    workspace, kept, dsn = veiled
    execute(dsn, statement)
    said = kept.look()
    assert why in said
    assert "is stopped" in said
    until(lambda: state_of(workspace) == "STOPPED", "the connector is stopped")
    state = workspace("status", workspace.source, code=EXIT_UNHEALTHY)
    assert (state["state"], state["healthy"]) == ("paused", False)
    assert why in state["reason"]
    assert f"then: penstock source resume {workspace.source}" in state["fix"]

    # Nobody starts it by mistake: it would read on with veils that miss.
    with pytest.raises(Misconfigured, match=r"is stopped"):
        workspace("resume", workspace.source)
    assert why in Kept(workspace).look()
    until(lambda: state_of(workspace) == "STOPPED", "the connector is stopped")

    text = workspace.file.read_text()
    assert old in text
    workspace.file.write_text(text.replace(old, new))
    # What the file says is applied first, whether or not a pipeline runs.
    assert workspace("resume", workspace.source)["task"] == "RUNNING"
    assert kept.look() == "running"
    with ConnectClient(workspace.settings.required("connect.url")) as connect:
        config = connect.config(workspace.connector) or {}
    assert ("card_number" in config["column.exclude.list"]) == ("card_number" in new)
    assert workspace("status", workspace.source)["state"] == "runs"


@pytest.mark.matrix
def test_an_option_that_never_was_in_force_stops_nothing(
    veiled: tuple[Workspace, Kept, str],
) -> None:
    workspace, kept, _ = veiled
    text = workspace.file.read_text()
    workspace.file.write_text(text.replace('["phone"]', '["phone", "nothing"]'))
    assert "nothing: no such column" in kept.look()
    assert state_of(workspace) == "RUNNING"
    workspace.file.write_text(text)
    assert kept.look() == "running"
