"""What a role that is no superuser made beforehand never becomes code that superusers run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc import ddl
from cdc.database import connected
from kernel.errors import Misconfigured

SCHEMA = "CREATE SCHEMA penstock"
FUNCTION = (
    "CREATE FUNCTION penstock.table_v1(relid oid) RETURNS jsonb"
    " LANGUAGE sql AS 'SELECT NULL::jsonb'"
)


@pytest.fixture
def planter(postgres_dsn: str) -> Iterator[str]:
    """A role that may create schemas; its name."""
    name = f"planter_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN".encode())
        admin.execute(
            f"GRANT CREATE ON DATABASE {admin.info.dbname} TO {name}".encode(),
        )
        yield name
        admin.execute(f"DROP OWNED BY {name} CASCADE".encode())
        admin.execute(f"DROP ROLE {name}".encode())


def as_role(dsn: str, role: str, *statements: str) -> None:
    with psycopg.connect(make_conninfo(dsn, user=role), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_a_schema_of_somebody_else_is_not_taken_over(postgres_dsn: str, planter: str) -> None:
    as_role(postgres_dsn, planter, SCHEMA)
    with connected(postgres_dsn) as connection:
        assert not ddl.may_install(connection)
        with pytest.raises(Misconfigured, match=f"schema penstock belongs to {planter}") as error:
            ddl.ensure(connection)
        assert error.value.remedy.endswith("DROP SCHEMA penstock CASCADE, and repeat.")
        assert not ddl.installed(connection)
        connection.execute("DROP SCHEMA penstock CASCADE")
        assert ddl.ensure(connection)


def test_a_function_of_somebody_else_is_not_taken_over(postgres_dsn: str, planter: str) -> None:
    as_role(postgres_dsn, planter, SCHEMA, FUNCTION)
    with connected(postgres_dsn) as connection:
        connection.execute("ALTER SCHEMA penstock OWNER TO postgres")
        with pytest.raises(Misconfigured, match=r"function penstock\.table_v1\(oid\) belongs to"):
            ddl.ensure(connection)
        assert not ddl.installed(connection)


def test_a_role_that_may_not_is_told_no_more_than_that(postgres_dsn: str, planter: str) -> None:
    as_role(postgres_dsn, planter, SCHEMA)
    other = f"other_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {other} LOGIN".encode())
    try:
        for role in (planter, other):
            with connected(make_conninfo(postgres_dsn, user=role)) as connection:
                assert not ddl.may_install(connection)
                assert not ddl.ensure(connection)
    finally:
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:
            admin.execute(f"DROP ROLE {other}".encode())


def test_what_one_superuser_made_another_one_renews(postgres_dsn: str) -> None:
    other = f"super_{uuid.uuid4().hex[:8]}"
    with connected(postgres_dsn) as connection:
        assert ddl.ensure(connection)
        connection.execute(f"CREATE ROLE {other} LOGIN SUPERUSER".encode())
    with connected(make_conninfo(postgres_dsn, user=other)) as connection:
        connection.execute("COMMENT ON FUNCTION penstock.tell_ddl_v1() IS 'older'")
        assert ddl.may_install(connection)
        assert ddl.ensure(connection)
    with connected(postgres_dsn) as connection:
        assert ddl.remove(connection)
        connection.execute(f"DROP OWNED BY {other}; DROP ROLE {other}".encode())
