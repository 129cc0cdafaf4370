"""Time-outs that a database sets for its applications end no session that reads it."""

from __future__ import annotations

import psycopg
import pytest

from cdc.capture import SourceAccess, connector_of
from cdc.connectors import Connector, OutboxConnector, Placement
from cdc.database import connected, database_of
from cdc.scope import scope_of
from cdc.snapshot.slot import exported_snapshot
from cdc.sources import declare
from kernel.errors import Unavailable

BOUNDED = """
DO $$
DECLARE setting text;
BEGIN
  FOR setting IN SELECT name FROM pg_settings WHERE name ~ '_timeout$' AND context = 'user' LOOP
    EXECUTE format('ALTER DATABASE %I SET %s = 600000', current_database(), setting);
  END LOOP;
END $$
"""
BOUNDS = """
SELECT name FROM pg_settings
 WHERE name ~ '_timeout$' AND context = 'user' AND setting <> '0' AND source <> 'default'
   AND category LIKE 'Client Connection Defaults%'
"""
PLACEMENT = Placement(workspace="w", topic_prefix="", partitions=1, registry_url="")


def test_nothing_ends_a_session_of_a_connector(postgres_dsn: str) -> None:
    """A transaction that takes longer to send would be begun again for ever."""
    source, _ = declare("shop", dsn=postgres_dsn, tables=("t",))
    with connected(postgres_dsn) as connection:
        connection.execute(b"CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute(BOUNDED.encode())
        scope = scope_of(source, connection, "p")
        version = connection.info.server_version
    connectors: tuple[Connector, ...] = (
        connector_of(source, SourceAccess(dsn=postgres_dsn), PLACEMENT, scope),
        OutboxConnector(database=database_of(postgres_dsn, version), placement=PLACEMENT),
    )
    for each in connectors:
        options = each.render()["driver.options"]
        with psycopg.connect(postgres_dsn, options=options) as session:
            assert session.execute(BOUNDS.encode()).fetchall() == []
    with psycopg.connect(postgres_dsn) as session:
        assert len(session.execute(BOUNDS.encode()).fetchall()) >= 4


@pytest.mark.matrix
def test_a_snapshot_waits_for_writers_longer_than_others_wait_for_locks(postgres_dsn: str) -> None:
    with connected(postgres_dsn) as connection:
        connection.execute(b"CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(postgres_dsn) as writer:
        writer.execute("INSERT INTO t VALUES (1)")
        with connected(postgres_dsn) as connection:
            bound = f"ALTER DATABASE \"{writer.info.dbname}\" SET lock_timeout = '100ms'"
            connection.execute(bound.encode())
        with (
            pytest.raises(Unavailable, match=f"waits for pid {writer.info.backend_pid}"),
            exported_snapshot(postgres_dsn, timeout_s=1.0),
        ):
            pass
