"""Every function that the walkthrough names is called when an event and rows pass a whole stack."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from apps.settings import load
from tests.docs.conftest import Newcomer
from tests.docs.console import Command, run
from tests.docs.walkthrough import traced_functions

TABLE = "CREATE TABLE lamps (id int PRIMARY KEY, watts int)"
LAMPS = "INSERT INTO lamps SELECT i, 40 FROM generate_series(1, 20) i"
"""More than the few rows that are read one by one."""


@pytest.mark.matrix
def test_the_functions_of_the_walkthrough_are_those_that_a_whole_stack_calls(
    newcomer: Newcomer,
) -> None:
    admin = load(newcomer.workspace).required("postgres.dsn")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("CREATE DATABASE lamps")
    shop = make_conninfo(admin, dbname="lamps")
    with psycopg.connect(shop) as connection:
        connection.execute(TABLE)
    (newcomer.workspace / "projections").mkdir(exist_ok=True)
    (newcomer.workspace / "projections" / "lit.sql").write_text(
        "CREATE PROJECTION lit WITH (key = 'event_id') AS\n"
        "SELECT event_id, lamp FROM STREAM events.hall.lit\n"
    )

    def type_in(command: str) -> None:
        environment = {**newcomer.environment, "SHOP": shop}
        run(
            Command(text=command, expected=None),
            folder=newcomer.workspace,
            environment=environment,
        )

    type_in("penstock append hall-1 lit '{\"lamp\": 7}' && penstock wait --caught-up")
    type_in("penstock projection apply projections/lit.sql")
    type_in('penstock source add lamps --dsn "$SHOP" --tables public.lamps')
    with psycopg.connect(shop) as connection:
        connection.execute(LAMPS)
    type_in("penstock append hall-1 lit '{\"lamp\": 8}' && penstock wait --caught-up")
    type_in("penstock query 'SELECT count(*) AS n FROM current.lamps.public.lamps'")
    type_in("penstock source remove lamps --yes && penstock projection drop lit --yes")
    assert set(newcomer.traced.read_text().split()) == traced_functions()
