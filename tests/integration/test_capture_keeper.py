"""What the pipeline's keeper brings about while all runs: tables join and leave, files change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

import cdc.capture
from apps.settings import Settings
from cdc.connect import ConnectClient
from cdc.database import connected
from cdc.replication import published
from cdc.scope import fingerprint
from cdc.sources import declare
from cdc.upkeep import lifecycle
from cdc.upkeep.lifecycle import captured_tables
from lake.tables import Tables
from pipeline.installs.install_book import WANT, InstallBook
from tests.support.sources.workspaces import Kept, Workspace

TABLES = """
CREATE TABLE order_lines (id int PRIMARY KEY, v text);
CREATE TABLE people (id int PRIMARY KEY, card text, note text);
CREATE TABLE log (v text);
"""


@dataclass
class World:
    """A workspace with a source that runs, and the keeper that looks after it."""

    workspace: Workspace
    kept: Kept
    dsn: str

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def published(self) -> dict[str, tuple[str, ...] | None]:
        with connected(self.dsn) as connection:
            return published(connection, self.workspace.replication) or {}

    def captured(self) -> list[str]:
        """Return the tables that connector, catalog and publication agree on."""
        found = sorted(captured_tables(self.workspace.lake, self.workspace.source))
        with ConnectClient(self.workspace.settings.required("connect.url")) as connect:
            config = connect.config(self.workspace.connector) or {}
        listed = config["table.include.list"].replace("\\", "").split(",")
        assert sorted(listed) == found == sorted(self.published())
        return found

    def wanted(self) -> list[list[str]]:
        """Return the tables of each copy that was asked for."""
        book = InstallBook(self.workspace.lake, Tables())
        return [entry.detail["tables"] for entry in book.entries() if entry.kind == WANT]

    def declare(self, old: str, new: str) -> None:
        """Edit the source's file, as a person would."""
        text = self.workspace.file.read_text()
        assert old in text
        self.workspace.file.write_text(text.replace(old, new))


@pytest.fixture
def world(tmp_path: Path, stack: Settings, new_source: Callable[[str], str]) -> Iterator[World]:
    dsn = new_source(TABLES)
    # The workspace's own store is that database, too: it has no events, so there is no outbox.
    workspace = Workspace(tmp_path, stack, **{"postgres.dsn": dsn})
    tables = "public.order_*,people"
    workspace("add", workspace.source, "--dsn", dsn, "--tables", tables, "--snapshot", "connector")
    try:
        yield World(workspace, Kept(workspace), dsn)
    finally:
        workspace("remove", workspace.source, "--yes")


@pytest.mark.matrix
def test_a_table_that_comes_to_match_a_pattern_joins_and_one_that_is_gone_leaves(
    world: World,
) -> None:
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines", "public.people"]

    world.execute("CREATE TABLE order_notes (id int PRIMARY KEY); CREATE TABLE orders (id int)")
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines", "public.order_notes", "public.people"]
    # The rows that it had before it joined are not in the stream.
    assert world.wanted() == [["public.order_notes"]]

    world.execute("DROP TABLE order_notes")
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines", "public.people"]


@pytest.mark.matrix
def test_a_key_that_was_renamed_is_known_by_its_name(world: World) -> None:
    assert world.kept.look() == "running"
    world.execute('ALTER TABLE people RENAME id TO "a.b"')
    assert world.kept.look() == "running"
    captured = captured_tables(world.workspace.lake, world.workspace.source)
    assert captured["public.people"].keys == ("a.b",)


def test_what_decides_on_a_scope_is_another_once_a_key_is_renamed(postgres_dsn: str) -> None:
    """Its number and its index stay what they were: the name alone tells."""
    declared, _ = declare("shop", dsn=postgres_dsn, tables=("public.people",))

    def now() -> tuple[object, ...]:
        with connected(postgres_dsn) as connection:
            return fingerprint(declared, connection, "penstock_shop")

    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE people (name text, id int, PRIMARY KEY (id, name))")
        before = now()
        connection.execute("ALTER TABLE people ADD age int")
        assert now() == before
        connection.execute("ALTER TABLE people RENAME id TO number")
        assert now() != before
        before = now()
        connection.execute(
            "ALTER TABLE people ADD next int GENERATED ALWAYS AS (number + 1) STORED"
        )
        assert now() != before


@pytest.mark.parametrize(("one", "other"), [("name", "Name"), ("é", "É"), ("kis", "k\u0131s")])
def test_what_decides_on_a_scope_is_another_once_columns_differ_by_case_alone(
    postgres_dsn: str, one: str, other: str
) -> None:
    declared, _ = declare("shop", dsn=postgres_dsn, tables=("places",))
    with connected(postgres_dsn) as connection:
        connection.execute(f'CREATE TABLE places (id int PRIMARY KEY, "{one}" int)'.encode())
        before = fingerprint(declared, connection, "penstock_shop")
        connection.execute(f'ALTER TABLE places ADD "{other}" int'.encode())
        assert fingerprint(declared, connection, "penstock_shop") != before


