"""The page of types says what the code does, about every type that PostgreSQL has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from cdc.columns import columns_of
from cdc.database import Connection
from schemas.lake_columns import OF_CHANGES
from schemas.pg_types import LOCAL_MICROS, UTC_MICROS, lake_type, refusal
from tests.architecture.tree import ROOT
from tests.docs.markdown import table
from tests.support.sources.pg_values import KINDS, SETUP
from tests.support.store.postgres import Cluster, admin

PAGE = ROOT / "docs/reference/capture-types.md"
NAMES = {
    "boolean": pa.bool_(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": UTC_MICROS,
    "timestamp_ntz": LOCAL_MICROS,
}
SPOKEN = {
    "an enum": "mood",
    "a composite type": "place",
}
INTERNAL = frozenset(
    (
        *("pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "gtsvector", "cid"),
        *("pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"),
    )
)
"""Types of the catalog that no table of an application has; they would be text."""


def arrow(name: str) -> pa.DataType:
    name = name.replace("\\", "")
    if found := re.fullmatch(r"array<(.*)>", name):
        return pa.list_(arrow(found[1]))
    if found := re.fullmatch(r"decimal\((\d+), (\d+)\)", name):
        return pa.decimal128(int(found[1]), int(found[2]))
    return NAMES[name]


def documented() -> dict[str, str]:
    """Return the lake's type of each SQL type on the page."""
    found: dict[str, str] = {}
    for row in table(PAGE, first="PostgreSQL"):
        types = re.findall(r"`([^`]+)`", row["PostgreSQL"]) or [SPOKEN.get(row["PostgreSQL"], "")]
        found |= {name: row["lake"] for name in types if name}
    return found


def refused() -> list[str]:
    rows = table(PAGE, first="refused")
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row["refused"])]


@pytest.fixture(scope="module")
def source(postgres_cluster: Cluster) -> Iterator[Connection]:
    admin(postgres_cluster, "DROP DATABASE IF EXISTS types_page WITH (FORCE)")
    admin(postgres_cluster, "CREATE DATABASE types_page")
    dsn = postgres_cluster.dsn("types_page")
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        connection.execute(SETUP.encode())
        yield connection


def kept(connection: Connection, sql: str, *, check: str = "") -> tuple[pa.DataType, str | None]:
    """Return what a column of this type becomes, and why it would be refused."""
    connection.execute(b"DROP TABLE IF EXISTS one")
    connection.execute(f"CREATE TABLE one (c {sql} {check})".encode())
    (column,) = columns_of(connection, "one")
    return lake_type(column), refusal(column)


def test_the_page_says_what_becomes_of_each_type(source: Connection) -> None:
    for sql, lake in documented().items():
        check = "CHECK (isfinite(c))" if sql == "interval" else ""
        assert kept(source, sql, check=check) == (arrow(lake), None), sql


def test_a_domain_is_its_base_type(source: Connection) -> None:
    assert kept(source, "price")[0] == pa.decimal128(10, 2)
    assert kept(source, "marks")[0] == pa.list_(pa.int32())
    assert kept(source, "dear")[0] == pa.decimal128(10, 2)
    assert kept(source, "grid")[0] == pa.list_(pa.list_(pa.int32()))
    assert kept(source, "feeling")[0] == pa.string()
    assert kept(source, "price[]")[0] == pa.list_(pa.decimal128(10, 2))
    assert kept(source, "finite") == (pa.string(), None)


def test_the_page_names_every_type_of_postgresql(source: Connection) -> None:
    rows = source.execute(
        """
        SELECT format_type(t.oid, NULL) AS name FROM pg_type t
         WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype IN ('b', 'r', 'm')
           AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)
        """
    ).fetchall()
    spelled = {
        "character": "char",
        "character varying": "varchar",
        "bit": "bit varying",
        "timestamp with time zone": "timestamptz",
        "timestamp without time zone": "timestamp",
        "time with time zone": "timetz",
        "time without time zone": "time",
    }
    known = {re.sub(r"\(.*\)", "", name) for name in (*documented(), *refused())}
    names = {spelled.get(str(row["name"]), str(row["name"])) for row in rows}
    assert names - known - INTERNAL == set()


def test_the_page_names_every_column_of_ours() -> None:
    listed, *_ = table(PAGE, first="the source's column")
    assert set(re.findall(r"`([^`]+)`", listed["the source's column"])) == OF_CHANGES


def test_every_type_that_is_tried_is_on_the_page() -> None:
    known = {re.sub(r"\(.*\)|\[\]", "", name) for name in documented()}
    domains = {"positive", "price", "finite", "clock", "marks", "dear", "grid", "feeling"}
    tried = {re.sub(r"\(.*\)", "", kind.sql) for kind in KINDS.values()}
    assert tried - known - domains == set()


@pytest.mark.parametrize(
    "name", [name for name in refused() if name not in ("money", "lc_monetary")]
)
def test_refused_types_are_refused(name: str, source: Connection) -> None:
    if name.startswith(("$", "interval")):
        name = "interval"
    _, reason = kept(source, name)
    assert reason is not None
    assert "exclude the column" in reason


def test_money_of_another_locale_is_refused(source: Connection) -> None:
    assert kept(source, "money")[1] is None
    (column,) = columns_of(source, "one")
    said = refusal(replace(column, caveat="locale"))
    assert said is not None
    assert "lc_monetary" in said


def test_an_interval_that_is_finite_is_taken(source: Connection) -> None:
    assert kept(source, "interval CHECK (isfinite(c))")[1] is None
    assert kept(source, "finite")[1] is None
    assert kept(source, "interval CHECK (c > '1 day')")[1] is not None
    assert kept(source, "interval[]")[1] is None
