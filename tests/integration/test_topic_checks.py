"""Tables whose topics Kafka cannot tell apart: the first is captured, the next one told."""

from __future__ import annotations

import uuid
from pathlib import Path

import httpx
import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg.conninfo import make_conninfo

from apps.capture import capture_site
from apps.settings import Settings, load
from cdc.connect import ConnectClient
from cdc.connectors import replication_name
from cdc.database import Connection, connected
from cdc.name_checks import OWN_TOPIC, measured_topic
from cdc.owners import OWN_SLOT, owner_checks
from cdc.removal import remove
from cdc.replication import drop_publication, drop_slot, ensure_publication, published
from cdc.scope import Scope, scope_of
from cdc.site import CaptureSite
from cdc.sources import declare
from cdc.upkeep import lifecycle, topic_names
from kernel.errors import Conflict, Misconfigured
from lake.layout import Lake
from projections.run.captured_tables import CapturedTable
from projections.run.catalog import LIVE
from projections.sql.statements.parse import parse_script
from replay.deployment import apply
from replay.subject import Site

PUBLICATION = "penstock_test_topics"
FIRST, SECOND = "sales.eu_orders", "sales_eu.orders"
TABLES = """
CREATE SCHEMA sales; CREATE SCHEMA sales_eu; CREATE SCHEMA other;
CREATE TABLE sales.eu_orders (id int PRIMARY KEY);
CREATE TABLE sales_eu.orders (id int PRIMARY KEY);
CREATE TABLE sales_eu.loose (id int);
CREATE TABLE sales.eu_loose (id int PRIMARY KEY);
CREATE TABLE other.orders (id int PRIMARY KEY);
"""


@pytest.fixture
def dsn(postgres_dsn: str) -> str:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(TABLES.encode())
    return postgres_dsn


def scope(dsn: str, *tables: str, runs: bool = False) -> Scope:
    source, _ = declare("shop", dsn=dsn, tables=tables)
    with connected(dsn) as connection:
        return scope_of(source, connection, PUBLICATION, runs=runs)


def refused(found: Scope) -> set[str]:
    return {c.subject for c in found.checks if c.required == OWN_TOPIC and not c.advice}


def site_at(folder: Path, more: str = "") -> CaptureSite:
    """Return what commands know of a workspace of which nothing runs."""
    nowhere = "url = 'http://127.0.0.1:1'"
    (folder / "penstock.toml").write_text(f"[connect]\n{nowhere}\n[registry]\n{nowhere}\n{more}")
    return capture_site(load(folder))


def test_of_two_that_are_named_the_second_is_refused(dsn: str) -> None:
    assert refused(scope(dsn, FIRST, SECOND, "other.orders")) == {f"table {SECOND}"}
    assert refused(scope(dsn, SECOND, FIRST)) == {f"table {FIRST}"}
    assert not refused(scope(dsn, SECOND, "other.orders"))