@pytest.mark.matrix
def test_a_table_of_a_pattern_that_cannot_be_captured_is_held_back_alone(world: World) -> None:
    world.execute("CREATE TABLE order_log (v text); CREATE TABLE order_notes (id int PRIMARY KEY)")
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines", "public.order_notes", "public.people"]
    held = world.workspace("status", world.workspace.source)["held"]
    assert list(held) == ["public.order_log"]
    assert "a primary key, or REPLICA IDENTITY FULL" in held["public.order_log"]
    checks = world.workspace("check", world.workspace.source)["checks"]
    assert any(c["subject"] == "table public.order_log" and not c["ok"] for c in checks)

    world.execute("ALTER TABLE order_log ADD id int PRIMARY KEY")
    world.execute("ALTER TABLE order_log REPLICA IDENTITY FULL")
    assert world.kept.look() == "running"
    assert "public.order_log" in world.captured()
    assert world.workspace("status", world.workspace.source)["held"] == {}


@pytest.mark.matrix
def test_a_table_whose_updates_its_publication_would_forbid_leaves_it(world: World) -> None:
    """PostgreSQL refuses each UPDATE while what it tells of a row lacks a generated column."""
    assert world.kept.look() == "running"
    world.execute("INSERT INTO people VALUES (1, 'c', 'n')")
    world.execute("ALTER TABLE people REPLICA IDENTITY FULL")
    world.execute("ALTER TABLE people ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        world.execute("UPDATE people SET note = 'never'")
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines"]
    world.execute("UPDATE people SET note = 'again'")
    world.execute("ALTER TABLE people REPLICA IDENTITY DEFAULT")
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines", "public.people"]
    assert world.wanted() == [["public.people"]]
    world.execute("UPDATE people SET note = 'still'")


@pytest.mark.matrix
def test_a_table_that_lost_its_key_can_be_changed_and_comes_back_with_it(world: World) -> None:
    """PostgreSQL refuses each UPDATE of a published table whose rows have no identity."""
    assert world.kept.look() == "running"
    world.execute("INSERT INTO people VALUES (1); INSERT INTO order_lines VALUES (1)")
    world.execute("ALTER TABLE people DROP CONSTRAINT people_pkey")
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines"]
    world.execute("UPDATE people SET note = 'changed'")
    world.execute("ALTER TABLE order_lines DROP CONSTRAINT order_lines_pkey")
    assert "no table can be captured" in world.kept.look()
    assert world.published() == {}
    world.execute("UPDATE order_lines SET v = 'changed'")
    for table in ("people", "order_lines"):
        world.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (id)")
    world.kept.keeper.forget_pauses()
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines", "public.people"]
    assert sorted(map(sorted, world.wanted())) == [["public.order_lines", "public.people"]]


@pytest.mark.matrix
def test_a_table_that_was_taken_out_of_the_publication_comes_back_and_is_copied(
    world: World,
) -> None:
    world.kept.look()
    world.execute(f"ALTER PUBLICATION {world.workspace.replication} DROP TABLE people")
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines", "public.people"]
    assert world.wanted() == [["public.people"]]


@pytest.mark.matrix
def test_a_table_whose_changes_are_not_in_the_wal_is_held_alone_until_they_are(
    world: World,
) -> None:
    world.execute("CREATE TABLE order_parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    world.execute("CREATE TABLE some_parts PARTITION OF order_parts FOR VALUES FROM (0) TO (9)")
    every = ["public.order_lines", "public.order_parts", "public.people"]
    assert world.kept.look() == "running"
    assert world.captured() == every
    world.execute("ALTER TABLE some_parts SET UNLOGGED")
    world.execute(f"ALTER PUBLICATION {world.workspace.replication} DROP TABLE people")
    world.execute("ALTER TABLE people SET UNLOGGED")
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines"]
    held = world.workspace("status", world.workspace.source)["held"]
    assert "of which some_parts unlogged or foreign" in held["public.order_parts"]
    assert "found unlogged table" in held["public.people"]
    world.execute("ALTER TABLE some_parts SET LOGGED; ALTER TABLE people SET LOGGED")
    assert world.kept.look() == "running"
    assert world.captured() == every
    assert world.wanted()[-1] == ["public.order_parts", "public.people"]


NARROWED = {
    "rows": ("SET TABLE ONLY people WHERE (id > 5), ONLY order_lines", ["public.people"]),
    "deletes": ("SET (publish = 'insert, update')", ["public.order_lines", "public.people"]),
}


@pytest.mark.parametrize(("narrowed", "copied"), NARROWED.values(), ids=NARROWED)
def test_a_publication_that_leaves_changes_out_is_made_whole_and_its_tables_are_copied(
    world: World, narrowed: str, copied: list[str]
) -> None:
    world.kept.look()
    before = world.published()
    world.execute(f"ALTER PUBLICATION {world.workspace.replication} {narrowed}")
    assert world.kept.look() == "running"
    assert world.wanted() == [copied]
    assert world.published() == before


@pytest.mark.matrix
@pytest.mark.parametrize("step", [pytest.param("before", marks=pytest.mark.matrix), "after"])
def test_a_copy_of_what_comes_back_is_asked_for_although_the_process_dies(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    world.kept.look()
    world.execute(f"ALTER PUBLICATION {world.workspace.replication} DROP TABLE people")
    world.execute(
        "CREATE TABLE order_notes (id int PRIMARY KEY); INSERT INTO order_notes VALUES (1)"
    )

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    # Right before the publication is altered, or right after.
    place = (
        (cdc.capture, "ensure_publication") if step == "before" else (lifecycle, "record_capture")
    )
    with monkeypatch.context() as patched:
        patched.setattr(*place, dies)
        with pytest.raises(KeyboardInterrupt):
            world.kept.look()
    assert ("public.people" in world.published()) == (step == "after")
    # Nothing is copied that does not come with all later changes.
    assert world.wanted() == []

    again = Kept(world.workspace)
    assert again.look() == "running"
    assert world.captured() == ["public.order_lines", "public.order_notes", "public.people"]
    assert world.wanted() == [["public.order_notes", "public.people"]]
    assert Kept(world.workspace).look() == "running"
    assert len(world.wanted()) == 1


def test_a_files_tables_and_options_are_applied_without_a_restart(world: World) -> None:
    world.kept.look()
    world.execute("CREATE TABLE more (id int PRIMARY KEY)")
    world.declare('"public.people",', '"public.more",')
    assert world.kept.look() == "running"
    assert world.captured() == ["public.more", "public.order_lines"]

    world.declare('"public.more",', '"public.people",')
    options = '[table."public.people"]\nexclude = ["card"]\nwithhold = true\nhistory = true\n'
    world.workspace.file.write_text(f"{world.workspace.file.read_text()}\n{options}")
    assert world.kept.look() == "running"
    assert world.captured() == ["public.order_lines", "public.people"]
    assert captured_tables(world.workspace.lake, world.workspace.source)["public.people"].history
    assert world.published()["public.people"] == ("id", "note")

    # A column that is made later is published as soon as it is seen, and the table copied again.
    before = len(world.wanted())
    world.execute("ALTER TABLE people ADD later text")
    assert world.kept.look() == "running"
    assert world.published()["public.people"] == ("id", "note", "later")
    assert world.wanted()[before:] == [["public.people"]]


@pytest.mark.matrix
def test_a_paused_source_takes_changes_of_its_file_and_stays_paused(world: World) -> None:
    world.kept.look()
    world.workspace("pause", world.workspace.source)
    world.execute("CREATE TABLE order_notes (id int PRIMARY KEY)")
    assert world.kept.look() == "paused"
    assert "public.order_notes" in world.captured()
    assert world.workspace("list")["sources"][0]["state"] == "paused"
    assert world.workspace("resume", world.workspace.source)["task"] == "RUNNING"
    assert world.kept.look() == "running"


@pytest.mark.matrix
def test_a_file_that_is_wrong_is_named_and_changes_nothing(world: World) -> None:
    world.kept.look()
    good = world.workspace.file.read_text()
    world.workspace.file.write_text(f"{good}\ntabels = []\n")
    assert world.kept.look() == "running"
    assert "unknown tabels" in world.kept.keeper.states["sources/*.toml"]
    assert world.captured() == ["public.order_lines", "public.people"]
    world.workspace.file.write_text(good)
    world.kept.look()
    assert "sources/*.toml" not in world.kept.keeper.states


@pytest.mark.matrix
def test_another_database_under_the_same_name_is_refused_by_name(
    world: World, new_source: Callable[[str], str]
) -> None:
    world.kept.look()
    other = psycopg.conninfo.conninfo_to_dict(new_source(TABLES))["dbname"]
    mine = psycopg.conninfo.conninfo_to_dict(world.dsn)["dbname"]
    world.declare(f"dbname={mine}", f"dbname={other}")
    assert f"reads database {mine}; its file now names {other}" in world.kept.look()
    world.declare(f"dbname={other}", f"dbname={mine}")
    assert world.kept.look() == "running"
