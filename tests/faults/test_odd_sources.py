"""Names, types, values, DDL and JSON of every kind arrive, or are named, while parts die.

`make soak` does the same for half an hour, from any seed.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cdc.connectors import replication_name
from tests.support.services.odd_run import SOURCE, OddOptions, OddRun, odd_database

pytestmark = pytest.mark.timeout(900)
SEED = 12
PATIENCE_S = 240.0
"""What is waited for in vain ends a run with its own words, before pytest ends it without."""


@pytest.mark.matrix
def test_p4_p8_odd_sources_and_events_arrive_while_parts_are_killed(whole_stack: Path) -> None:
    run = OddRun(
        odd_database(whole_stack), OddOptions(seed=SEED, patience_s=PATIENCE_S, rounds=2, tables=4)
    )
    result = run.run()
    assert result.failed == "", result.document()
    assert result.comparisons == 1
    assert len(result.ddl) > 2
    assert result.events > 10


class Losing(OddRun):
    """Loses one row on its way: while it is inserted its publication has updates alone."""

    def _round(self) -> None:
        self.result.rounds += 1
        self.tables.write(4)
        self._compare()
        table = self.tables.tables[0]
        publication = sql.Identifier(replication_name(self.stack.settings.name, SOURCE))
        publish = sql.SQL("ALTER PUBLICATION {} SET (publish = {})")
        insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier(table.schema, table.name), sql.Identifier(table.key), table.last + 1
        )
        with psycopg.connect(self.stack.dsn) as connection:
            connection.execute(publish.format(publication, "update"))
            connection.commit()
            connection.execute(insert)
            connection.commit()
            connection.execute(publish.format(publication, "insert, update, delete, truncate"))


@pytest.mark.matrix
def test_a_row_that_is_lost_on_its_way_is_reported(whole_stack: Path) -> None:
    options = OddOptions(
        seed=SEED, patience_s=PATIENCE_S, rounds=1, tables=2, compare_every=9, category="lost"
    )
    result = Losing(odd_database(whole_stack), options).run()
    assert result.comparisons == 1, "all was equal before"
    assert "1 missing, 0 extra, 0 differing" in result.failed, result.document()