def test_one_that_joins_a_running_source_is_held_and_the_captured_one_stays(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {SECOND}".encode())
    for tables in (("*.*",), (FIRST, SECOND)):
        found = scope(dsn, *tables, runs=True)
        assert SECOND in found.tables
        assert "Kafka can tell apart" in found.held[FIRST]
        assert not refused(found)


def test_a_table_that_is_not_captured_takes_no_topic(dsn: str) -> None:
    found = scope(dsn, "*.*")
    assert "sales_eu.loose" in found.held
    assert "sales.eu_loose" in found.tables


def test_a_source_whose_topic_another_source_has_is_refused(dsn: str, tmp_path: Path) -> None:
    """Nothing is written: Kafka would refuse the topic, and the connector stop for all tables."""
    site = site_at(tmp_path)
    taken = {FIRST: CapturedTable(keys=("id",))}
    lifecycle.record_capture(Lake.at(site.lake), "shop", LIVE, taken)
    source, password = declare("shop_sales", dsn=dsn, tables=("eu.orders", "other.orders"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(b"CREATE SCHEMA eu CREATE TABLE orders (id int PRIMARY KEY)")
    with pytest.raises(Misconfigured, match=r"shop_sales\.eu\.orders beside shop\.sales"):
        lifecycle.add(site, source, password)
    assert not (tmp_path / "sources").exists()
    source, _ = declare("store", dsn=dsn, tables=("eu.orders",))
    assert not [
        each for each in topic_names.checks(site, source, dsn) if each.required == OWN_TOPIC
    ]


def test_a_source_whose_topics_an_external_one_is_called_like_is_refused(
    dsn: str, tmp_path: Path
) -> None:
    site = site_at(tmp_path)
    text = "CREATE SOURCE heard (a INT) WITH (topic = 'shop.message', format = json);"
    apply(Site(lake=Lake.at(site.lake)), parse_script(text).sources, ())
    source, password = declare("shop", dsn=dsn, tables=("other.orders",))
    with pytest.raises(Misconfigured, match=r"topic shop\.message: no other topics"):
        lifecycle.add(site, source, password)
    assert not (tmp_path / "sources").exists()
    source, _ = declare("shopping", dsn=dsn, tables=("other.orders",))
    found = topic_names.checks(site, source, dsn)
    assert "topic shop.message" not in {each.subject for each in found}


def test_kafka_refuses_such_a_topic(stack: Settings) -> None:
    """The reason for it all: once a broker takes both, none of this is needed."""
    admin = AdminClient({"bootstrap.servers": stack.required("kafka.bootstrap")})
    one, other = f"topics.{FIRST}", f"topics.{SECOND}"
    assert measured_topic(one) == measured_topic(other)
    admin.create_topics([NewTopic(one, 1)])[one].result()
    with pytest.raises(KafkaException, match="collides with existing topic"):
        admin.create_topics([NewTopic(other, 1)])[other].result()


def test_a_source_whose_slot_is_that_of_another_workspace_is_refused(
    dsn: str, tmp_path: Path
) -> None:
    """Source `b_c` of workspace `a`, and source `c` of workspace `a_b`: one name of a slot."""
    name = f"a{uuid.uuid4().hex[:8]}"
    slot = replication_name(name, "b_c")
    assert slot == replication_name(f"{name}_b", "c")
    with connected(dsn) as connection:
        ensure_publication(connection, slot, (FIRST,), owner=f"{name}-b_c")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    try:
        settings = f"[workspace]\nname = '{name}_b'\n"
        site = site_at(tmp_path, settings)
        source, password = declare("c", dsn=dsn, tables=("other.orders",))
        with pytest.raises(Misconfigured, match=f"found of connector {name}-b_c"):
            lifecycle.add(site, source, password)
        assert not (tmp_path / "sources").exists()
        there = make_conninfo(dsn, dbname="postgres")
        elsewhere, _ = declare("c", dsn=there, tables=("x",))
        found = {c.required: c.found for c in topic_names.checks(site, elsewhere, there)}
        assert found[OWN_SLOT].startswith("of database ")
        with connected(dsn) as connection:
            assert owner_of_slot(connection, slot, f"{name}-b_c") == "no other's"
            with pytest.raises(Conflict, match="are of connector") as told:
                ensure_publication(connection, slot, ("other.orders",), owner=f"{name}_b-c")
            assert f"COMMENT ON PUBLICATION {slot} IS NULL" in told.value.remedy
            assert published(connection, slot) == {FIRST: None}
        with ConnectClient("http://connect", transport=httpx.MockTransport(no_connector)) as none:
            gone = remove("c", dsn, site.placement, none)
        assert (gone.whole, list(gone.stays)) == (True, ["slot and publication"])
    finally:
        with connected(dsn) as connection:
            assert drop_slot(connection, slot)
            assert drop_publication(connection, slot)


def test_a_publication_of_who_may_only_read_goes_on_without_its_owner(dsn: str) -> None:
    """As of one that an older version made, by a role or on a server that writes nothing."""
    name = f"penstock_{uuid.uuid4().hex[:8]}"
    with connected(dsn) as connection:
        ensure_publication(connection, name, (FIRST,))
        try:
            connection.execute("SET default_transaction_read_only = on")
            assert ensure_publication(connection, name, (FIRST,), owner="local-shop") == ()
            connection.execute("SET default_transaction_read_only = off")
            assert owner_of_slot(connection, name, "another-shop") == "no other's"
            ensure_publication(connection, name, (FIRST,), owner="local-shop")
            assert owner_of_slot(connection, name, "another-shop") == "of connector local-shop"
        finally:
            connection.execute("SET default_transaction_read_only = off")
            assert drop_publication(connection, name)


def owner_of_slot(connection: Connection, slot: str, connector: str) -> str:
    (check,) = owner_checks(connection, slot, connector, new=True)
    return check.found


def no_connector(_: httpx.Request) -> httpx.Response:
    return httpx.Response(404, json={"message": "none"})
