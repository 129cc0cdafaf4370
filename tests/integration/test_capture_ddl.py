"""The event triggers: what each kind of DDL tells, and that they come and go without a trace."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc import ddl
from cdc.columns import columns_of
from cdc.database import Connection, connected
from schemas.schema_change import MESSAGE_PREFIX, SchemaChange, parse_schema_change
from tests.support.store.postgres import Cluster, admin

SHOP = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int);
CREATE DOMAIN price AS numeric(12, 2) CHECK (VALUE >= 0);
CREATE TABLE item (id bigint PRIMARY KEY, state mood, amount price, tags text[], note varchar(9));
INSERT INTO item VALUES (1, 'ok', 2.5, '{a}', 'x');
CREATE TABLE odd (
    id int PRIMARY KEY, moods mood[], prices price[], grid numeric(5, 2)[][], pairs pair,
    serial int GENERATED ALWAYS AS IDENTITY, twice int GENERATED ALWAYS AS (id * 2) STORED,
    at timetz, gap interval, bits bit(3)
);
"""


@dataclass
class Listener:
    """A database with the triggers, and a slot that hears their messages."""

    connection: Connection
    dsn: str
    slot: str

    def run(self, *statements: str) -> list[SchemaChange]:
        """Run statements in one transaction; return what was told."""
        with self.connection.transaction():
            for statement in statements:
                self.connection.execute(statement.encode())
        rows = self.connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'none', 'messages', 'true')",
            (self.slot,),
        ).fetchall()
        return [told for row in rows if (told := _message(row["data"])) is not None]

    def one(self, *statements: str) -> SchemaChange:
        """Run statements that tell of one thing."""
        (told,) = self.run(*statements)
        return told


def _message(data: object) -> SchemaChange | None:
    assert isinstance(data, bytes)
    if data[:1] != b"M":
        return None
    # Kind, flags and LSN take ten bytes; then the prefix up to a zero, a length, the content.
    prefix, _, rest = data[10:].partition(b"\0")
    assert prefix == MESSAGE_PREFIX.encode()
    return parse_schema_change(rest[4:].decode())


@contextmanager
def listening(dsn: str) -> Iterator[Listener]:
    """Listen to a database with the tables of a shop."""
    with connected(dsn) as connection:
        connection.execute("SET client_encoding = 'UTF8'")
        connection.execute(SHOP.encode())
        assert ddl.may_install(connection)
        assert not ddl.installed(connection)
        assert ddl.ensure(connection)
        slot = connection.info.dbname
        connection.execute("CREATE PUBLICATION none")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        yield Listener(connection, dsn, slot)
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


@pytest.fixture
def shop(postgres_dsn: str) -> Iterator[Listener]:
    with listening(postgres_dsn) as listener:
        yield listener


def test_a_table_is_told_as_the_catalog_has_it(shop: Listener) -> None:
    ddl.tell(shop.connection, ["public.odd"])
    (told,) = shop.run()
    assert (told.kind, told.table, told.key) == ("describe", "public.odd", ("id",))
    # What the connector's settings need is not told.
    known = columns_of(shop.connection, "public.odd")
    wanted = [replace(column, root=0, domain=False, caveat="") for column in known]
    assert [c.column for c in told.columns] == wanted
    labels = {c.name: sorted(c.labels.values()) for c in told.columns if c.labels}
    assert labels == {"moods": ["ok", "sad"]}
    assert "twice" not in {c.name for c in told.by_attnum().values()}


