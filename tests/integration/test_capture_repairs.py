"""`--fix`: what SQL can mend is mended as the role that may, and what remains is said."""

from __future__ import annotations

import psycopg
import pytest

from cdc import ddl
from cdc.admission import Check
from cdc.capture import ddl_check
from cdc.database import connected
from cdc.repairs import Repair, publish, repair
from cdc.replication import drop_publication, ensure_publication
from cdc.scope import scope_of
from cdc.sources import declare
from cdc.table_checks import PUBLISHABLE
from kernel.errors import Misconfigured
from tests.support.store import postgres
from tests.support.store.postgres import Cluster

SLOT = "penstock_test_shop"
ALL = "insert, update, delete, truncate"
TABLES = """
CREATE ROLE weak LOGIN;
CREATE SCHEMA app;
CREATE TABLE app."Orders" (id int PRIMARY KEY, v text);
CREATE TABLE app.visits (visitor int NOT NULL, at timestamp NOT NULL);
CREATE TABLE app.mute (id int PRIMARY KEY);
ALTER TABLE app.mute REPLICA IDENTITY NOTHING;
"""
NAMES = ("app.Orders", "app.visits", "app.mute")
KEYS = {"app.visits": ("visitor", "at")}


@pytest.fixture
def poor(own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A server as it comes: no logical decoding, a role without rights."""
    own_cluster.stop()
    settings = {name: value for name, value in postgres._SETTINGS.items() if name != "wal_level"}
    monkeypatch.setattr(postgres, "_SETTINGS", settings)
    own_cluster.start()
    with psycopg.connect(own_cluster.dsn("postgres"), autocommit=True) as connection:
        connection.execute(TABLES.encode())
    return own_cluster


def failed(checks: tuple[Check, ...]) -> list[str]:
    return [check.required for check in checks if not check.ok and not check.advice]


def test_what_may_be_mended_is_mended_and_a_restart_is_asked_for(poor: Cluster) -> None:
    admin = poor.dsn("postgres")
    weak = admin.replace("postgres@", "weak@")
    source, _ = declare("shop", dsn=weak, tables=NAMES, keys=KEYS)
    with connected(weak) as connection:
        checks = scope_of(source, connection, SLOT).checks
    assert failed(checks) == [
        "wal_level = logical",
        "REPLICATION",
        "CREATE on the database, to make the publication",
        *["SELECT", PUBLISHABLE],
        *["SELECT", PUBLISHABLE],
        "a primary key, or REPLICA IDENTITY FULL and a declared key",
        *["SELECT", PUBLISHABLE],
        "a primary key, or REPLICA IDENTITY FULL and a declared key",
    ]

    with connected(weak) as connection:
        tried = repair(connection, checks)
    assert not any(each.done for each in tried)
    assert all("As a role that may: " in str(each.remains) for each in tried)

    with connected(admin) as connection:
        done = repair(connection, checks)
    assert all(each.done for each in done)
    assert [each.remains for each in done if each.remains] == [
        "restart the server: it counts only then"
    ]
    with connected(weak) as connection:
        checks = scope_of(source, connection, SLOT).checks
        assert failed(checks) == ["wal_level = logical", *[PUBLISHABLE] * 3]
    poor.stop()
    poor.start()
    with connected(weak) as connection:
        scope = scope_of(source, connection, SLOT)
        assert failed(scope.checks) == [PUBLISHABLE] * 3
        assert set(scope.publishable) == set(NAMES)
    with connected(admin) as connection:
        made = publish(connection, SLOT, dict.fromkeys(NAMES), reader="weak", owner="w-weak")
        assert (made.done, made.remains) == (True, None)
        owners = "SELECT count(*) AS n FROM pg_auth_members WHERE member = 'weak'::regrole"
        assert connection.execute(owners.encode()).fetchone() == {"n": 0}
    with connected(weak) as connection:
        scope = scope_of(source, connection, SLOT)
        assert failed(scope.checks) == []
        assert ensure_publication(connection, SLOT, NAMES) == ()
        assert scope.tables == {
            "app.Orders": ("id",),
            "app.visits": ("visitor", "at"),
            "app.mute": ("id",),
        }
        connection.execute(f"ALTER PUBLICATION {SLOT} SET (publish = 'insert')".encode())
        assert failed(scope_of(source, connection, SLOT).checks) == [PUBLISHABLE] * 3
        connection.execute(f"ALTER PUBLICATION {SLOT} SET (publish = '{ALL}')".encode())
        # Nothing is left to do, and nothing is done twice.
        assert repair(connection, scope.checks) == ()
        assert drop_publication(connection, SLOT)
        with pytest.raises(Misconfigured, match="cannot be made to cover") as refused:
            ensure_publication(connection, SLOT, NAMES)
        assert "--fix-as" in refused.value.remedy


def test_a_fix_names_the_role_and_quotes_the_table(poor: Cluster) -> None:
    weak = poor.dsn("postgres").replace("postgres@", "weak@")
    source, _ = declare("shop", dsn=weak, tables=NAMES, keys=KEYS)
    with connected(weak) as connection:
        fixes = [str(c.fix) for c in scope_of(source, connection, SLOT).checks if c.fix]
    assert not any("CURRENT_USER" in fix or fix.startswith("GRANT postgres") for fix in fixes)
    assert any('SELECT ON "app"."Orders" TO "weak"' in fix for fix in fixes)


@pytest.mark.matrix
def test_triggers_of_another_role_are_named_with_what_drops_them(poor: Cluster) -> None:
    admin = poor.dsn("postgres")
    with connected(admin) as connection:
        assert ddl.ensure(connection)
    with (
        connected(admin.replace("postgres@", "weak@")) as connection,
        pytest.raises(Misconfigured, match="belong to another role") as refused,
    ):
        ddl.remove(connection)
    with connected(admin) as connection:
        connection.execute(refused.value.remedy.partition(": ")[2].encode())
        assert not ddl.installed(connection)


@pytest.mark.matrix
def test_one_repair_that_is_refused_leaves_the_others_standing(poor: Cluster) -> None:
    admin = poor.dsn("postgres")
    good = Check(
        subject="a", required="a", found="b", ok=False, repair="ALTER ROLE weak CONNECTION LIMIT 9"
    )
    bad = Check(subject="b", required="a", found="b", ok=False, repair="ALTER ROLE nobody LOGIN")
    with connected(admin) as connection:
        done = repair(connection, (bad, good))
    assert done == (
        Repair(
            subject="b",
            statement="ALTER ROLE nobody LOGIN",
            done=False,
            remains='role "nobody" does not exist. As a role that may: ALTER ROLE nobody LOGIN',
        ),
        Repair(
            subject="a", statement="ALTER ROLE weak CONNECTION LIMIT 9", done=True, remains=None
        ),
    )


@pytest.mark.matrix
def test_event_triggers_are_advice(poor: Cluster) -> None:
    admin = poor.dsn("postgres")
    with connected(admin.replace("postgres@", "weak@")) as connection:
        check = ddl_check(connection)
        assert (check.ok, check.advice, check.found) == (False, True, "none")
    with connected(admin) as connection:
        assert ddl_check(connection).found == "none yet, this role makes them"
        assert ddl.ensure(connection)
        assert ddl_check(connection).found == "there"
