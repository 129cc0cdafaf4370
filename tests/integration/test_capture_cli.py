"""`penstock source …` on the real stack, from a workspace of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.settings import Settings
from cdc.database import connected
from kernel.errors import (
    EXIT_FAILED,
    EXIT_NEEDS_CONFIRMATION,
    EXIT_UNHEALTHY,
    Conflict,
    Misconfigured,
    NotFound,
)
from tests.support.services.waiting import until
from tests.support.sources.workspaces import Workspace

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'x'), (2, NULL);
CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE keyless (v text);
"""


@pytest.fixture
def source(
    tmp_path: Path, stack: Settings, new_source: Callable[[str], str]
) -> Iterator[Workspace]:
    # After `new_source`, so that it ends before: a database with a slot cannot be dropped.
    found = Workspace(tmp_path, stack)
    yield found
    for each in found("list")["sources"]:
        found("remove", each["source"], "--yes")


def test_a_source_from_add_to_remove(source: Workspace, new_source: Callable[[str], str]) -> None:
    dsn = new_source(TABLES)
    declared = (source.source, "--dsn", dsn, "--snapshot", "connector", "--tables")
    added = source("add", *declared, "a,public.b")
    assert added["connector"]["task"] == "RUNNING"
    assert all(check["ok"] for check in added["checks"])
    again = source("add", *declared, "public.a,public.b")
    assert again["connector"]["task"] == "RUNNING"

    def snapshot() -> dict[str, Any]:
        found: dict[str, Any] = source("status", source.source)["snapshot"]
        return found

    until(lambda: snapshot()["state"] == "completed", "the snapshot is through", deadline_s=60)
    assert (snapshot()["tables"], snapshot()["attempts"]) == ({"public.a": 2, "public.b": 0}, 1)
    (listed,) = source("list")["sources"]
    assert (listed["source"], listed["healthy"]) == (source.source, True)
    assert listed["slot"]["name"] == f"penstock_{source.name}_{source.source}"

    assert source("pause", source.source)["task"] == "PAUSED"
    source("status", source.source, code=EXIT_UNHEALTHY)
    assert source("resume", source.source)["task"] == "RUNNING"

    # Nothing folds here: there is nothing to compare with.
    with pytest.raises(NotFound, match="the lake has no epoch yet"):
        source("verify", source.source, "--timeout", "0")

    source("remove", source.source, code=EXIT_NEEDS_CONFIRMATION)
    removed = source("remove", source.source, "--yes")
    assert (removed["whole"], removed["left"]) == (True, {})
    assert removed["gone"] == ["connector", "slot", "publication", "event triggers"]
    assert source("list")["sources"] == []
    with connected(dsn) as connection:
        query = "SELECT count(*) AS n FROM pg_publication"
        assert connection.execute(query.encode()).fetchone() == {"n": 0}
    with pytest.raises(NotFound, match=f"no source {source.source}"):
        source("status", source.source)


def test_what_is_not_admitted_leaves_nothing(
    source: Workspace, new_source: Callable[[str], str]
) -> None:
    dsn = new_source(TABLES)
    with pytest.raises(Misconfigured, match=r"public\.keyless: a primary key"):
        source("add", source.source, "--dsn", dsn, "--tables", "a,keyless")
    assert not (source.folder / "sources").exists()
    checked = source(
        "add", source.source, "--dsn", dsn, "--tables", "keyless", "--check", code=EXIT_FAILED
    )
    assert checked["admitted"] is False
    assert source("list")["sources"] == []


@pytest.mark.matrix
def test_a_name_keeps_its_tables(source: Workspace, new_source: Callable[[str], str]) -> None:
    dsn = new_source(TABLES)
    source("add", source.source, "--dsn", dsn, "--tables", "a")
    with pytest.raises(Conflict, match=r"captures public\.a already"):
        source("add", source.source, "--dsn", dsn, "--tables", "a,b")


@pytest.mark.matrix
def test_adding_again_loses_nothing_that_the_file_says(
    source: Workspace, new_source: Callable[[str], str]
) -> None:
    dsn = new_source(TABLES)
    source("add", source.source, "--dsn", dsn, "--tables", "a")
    file = source.folder / "sources" / f"{source.source}.toml"
    said = file.read_text() + '\n[table."public.a"]\nhistory = true\n'
    file.write_text(said)
    with pytest.raises(Conflict, match="other keys or options") as refused:
        source("add", source.source, "--dsn", dsn, "--tables", "a")
    assert f"sources/{source.source}.toml" in refused.value.remedy
    assert file.read_text() == said
