"""Removing a source leaves the database and Connect as they were, now or as soon as they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from apps.settings import Settings
from cdc.connect import ConnectClient
from cdc.database import connected
from cdc.replication import slot
from kernel.errors import EXIT_PARTIAL, Conflict, NotFound
from tests.support.services.waiting import until
from tests.support.sources.workspaces import Kept, Workspace

TABLES = "CREATE TABLE a (id int PRIMARY KEY, email text); CREATE TABLE b (id int PRIMARY KEY)"
_LEFT = """
SELECT 'slot' AS kind, slot_name AS name FROM pg_replication_slots
 WHERE database = current_database()
UNION ALL SELECT 'publication', pubname FROM pg_publication
UNION ALL SELECT 'event trigger', evtname FROM pg_event_trigger
UNION ALL SELECT 'schema', nspname FROM pg_namespace WHERE nspname = 'penstock'
"""


def traces(dsn: str) -> set[tuple[str, str]]:
    """Return what a source leaves in its database."""
    with connected(dsn) as connection:
        rows = connection.execute(_LEFT.encode()).fetchall()
    return {(str(row["kind"]), str(row["name"])) for row in rows}


@pytest.fixture
def workspace(
    tmp_path: Path, stack: Settings, new_source: Callable[[str], str]
) -> Iterator[Workspace]:
    # Its own store is the source's database, too: it has no events, so there is no outbox.
    found = Workspace(tmp_path, stack, **{"postgres.dsn": new_source(TABLES)})
    yield found
    for each in found("list")["sources"]:
        found("remove", each["source"], "--yes")


def offsets_known(workspace: Workspace) -> bool:
    """Say whether Connect still has the connector of the workspace's source."""
    with ConnectClient(workspace.settings.required("connect.url")) as connect:
        try:
            connect.status(workspace.connector)
        except NotFound:
            return False
    return True


@pytest.mark.matrix
def test_the_last_source_takes_everything_with_it(workspace: Workspace) -> None:
    dsn = workspace.settings.required("postgres.dsn")
    before = traces(dsn)
    assert before == set()
    workspace("add", workspace.source, "--dsn", dsn, "--tables", "a")
    # A second source of the same database: the event triggers are shared.
    second = f"{workspace.source}_b"
    workspace("add", second, "--dsn", dsn, "--tables", "b")
    assert {kind for kind, _ in traces(dsn)} == {"slot", "publication", "event trigger", "schema"}

    workspace("remove", second, "--yes")
    left = traces(dsn)
    assert ("slot", workspace.replication) in left
    assert any(kind == "event trigger" for kind, _ in left)
    removed = workspace("remove", workspace.source, "--yes")
    assert removed["gone"] == ["connector", "slot", "publication", "event triggers"]
    assert traces(dsn) == before
    assert not offsets_known(workspace)
    assert not (workspace.folder / ".penstock/secrets" / workspace.source).exists()
    assert not workspace.file.exists()

    # The same name again begins anew: it does not go on from what Connect once knew.
    workspace("add", workspace.source, "--dsn", dsn, "--tables", "a")
    with ConnectClient(workspace.settings.required("connect.url")) as connect:
        assert connect.status(workspace.connector).running


def is_read(dsn: str, name: str) -> bool:
    """Say whether a connector has its slot by now: its task runs a moment before."""
    with connected(dsn) as connection:
        found = slot(connection, name)
    return found is not None and found.active_pid is not None


@pytest.mark.matrix
def test_what_cannot_be_reached_is_named_and_taken_away_later(workspace: Workspace) -> None:
    dsn = workspace.settings.required("postgres.dsn")
    workspace("add", workspace.source, "--dsn", dsn, "--tables", "a")
    config = workspace.folder / "penstock.toml"
    good, declared = config.read_text(), workspace.file.read_text()
    url = workspace.settings.required("connect.url")

    kept = Kept(workspace)
    assert kept.look() == "running"
    until(lambda: is_read(dsn, workspace.replication), "the connector reads its slot")
    # Connect does not answer: the slot is still read, and nothing may be forgotten.
    config.write_text(good.replace(url, "http://127.0.0.1:9"))
    removed = workspace("remove", workspace.source, "--yes", code=EXIT_PARTIAL)
    assert "does not answer" in removed["left"]["connector"]
    assert "is still read by pid" in removed["left"]["slot"]
    assert ("publication", workspace.replication) in traces(dsn)
    config.write_text(good)
    # A pipeline that goes on running does not start it again.
    assert kept.look() == ""

    # The database does not answer: the connector goes, the rest is for later.
    port = psycopg.conninfo.conninfo_to_dict(dsn)["port"]
    aside = workspace.folder / ".penstock/removing" / workspace.file.name
    aside.write_text(declared.replace(f"port={port}", "port=9"))
    removed = workspace("remove", workspace.source, "--yes", code=EXIT_PARTIAL)
    assert removed["gone"] == ["connector"]
    assert "does not answer" in removed["left"]["slot"]
    assert workspace("list")["sources"] == [
        {"source": workspace.source, "state": "removed-in-part", "standing_still": []}
    ]
    with pytest.raises(Conflict, match="is removed in part"):
        workspace("add", workspace.source, "--dsn", dsn, "--tables", "a")
    aside.write_text(declared)

    removed = workspace("remove", workspace.source, "--yes")
    assert removed["gone"] == ["slot", "publication", "event triggers"]
    assert traces(dsn) == set()
    assert workspace("list")["sources"] == []
    assert not aside.exists()
