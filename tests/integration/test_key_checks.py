"""Keys by which rows cannot be told apart are refused before anything is captured."""

from __future__ import annotations

import psycopg
import pytest

from cdc.database import connected
from cdc.key_checks import GUARDED, UNIQUE
from cdc.options import PLAIN, TableOptions
from cdc.replication import ensure_publication, published, withdraw_refusing
from cdc.scope import Scope, fingerprint, scope_of
from cdc.sources import declare
from cdc.table_checks import key_columns, table_checks
from kernel.errors import Misconfigured

TABLES = """
CREATE TABLE loose (a int, b int NOT NULL);
ALTER TABLE loose REPLICA IDENTITY FULL;
CREATE TABLE late (pos int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED);
ALTER TABLE late REPLICA IDENTITY FULL;
CREATE TABLE tagged (id int NOT NULL, tags text[], PRIMARY KEY (id, tags));
CREATE TABLE sound (id int PRIMARY KEY);
"""


def test_keys_that_tell_no_rows_apart_are_refused(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(TABLES.encode())
    names = ("loose", "late", "tagged", "sound")
    source, _ = declare("shop", dsn=postgres_dsn, tables=names, keys={"loose": ("a", "b")})
    with connected(postgres_dsn) as connection:
        checks = scope_of(source, connection, "penstock_test_shop").checks
    failed = {c.subject: (c.required, c.found) for c in checks if not c.ok and not c.advice}
    assert failed == {
        "table public.loose": (
            "NOT NULL for the columns of its declared key",
            "a may be null: rows without a key cannot be told apart",
        ),
        "table public.late": ("a primary key that is not DEFERRABLE", "DEFERRABLE"),
        "table public.tagged": (
            "a key without arrays",
            "tags: rows cannot be told apart by arrays",
        ),
    }


def test_a_table_whose_key_got_an_array_is_held_while_the_others_of_its_source_run_on(
    postgres_dsn: str,
) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(TABLES.encode())
    source, _ = declare("shop", dsn=postgres_dsn, tables=("tagged", "sound"))
    with connected(postgres_dsn) as connection:
        scope = scope_of(source, connection, "penstock_test_shop", runs=True)
    assert scope.tables == {"public.sound": ("id",)}
    assert "rows cannot be told apart by arrays" in scope.held["public.tagged"]
    alone, _ = declare("shop", dsn=postgres_dsn, tables=("tagged",))
    with (
        connected(postgres_dsn) as connection,
        pytest.raises(Misconfigured, match=r"can be captured: public\.tagged: .* by arrays"),
    ):
        scope_of(alone, connection, "penstock_test_shop", runs=True)


def test_a_declared_key_that_may_be_null_by_now_is_noticed_and_holds_its_table(
    postgres_dsn: str,
) -> None:
    names, keys = ("visits", "sound"), {"visits": ("at", "visitor")}
    source, _ = declare("shop", dsn=postgres_dsn, tables=names, keys=keys)
    made = (
        TABLES
        + """
    CREATE TABLE visits (visitor int NOT NULL, at timestamptz NOT NULL, note text NOT NULL);
    ALTER TABLE visits REPLICA IDENTITY FULL;
    """
    )
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(made.encode())
    with connected(postgres_dsn) as connection:
        before = fingerprint(source, connection, "penstock_test_shop")
        connection.execute("ALTER TABLE visits ALTER COLUMN note DROP NOT NULL")
        assert fingerprint(source, connection, "penstock_test_shop") == before
        connection.execute("ALTER TABLE visits ALTER COLUMN visitor DROP NOT NULL")
        assert fingerprint(source, connection, "penstock_test_shop") != before
        scope = scope_of(source, connection, "penstock_test_shop", runs=True)
    assert scope.tables == {"public.sound": ("id",)}
    assert "visitor may be null" in scope.held["public.visits"]


def test_a_null_that_is_forbidden_from_now_on_may_be_in_older_rows(postgres_dsn: str) -> None:
    source, _ = declare("shop", dsn=postgres_dsn, tables=("sound", "loose"), keys={"loose": ("a",)})
    with connected(postgres_dsn) as connection:
        connection.execute(TABLES.encode())
        connection.execute("INSERT INTO loose VALUES (NULL, 1)")
        connection.execute("ALTER TABLE loose ADD CONSTRAINT told NOT NULL a NOT VALID")
        scope = scope_of(source, connection, "penstock_test_shop", runs=True)
        assert "a may be null" in scope.held["public.loose"]
        before = fingerprint(source, connection, "penstock_test_shop")
        connection.execute("DELETE FROM loose")
        connection.execute("ALTER TABLE loose VALIDATE CONSTRAINT told")
        assert fingerprint(source, connection, "penstock_test_shop") != before
        scope = scope_of(source, connection, "penstock_test_shop", runs=True)
    assert scope.tables["public.loose"] == ("a",)


def test_rows_with_equal_declared_keys_are_counted_before_they_become_one(
    postgres_dsn: str,
) -> None:
    """A unique index answers by itself; without one it is advised, and asked for of new ones."""
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(
            b"CREATE TABLE visits (who int NOT NULL, at date NOT NULL, note text);"
            b"ALTER TABLE visits REPLICA IDENTITY FULL;"
            b"INSERT INTO visits VALUES (1, 'today'), (1, 'tomorrow'), (2, 'today'), (2, 'today')"
        )

    def looked(*key: str, runs: bool = False) -> list[tuple[bool, str, str]]:
        source, _ = declare("s", dsn=postgres_dsn, tables=("visits",), keys={"visits": key})
        with connected(postgres_dsn) as connection:
            checks = scope_of(source, connection, "penstock_test_shop", runs=runs).checks
        return [(c.advice, c.found, c.fix or "") for c in checks if c.required in (UNIQUE, GUARDED)]

    ((advice, found, fix),) = looked("who")
    assert (advice, found) == (False, "2 values of who in several rows")
    assert "Declare columns that are unique together" in fix
    assert looked("who", "at")[0][1] == "1 values of who, at in several rows"
    assert looked("who", runs=True) == []
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(b"DELETE FROM visits WHERE who = 2")
        ((advice, found, fix),) = looked("at", "who")
        assert (advice, found) == (True, "none; among 2 rows no two have the same at, who")
        assert fix == 'CREATE UNIQUE INDEX ON "public"."visits" ("at", "who")'
        connection.execute(b"CREATE UNIQUE INDEX ON visits (who, at) INCLUDE (note)")
    assert looked("at", "who") == []
    assert looked("who")[0][0] is False


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_key_that_is_made_deferrable_amid_the_stream_holds_its_table_back(
    postgres_dsn: str, identity: str
) -> None:
    """It is no identity any more: as long as its table is published, UPDATEs fail without FULL."""
    source, _ = declare("shop", dsn=postgres_dsn, tables=("swapped", "sound"))
    keyed = "ALTER TABLE swapped DROP CONSTRAINT swapped_pkey, ADD PRIMARY KEY (id)"
    with connected(postgres_dsn) as connection:
        connection.execute(
            b"CREATE TABLE sound (id int PRIMARY KEY); CREATE TABLE swapped (id int PRIMARY KEY);"
            b"INSERT INTO swapped VALUES (1), (2); CREATE PUBLICATION p FOR TABLE sound, swapped"
        )
        connection.execute(f"ALTER TABLE swapped REPLICA IDENTITY {identity}".encode())
        before = fingerprint(source, connection, "p")
        connection.execute(f"{keyed} DEFERRABLE".encode())
        assert fingerprint(source, connection, "p") != before
        scope = scope_of(source, connection, "p", runs=True)
        assert [*scope.tables] == ["public.sound"]
        assert "not DEFERRABLE is required" in scope.held["public.swapped"]
        assert withdraw_refusing(connection, "p") == (
            ("public.swapped",) if identity == "DEFAULT" else ()
        )
        connection.execute("UPDATE swapped SET id = 3 - id")
        connection.execute(keyed.encode())
        assert "public.swapped" in scope_of(source, connection, "p", runs=True).tables


def test_a_declared_key_that_rows_may_share_for_a_while_is_refused(postgres_dsn: str) -> None:
    source, _ = declare("s", dsn=postgres_dsn, tables=("seats",), keys={"seats": ("seat",)})
    with connected(postgres_dsn) as connection:
        connection.execute(
            b"CREATE TABLE seats (seat int NOT NULL UNIQUE DEFERRABLE, who text);"
            b"ALTER TABLE seats REPLICA IDENTITY FULL; INSERT INTO seats VALUES (1, 'a'), (2, 'b')"
        )

        def refused() -> list[str]:
            checks = scope_of(source, connection, "p").checks
            return [c.found for c in checks if c.required in (UNIQUE, GUARDED)]

        assert refused() == [
            "DEFERRABLE: an UPDATE may give a row the seat that another one has still"
        ]
        connection.execute("CREATE UNIQUE INDEX ON seats (seat)")
        assert refused() == []


def test_tables_that_inherit_are_not_published_with_their_parent(postgres_dsn: str) -> None:
    """They have no key of their own: PostgreSQL would refuse the UPDATEs of whoever owns them."""
    with connected(postgres_dsn) as connection:
        connection.execute(
            b"CREATE TABLE animal (id int PRIMARY KEY, name text);"
            b"CREATE TABLE dog (legs int) INHERITS (animal); INSERT INTO dog VALUES (1, 'a', 4);"
            b"CREATE PUBLICATION told FOR TABLE animal"
        )
        assert published(connection, "told") == {"public.animal": None, "public.dog": None}
        ensure_publication(connection, "told", ("public.animal",))
        assert published(connection, "told") == {"public.animal": None}
        ensure_publication(connection, "new", ("animal",), columns={"animal": ("id",)})
        assert published(connection, "new") == {"public.animal": ("id",)}
        connection.execute("UPDATE animal SET name = 'b'")


PARTED = """
CREATE TABLE plain (id int PRIMARY KEY, v text);
CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE ROLE reader_of_parted;
CREATE PUBLICATION mine FOR TABLE plain;
CREATE PUBLICATION halves FOR TABLE plain, parted;
"""


def test_a_publication_by_hand_covers_its_tables_but_for_partitioned_ones(
    postgres_dsn: str,
) -> None:
    """`publish_via_partition_root` is off there, which says nothing of tables without partitions.

    Who only reads could not set it, and would be refused what it had.
    """
    with connected(postgres_dsn) as connection:
        connection.execute(PARTED.encode())
        assert published(connection, "mine") == {"public.plain": None}
        connection.execute("SET ROLE reader_of_parted")
        assert ensure_publication(connection, "mine", ("public.plain",)) == ()
        connection.execute("RESET ROLE")
        connection.execute("DROP ROLE reader_of_parted")
        tables = ("public.plain", "public.parted")
        assert published(connection, "halves") == {"public.plain": None}
        assert ensure_publication(connection, "halves", tables) == ("public.parted",)
        assert published(connection, "halves") == dict.fromkeys(tables)
        assert ensure_publication(connection, "halves", tables) == ()


ODD = """
CREATE TABLE sound (id int PRIMARY KEY);
CREATE TABLE covering (id int, note text, tags text[], PRIMARY KEY (id) INCLUDE (note, tags));
CREATE TABLE mirrored (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) VIRTUAL);
ALTER TABLE mirrored REPLICA IDENTITY FULL;
CREATE TABLE folded (mail text, low text GENERATED ALWAYS AS (lower(mail)) STORED PRIMARY KEY);
CREATE TABLE known (id int PRIMARY KEY, mail text NOT NULL);
CREATE TABLE visits (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM (1) TO (9);
"""


def scope_while_it_runs(dsn: str, *tables: str, **keys: tuple[str, ...]) -> Scope:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(ODD.encode())
    source, _ = declare("shop", dsn=dsn, tables=("sound", *tables), keys=keys)
    with connected(dsn) as connection:
        return scope_of(source, connection, "penstock_test_shop", runs=True)


def test_columns_beside_a_key_in_its_index_are_no_part_of_it(postgres_dsn: str) -> None:
    scope = scope_while_it_runs(postgres_dsn, "covering")
    assert scope.tables["public.covering"] == ("id",)
    with connected(postgres_dsn) as connection:
        assert key_columns(connection, "public.covering") == ("id",)


def test_generated_columns_may_be_neither_keys_nor_under_full_identity(postgres_dsn: str) -> None:
    """PostgreSQL would refuse each UPDATE of the application, once the table is published."""
    scope = scope_while_it_runs(postgres_dsn, "mirrored", "folded")
    assert [*scope.tables] == ["public.sound"]
    assert "twice: PostgreSQL would refuse each UPDATE and DELETE" in scope.held["public.mirrored"]
    assert "low: not in the stream of changes" in scope.held["public.folded"]
    repairs = [check.repair for check in scope.checks if check.repair is not None]
    assert 'ALTER TABLE "public"."mirrored" REPLICA IDENTITY DEFAULT' in repairs
    with connected(postgres_dsn) as connection:
        connection.execute("ALTER TABLE mirrored REPLICA IDENTITY DEFAULT")
        options = TableOptions(hash=("twice",))
        found = table_checks(connection, "public.mirrored", key=(), options=options)
    (full,) = [each for each in found if "REPLICA IDENTITY FULL, for" in each.required]
    assert full.repair is None
    assert "Exclude them" in (full.fix or "")


def test_a_declared_key_beside_a_primary_key_needs_full_identity_too(postgres_dsn: str) -> None:
    """A DELETE tells the primary key alone, and an UPDATE nothing of what the row had."""
    scope = scope_while_it_runs(postgres_dsn, "known", known=("mail",))
    assert "declared mail: a DELETE tells id alone" in scope.held["public.known"]
    for key, identity in ((("id",), "DEFAULT"), (("mail",), "FULL")):
        source, _ = declare("shop", dsn=postgres_dsn, tables=("known",), keys={"known": key})
        with connected(postgres_dsn) as connection:
            connection.execute(f"ALTER TABLE known REPLICA IDENTITY {identity}".encode())
            scope = scope_of(source, connection, "penstock_test_shop", runs=True)
        assert scope.tables == {"public.known": key}


def test_a_partition_beside_its_root_is_refused(postgres_dsn: str) -> None:
    """PostgreSQL tells of its rows as of the root's: its own table would quietly grow old."""
    scope = scope_while_it_runs(postgres_dsn, "visits", "visits_1")
    assert [*scope.tables] == ["public.sound", "public.visits"]
    assert "a partition of public.visits, which has all" in scope.held["public.visits_1"]
    alone, _ = declare("shop", dsn=postgres_dsn, tables=("visits_1",))
    with connected(postgres_dsn) as connection:
        scope = scope_of(alone, connection, "penstock_test_shop", runs=True)
    assert scope.tables == {"public.visits_1": ("id",)}


def test_tables_whose_changes_postgresql_would_refuse_leave_a_publication(
    postgres_dsn: str,
) -> None:
    made = ODD.replace("STORED PRIMARY KEY", "STORED") + "CREATE TABLE mute (id int PRIMARY KEY);"
    made += "ALTER TABLE mute REPLICA IDENTITY NOTHING;"
    with connected(postgres_dsn) as connection:
        connection.execute(made.encode())
        connection.execute("CREATE PUBLICATION p FOR TABLE sound, mirrored, folded, known, mute")
        gone = withdraw_refusing(connection, "p")
        assert {*gone} == {"public.mirrored", "public.folded", "public.mute"}
        assert {*(published(connection, "p") or ())} == {"public.sound", "public.known"}
        for table in ("sound", "mirrored", "folded", "known", "mute"):
            connection.execute(f"DELETE FROM {table}".encode())
        assert withdraw_refusing(connection, "p") == ()


PARTS = """
CREATE TABLE sound (id int PRIMARY KEY);
CREATE TABLE loose (id int NOT NULL, at int NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE loose_1 PARTITION OF loose FOR VALUES FROM (0) TO (9);
ALTER TABLE loose REPLICA IDENTITY FULL; ALTER TABLE loose_1 REPLICA IDENTITY FULL;
CREATE TABLE keyed (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE keyed_1 PARTITION OF keyed FOR VALUES FROM (0) TO (9);
CREATE PUBLICATION p FOR TABLE loose, keyed WITH (publish_via_partition_root = true);
INSERT INTO loose VALUES (1, 1);
"""


def test_a_partition_tells_of_its_rows_by_its_own_identity(postgres_dsn: str) -> None:
    """One that is made later has the DEFAULT: without a key PostgreSQL refuses its UPDATEs."""
    names, keys = ("sound", "loose", "keyed"), {"loose": ("id", "at")}
    source, _ = declare("shop", dsn=postgres_dsn, tables=names, keys=keys)
    with connected(postgres_dsn) as connection:
        connection.execute(PARTS.encode())

        def now() -> tuple[Scope, tuple[object, ...]]:
            scope = scope_of(source, connection, "penstock_test_shop", runs=True)
            return scope, fingerprint(source, connection, "p")

        scope, before = now()
        assert {*scope.tables} == {f"public.{name}" for name in names}
        connection.execute("CREATE TABLE loose_2 PARTITION OF loose FOR VALUES FROM (9) TO (99)")
        connection.execute("INSERT INTO loose VALUES (10, 1)")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            connection.execute("UPDATE loose SET at = 2 WHERE id = 10")
        scope, after = now()
        assert after != before
        assert "declared key id, at, replica identity default" in scope.held["public.loose"]
        assert {*scope.tables} == {"public.sound", "public.keyed"}
        assert withdraw_refusing(connection, "p") == ("public.loose",)
        connection.execute("UPDATE loose SET at = 2 WHERE id = 10")
        (repair,) = [c.repair for c in scope.checks if c.repair is not None]
        assert repair == 'ALTER TABLE "public"."loose_2" REPLICA IDENTITY FULL'
        connection.execute(repair.encode())
        assert "public.loose" in now()[0].tables


def test_a_partition_of_which_nothing_or_too_little_is_told_holds_its_table(
    postgres_dsn: str,
) -> None:
    source, _ = declare("shop", dsn=postgres_dsn, tables=("sound", "keyed"))
    steps = {
        "REPLICA IDENTITY NOTHING": "primary key, replica identity nothing",
        "REPLICA IDENTITY USING INDEX keyed_1_pkey": "primary key, replica identity index",
        "REPLICA IDENTITY DEFAULT": None,
        "SET UNLOGGED": "partitioned table, of which keyed_1 unlogged or foreign",
        "SET LOGGED": None,
    }
    with connected(postgres_dsn) as connection:
        connection.execute(PARTS.encode())
        known = set[tuple[object, ...]]()
        for step, held in steps.items():
            connection.execute(f"ALTER TABLE keyed_1 {step}".encode())
            known.add(fingerprint(source, connection, "p"))
            scope = scope_of(source, connection, "penstock_test_shop", runs=True)
            assert (held or "") in scope.held.get("public.keyed", "")
            assert ("public.keyed" in scope.held) == (held is not None)
            with_slot = scope_of(source, connection, "penstock_test_shop", slot=False)
            refused = [c for c in with_slot.checks if not c.ok and "keyed" in c.subject]
            assert bool(refused) == (held is not None)
        assert len(known) == 4


def test_a_policy_that_hides_rows_from_the_role_is_refused_but_for_a_table_that_is_captured(
    postgres_dsn: str,
) -> None:
    with connected(postgres_dsn) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        connection.execute("CREATE ROLE barred LOGIN")
        connection.execute("GRANT SELECT ON t TO barred")
        try:
            with connected(postgres_dsn.replace("postgres@", "barred@")) as own:
                for published in (False, True):
                    found = table_checks(
                        own, "public.t", key=(), options=PLAIN, published=published
                    )
                    (hidden,) = [c for c in found if "row-level" in c.required]
                    assert (hidden.ok, hidden.advice) == (False, published)
                    assert hidden.fix == 'As a superuser: ALTER ROLE "barred" BYPASSRLS'
            connection.execute("ALTER ROLE barred BYPASSRLS")
            with connected(postgres_dsn.replace("postgres@", "barred@")) as own:
                found = table_checks(own, "public.t", key=(), options=PLAIN)
                assert not [c for c in found if "row-level" in c.required]
        finally:
            connection.execute("DROP OWNED BY barred; DROP ROLE barred")
