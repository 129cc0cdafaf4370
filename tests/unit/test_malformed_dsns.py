"""A malformed DSN is refused without a word of it: the part that is wrong may be the password."""

from __future__ import annotations

import traceback

import pytest

from cdc.database import connected, database_of, split_password, with_password
from eventstore.postgres import connect
from kernel.errors import InvalidRequest, Misconfigured, PenstockError

SECRET = "s3cr3t"
MALFORMED = [
    f"postgresql://u:{SECRET}%zz@h/db",
    f"postgresql://u:{SECRET}/more@h:5432/db",
    f"postgresql://u:12/{SECRET}@h:5432/db",
    f"postgresql://u:a@{SECRET}@h/db",
    f"postgresql://u:a@{SECRET}/b@h/db",
    f"host=h dbname=db password=a {SECRET}",
    f"host=h dbname=db port={SECRET}",
]


def said(error: PenstockError) -> str:
    return "".join(traceback.format_exception(error)) + error.remedy + str(error.fields)


def connecting(dsn: str) -> None:
    with connected(dsn):
        pass


@pytest.mark.parametrize("dsn", MALFORMED)
@pytest.mark.parametrize(
    "use", [database_of, split_password, lambda dsn: with_password(dsn, "x"), connecting]
)
def test_what_is_wrong_with_a_sources_dsn_is_not_quoted(dsn: str, use: object) -> None:
    assert callable(use)
    with pytest.raises(InvalidRequest, match="not a PostgreSQL DSN") as error:
        use(dsn)
    assert SECRET not in said(error.value)
    assert "%2F" in error.value.remedy


@pytest.mark.parametrize("dsn", MALFORMED)
def test_what_is_wrong_with_the_services_dsn_is_not_quoted(dsn: str) -> None:
    with pytest.raises(Misconfigured, match="not a PostgreSQL connection string") as error:
        connect.conninfo(dsn, role=None)
    assert SECRET not in said(error.value)


@pytest.mark.parametrize("port", ["5432,5433", "70000", "-1", "five"])
def test_a_source_has_one_port(port: str) -> None:
    with pytest.raises(InvalidRequest, match="one host and one port"):
        database_of(f"host=h dbname=db port={port}")


@pytest.mark.parametrize(
    ("dsn", "port", "name", "password"),
    [
        ("postgresql://u:p%2Fq%40r@h:6543/db", 6543, "db", "p/q@r"),
        ("postgres://h/db?user=u&password=a@b", 5432, "db", "a@b"),
        ("postgresql://u:a?b@h/db", 5432, "db", "a?b"),
        ("host=h dbname=d@b user=u password=p@q/r", 5432, "d@b", "p@q/r"),
        ("postgresql:///db?host=h&user=u", 5432, "db", ""),
    ],
)
def test_a_wellformed_dsn_is_read(dsn: str, port: int, name: str, password: str) -> None:
    found = database_of(dsn)
    assert (found.host, found.port, found.name, found.password) == ("h", port, name, password)
    assert connect.conninfo(dsn, role=None)


def test_the_service_takes_several_hosts() -> None:
    assert "5433" in connect.conninfo("host=a,b port=5432,5433 dbname=d", role=None)