def test_added_columns_say_what_older_rows_have(shop: Listener) -> None:
    shop.connection.execute("SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'")
    told = shop.one(
        "ALTER TABLE item ADD a int DEFAULT 7, ADD b text DEFAULT 'x,\"y{', ADD e int[] DEFAULT"
        " '{1,2}', ADD d timestamptz DEFAULT '2020-01-01 00:00+02', ADD f text, ADD g box DEFAULT"
        " '(3,4),(1,2)', ADD h box[] DEFAULT '{(3,4),(1,2);(5,6),(1,1)}', ADD i text DEFAULT ''"
    )
    missing = {c.name: (c.default, c.missing) for c in told.columns if c.attnum > 5}
    assert missing == {
        "a": (True, "7"),
        "b": (True, 'x,"y{'),
        "e": (True, "{1,2}"),
        "d": (True, "2019-12-31 22:00:00+00"),
        "f": (False, None),
        "g": (True, "(3,4),(1,2)"),
        "h": (True, "{(3,4),(1,2);(5,6),(1,1)}"),
        "i": (True, ""),
    }
    assert told.rewritten == 0
    own = shop.one("ALTER TABLE item ADD u uuid DEFAULT gen_random_uuid()")
    assert (own.rewritten, own.columns[-1].default, own.columns[-1].missing) == (2, True, None)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE item RENAME note TO remark", {"renamed": 5, "rewritten": 0}),
        ("ALTER TABLE item ALTER id TYPE numeric", {"rewritten": 4, "using": False}),
        ("ALTER TABLE item ALTER note TYPE text USING note || 'x'", {"using": True}),
        ("DO $$ BEGIN ALTER TABLE item ALTER id TYPE int; END $$", {"rewritten": 4}),
        ("ALTER TABLE item RENAME TO things", {"table": "public.things", "kind": "alter"}),
        ("DROP TABLE item", {"table": "public.item", "kind": "drop", "columns": ()}),
        ("ALTER TABLE item DROP CONSTRAINT item_pkey", {"key": ()}),
        ("ALTER TABLE item REPLICA IDENTITY USING INDEX item_pkey", {"identity": "i"}),
        ("ALTER TABLE item REPLICA IDENTITY FULL", {"identity": "f"}),
        ("CREATE UNLOGGED TABLE quick (id int)", {"persistence": "u", "kind": "create"}),
        ("CREATE TABLE copied AS SELECT 1 AS id", {"table": "public.copied", "kind": "create"}),
    ],
)
def test_each_command_is_told(statement: str, expected: dict[str, object], shop: Listener) -> None:
    told = shop.one(statement)
    assert {name: getattr(told, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("statement", "using"),
    [
        ("SELECT alter_notes()", True),
        ("ALTER TABLE item ALTER note TYPE text; SELECT 1", True),
        ("DO $$ BEGIN ALTER TABLE item ALTER id TYPE int; END $$", True),
        ("-- First; alter table item\nSELECT alter_notes()", True),
        ("/* wider */ SET LOCAL lock_timeout = 0; ALTER TABLE item ALTER id TYPE numeric;", False),
    ],
)
def test_a_text_that_may_hide_a_command_is_taken_to_compute_values(
    statement: str, using: bool, shop: Listener
) -> None:
    shop.run(
        "CREATE FUNCTION alter_notes() RETURNS void LANGUAGE sql"
        " AS $$ ALTER TABLE item ALTER note TYPE text USING note || 'x' $$"
    )
    assert shop.one(statement).using is using


def test_a_partition_that_a_function_attaches_is_looked_at(shop: Listener) -> None:
    *_, lone = shop.run(
        "CREATE TABLE event (at int) PARTITION BY LIST (at)",
        "CREATE TABLE e1 AS SELECT 1 AS at",
        "CREATE FUNCTION alter_events() RETURNS void LANGUAGE sql"
        " AS $$ ALTER TABLE event ATTACH PARTITION e1 FOR VALUES IN (1) $$",
    )
    assert shop.one("SELECT alter_events()").filled == {lone.oid}
    assert shop.one("ALTER TABLE event ALTER at SET NOT NULL").filled is None


def test_composite_types_and_schemas_tell_of_their_tables(shop: Listener) -> None:
    tables = shop.run("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
    assert {(told.table, told.type_kind) for told in tables} == {
        ("public.item", "e"),
        ("public.odd", "e"),
    }
    assert shop.one("ALTER TYPE pair ADD ATTRIBUTE b int").type_kind == "c"
    shop.run("CREATE SCHEMA x", "ALTER TABLE item SET SCHEMA x")
    assert shop.one("ALTER SCHEMA x RENAME TO y").table == "y.item"
    assert shop.run("CREATE TEMP TABLE scratch (id int)", "DROP TABLE scratch") == []


def test_a_table_of_a_type_is_told_as_if_its_own_columns_were_altered(shop: Listener) -> None:
    shop.run(
        "CREATE TYPE shape AS (gone int, id int, a int, b text)",
        "ALTER TYPE shape DROP ATTRIBUTE gone",
        "CREATE TABLE typed OF shape (PRIMARY KEY (id))",
        "CREATE TABLE holding (id int, s shape)",
    )
    told = {each.table: each for each in shop.run("ALTER TYPE shape ADD ATTRIBUTE c int CASCADE")}
    assert {table: each.type_kind for table, each in told.items()} == {
        "public.typed": None,
        "public.holding": "c",
    }
    assert [column.name for column in told["public.typed"].columns] == ["id", "a", "b", "c"]
    told = {
        each.table: each for each in shop.run("ALTER TYPE shape RENAME ATTRIBUTE b TO d CASCADE")
    }
    assert (told["public.typed"].renamed, told["public.typed"].columns[2].name) == (3, "d")
    shop.run("DROP TABLE holding")
    retyped = shop.one("ALTER TYPE shape ALTER ATTRIBUTE a TYPE bigint CASCADE")
    assert (retyped.rewritten, retyped.using, retyped.type_kind) == (4, False, None)


def test_another_name_or_owner_of_a_composite_type_is_none_of_its_attributes(
    shop: Listener,
) -> None:
    for change in ("RENAME TO couple", "OWNER TO CURRENT_USER", "SET SCHEMA public"):
        name = "pair" if "RENAME" in change else "couple"
        told = shop.one(f"ALTER TYPE {name} {change}")
        assert (told.table, told.type_kind) == ("public.odd", None)


def test_what_a_key_only_includes_is_not_told_as_a_part_of_it(shop: Listener) -> None:
    key = "PRIMARY KEY (b, a) INCLUDE (note)"
    told = shop.one(f"CREATE TABLE covered (a int, b int, note text, {key})")
    assert (told.key, told.key_alone) == (("b", "a"), True)


def test_a_key_that_is_made_deferrable_is_told_as_such(shop: Listener) -> None:
    made = "ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (id)"
    assert [shop.one(f"{made} {how}").deferrable for how in ("DEFERRABLE", "")] == [True, False]


def test_types_tell_of_tables_that_have_them_by_domains(shop: Listener) -> None:
    shop.run(
        "CREATE DOMAIN feeling AS mood",
        "CREATE DOMAIN feelings AS feeling[]",
        "CREATE DOMAIN two AS pair",
        "CREATE TABLE felt (id int, a feeling, b feelings, c two)",
    )
    told = {each.table: each for each in shop.run("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")}
    assert set(told) == {"public.item", "public.odd", "public.felt"}
    felt = told["public.felt"]
    assert felt.type_kind == "e"
    assert [sorted(c.labels.values()) for c in felt.columns[1:3]] == [["fine", "sad"]] * 2
    composite = shop.run("ALTER TYPE pair ADD ATTRIBUTE b int")
    assert {(each.table, each.type_kind) for each in composite} == {
        ("public.odd", "c"),
        ("public.felt", "c"),
    }


def test_types_tell_of_tables_that_have_them_inside_of_others(shop: Listener) -> None:
    """The text of such a value is another one by then, in rows that nobody wrote."""
    shop.run(
        "CREATE TYPE felt AS (state mood, n int)",
        "CREATE DOMAIN felts AS felt[]",
        "CREATE TYPE moods AS RANGE (subtype = mood, multirange_type_name = multimoods)",
        "CREATE TYPE around AS (p pair)",
        "CREATE TABLE deep (id int, f felts, r moods, m multimoods)",
        "CREATE TABLE wrapped (id int, a around, i item)",
    )
    told = {each.table: each for each in shop.run("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")}
    assert set(told) == {"public.item", "public.odd", "public.deep"}
    labels = [sorted(column.labels.values()) for column in told["public.deep"].columns]
    assert labels == [[], *[["fine", "sad"]] * 3]
    composite = shop.run("ALTER TYPE pair ADD ATTRIBUTE b int")
    assert {(each.table, each.type_kind) for each in composite} == {
        ("public.odd", "c"),
        ("public.wrapped", "c"),
    }
    rows = shop.run("ALTER TABLE item ADD more int")
    assert {each.table: each.type_kind for each in rows} == {
        "public.item": None,
        "public.wrapped": "c",
    }


def test_partitions_are_told_with_their_root(shop: Listener) -> None:
    root, part, lone = shop.run(
        "CREATE TABLE event (id int, at date) PARTITION BY RANGE (at)",
        "CREATE TABLE e0 PARTITION OF event FOR VALUES FROM ('2020-01-01') TO ('2021-01-01')",
        "CREATE TABLE e1 (id int, at date)",
        "INSERT INTO e1 VALUES (1, '2021-02-02')",
    )
    assert (part.root, lone.root) == (root.oid, None)
    joined = shop.one(
        "ALTER TABLE event ATTACH PARTITION e1 FOR VALUES FROM ('2021-01-01') TO ('2022-01-01')"
    )
    assert (joined.partitions, joined.filled) == ({part.oid, lone.oid}, {lone.oid})
    wider = shop.one("ALTER TABLE event ADD c int DEFAULT 5")
    assert wider.columns[-1].missing == "5"
    assert shop.one("ALTER TABLE event DETACH PARTITION e1").partitions == {part.oid}


def test_a_root_is_told_of_partitions_of_its_partitions(shop: Listener) -> None:
    root, mid, leaf, lone = shop.run(
        "CREATE TABLE event (at int, n int) PARTITION BY LIST (at)",
        "CREATE TABLE mid PARTITION OF event FOR VALUES IN (1) PARTITION BY LIST (n)",
        "CREATE TABLE m1 PARTITION OF mid FOR VALUES IN (1)",
        "CREATE TABLE m2 AS SELECT 1 AS at, 2 AS n",
    )
    assert (mid.root, mid.leaf, leaf.root, leaf.leaf) == (root.oid, False, root.oid, True)
    told, _ = shop.run("ALTER TABLE mid ATTACH PARTITION m2 FOR VALUES IN (2)")
    assert (told.oid, told.partitions, told.filled) == (root.oid, {leaf.oid, lone.oid}, {lone.oid})
    told, _ = shop.run("ALTER TABLE mid DETACH PARTITION m2")
    assert (told.oid, told.partitions, told.unlogged) == (root.oid, {leaf.oid}, frozenset())
    told, _ = shop.run("ALTER TABLE m1 REPLICA IDENTITY NOTHING")
    assert (told.oid, told.identity) == (root.oid, "n")
    told, _ = shop.run("ALTER TABLE m1 SET UNLOGGED")
    assert (told.oid, told.unlogged) == (root.oid, {leaf.oid})
    told, fresh = shop.run("CREATE UNLOGGED TABLE m3 PARTITION OF mid FOR VALUES IN (3)")
    assert (told.kind, told.unlogged) == ("alter", {leaf.oid, fresh.oid})


def test_tables_that_inherit_are_told_with_their_parent(shop: Listener) -> None:
    shop.run(
        "CREATE TABLE animal (id int PRIMARY KEY, name text)",
        "CREATE TABLE dog (PRIMARY KEY (id)) INHERITS (animal)",
        "CREATE TABLE puppy (name text, id int NOT NULL)",
        "ALTER TABLE puppy INHERIT dog",
    )
    animals = {"public.animal": 2, "public.dog": 2, "public.puppy": 1}
    renamed = shop.run("ALTER TABLE animal RENAME name TO title")
    assert {told.table: told.renamed for told in renamed} == animals
    computed = shop.run("ALTER TABLE animal ALTER title TYPE text USING title || 'x'")
    assert {told.table: (told.rewritten, told.using) for told in computed} == dict.fromkeys(
        animals, (4, True)
    )
    added = shop.run("ALTER TABLE animal ADD note text")
    assert {told.table: told.columns[-1].name for told in added} == dict.fromkeys(animals, "note")


def test_names_are_told_in_utf_8_whatever_the_databases_encoding(postgres_cluster: Cluster) -> None:
    name = f"t_{uuid.uuid4().hex[:16]}"
    made = "ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    admin(postgres_cluster, f"CREATE DATABASE {name} {made}")
    try:
        with listening(postgres_cluster.dsn(name)) as shop:
            told = shop.one('ALTER TABLE item RENAME note TO "größe"')
            assert [c.name for c in told.columns][-1] == "größe"
            assert shop.one('ALTER TABLE item RENAME TO "maße"').table == "public.maße"
            assert shop.one('DROP TABLE "maße"').table == "public.maße"
    finally:
        admin(postgres_cluster, f"DROP DATABASE {name} WITH (FORCE)")


def test_what_is_rolled_back_is_not_told(shop: Listener) -> None:
    told = shop.one(
        "SAVEPOINT here",
        "ALTER TABLE item ADD gone int",
        "ROLLBACK TO here",
        "ALTER TABLE item ADD stays int",
    )
    assert [c.name for c in told.columns][-1] == "stays"


def test_they_come_once_and_go_without_a_trace(shop: Listener) -> None:
    assert ddl.ensure(shop.connection)
    shop.connection.execute("CREATE PUBLICATION penstock_other_shop")
    assert not ddl.remove(shop.connection, unless_used_beside="penstock_mine_shop")
    assert ddl.installed(shop.connection)
    assert ddl.remove(shop.connection, unless_used_beside="penstock_other_shop")
    assert not ddl.installed(shop.connection)
    left = shop.connection.execute(
        "SELECT (SELECT count(*) FROM pg_event_trigger) AS triggers,"
        " to_regnamespace('penstock') AS schema"
    ).fetchone()
    assert left == {"triggers": 0, "schema": None}
    assert shop.run("ALTER TABLE item ADD quiet int") == []


def test_triggers_of_another_version_tell_of_tables_that_join(shop: Listener) -> None:
    """A role that may not replace them has them for long: without it, the next DDL were the first
    that is told of a table, and what it gives to older rows were not known."""
    for function in ("tell_ddl_v1", "tell_drop_v1", "tell_rewrite_v1"):
        shop.connection.execute(f"COMMENT ON FUNCTION penstock.{function}() IS 'old'".encode())
    assert not ddl.installed(shop.connection)
    ddl.tell(shop.connection, ["public.item"])
    assert (told := shop.one()).kind == "describe"
    assert told.key == ("id",)
    shop.connection.execute("ALTER EVENT TRIGGER penstock_ddl_v1 DISABLE")
    ddl.tell(shop.connection, ["public.item"])
    assert shop.run() == []


def test_a_role_that_may_not_is_told_so_and_its_ddl_never_fails(shop: Listener) -> None:
    shop.connection.execute("DROP ROLE IF EXISTS weak_owner")
    shop.connection.execute("CREATE ROLE weak_owner LOGIN")
    shop.connection.execute("GRANT CREATE, USAGE ON SCHEMA public TO weak_owner")
    weak = make_conninfo(shop.dsn, user="weak_owner")
    with psycopg.connect(weak, autocommit=True) as owner:
        owner.execute("CREATE TABLE theirs (id int)")
    assert shop.one().table == "public.theirs"
    # Somebody breaks what the triggers need.
    shop.connection.execute("DROP FUNCTION penstock.table_v1")
    with psycopg.connect(weak, autocommit=True) as owner:
        owner.execute("ALTER TABLE theirs ADD a int")
    ddl.remove(shop.connection)
    with connected(weak) as owner:
        assert not ddl.may_install(owner)
        assert not ddl.ensure(owner)
        ddl.tell(owner, ["public.theirs"])
    assert shop.run() == []
    shop.connection.execute("DROP OWNED BY weak_owner; DROP ROLE weak_owner")
