"""A table that DDL holds is read again by one command, and goes on with everything that came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from apps.capture import capture_site
from apps.settings import Settings
from cdc.upkeep import lifecycle
from lake.datasets import schema_of
from lake.layout import current_name
from lake.tables import Tables
from pipeline.installs.install_book import request
from pipeline.installs.vanished_keys import gone_log
from tests.support.sources.copying import BANK, BANK_TABLES, Copied

ACCOUNTS = "public.accounts"

Make = Callable[..., Copied]


@pytest.fixture
def bank(
    tmp_path: Path, stack: Settings, spark: SparkSession, new_source: Callable[[str], str]
) -> Iterator[Copied]:
    dsn = new_source(BANK.format(rows=500))
    found = Copied(tmp_path, stack, spark, dsn, BANK_TABLES)
    yield found
    found.close()


def test_p11_a_held_table_is_released_by_its_command(bank: Copied) -> None:
    """Rewritten values and a new type, the table's first one with a feature of Delta's own."""
    bank.start()
    with bank.copying():
        bank.run_until_installed(2)
        bank.execute(
            "UPDATE accounts SET balance = 1 WHERE id = 1",
            "ALTER TABLE accounts ALTER balance TYPE timestamp"
            " USING timestamp '2013-01-01' + balance * interval '1 hour'",
            "UPDATE accounts SET balance = '2013-02-01 05:15' WHERE id = 2",
        )
        bank.execute(
            "ALTER TABLE accounts ADD COLUMN code uuid DEFAULT gen_random_uuid()",
            "ALTER TABLE accounts RENAME note TO remark",
            "DELETE FROM accounts WHERE id = 3",
        )
        bank.execute("INSERT INTO transfers (from_id, to_id) VALUES (5, 6)")
        bank.catch_up()
        before = bank.current(ACCOUNTS)
        assert before is not None
        assert before.column_names == ["id", "balance", "note"]
        assert set(before["balance"].to_pylist()) == {100}
        still = lifecycle.standing_still(capture_site(bank.workspace.settings), bank.source)
        assert set(still) == {ACCOUNTS}
        assert still[ACCOUNTS]["diff"] == ["balance integer -> balance timestamp without time zone"]

        request(bank.lake, Tables(), bank.name, [ACCOUNTS], reason="asked for")
        bank.execute("UPDATE accounts SET remark = 'meanwhile' WHERE id = 4")
        bank.run_until_installed(3)
        bank.execute("ALTER TABLE accounts RENAME remark TO memo")
        bank.execute("UPDATE accounts SET memo = 'after' WHERE id = 5")
        bank.catch_up()
    assert lifecycle.standing_still(capture_site(bank.workspace.settings), bank.source) == {}
    assert bank.differing() == []
    table = Tables().open(bank.lake.path(current_name(bank.name, ACCOUNTS)))
    assert table is not None
    assert schema_of(table).names == ["id", "balance", "memo", "code"]


@pytest.mark.matrix
def test_p4_a_copy_knows_the_rows_that_went_by_the_new_name_of_their_key(bank: Copied) -> None:
    """A delete may have come without its key: what the copy does not have is told by it alone."""
    bank.start()
    with bank.copying():
        bank.run_until_installed(2)
        bank.execute("ALTER TABLE accounts ALTER note TYPE text USING upper(note)")
        bank.execute("DELETE FROM accounts WHERE id = 3")
        bank.execute("ALTER TABLE accounts RENAME id TO number")
        bank.execute("UPDATE accounts SET balance = 1 WHERE number = 4")
        bank.catch_up()
        site = capture_site(bank.workspace.settings)
        assert set(lifecycle.standing_still(site, bank.source)) == {ACCOUNTS}
        request(bank.lake, Tables(), bank.name, [ACCOUNTS], reason="asked for")
        bank.run_until_installed(3)
        bank.catch_up()
    assert bank.differing() == []
    gone = Tables().read(bank.lake.path(gone_log(bank.name, ACCOUNTS)), columns=["number"])
    assert gone is not None
    assert gone.to_pylist() == [{"number": 3}]
