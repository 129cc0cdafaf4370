"""A range that ingest could not hold in memory is refused before anything of it is staged."""

from __future__ import annotations

import pytest

from cdc.database import connected
from cdc.options import PLAIN
from cdc.verification.comparison import Captured
from cdc.verification.healing import stage
from kernel.errors import InvalidRequest
from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.install_book import InstallBook
from projections.run.captured_tables import CapturedTable
from schemas.key_ranges import WHOLE, KeyRange


def test_a_large_range_is_refused_with_the_command_that_copies(
    postgres_dsn: str, lake: Lake
) -> None:
    with connected(postgres_dsn) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("INSERT INTO t SELECT generate_series(1, 20)")
    captured = Captured(
        source="shop", table="public.t", catalog=CapturedTable(keys=("id",)), options=PLAIN
    )
    tables = Tables()
    with pytest.raises(InvalidRequest, match=r"public\.t \(…, …\) has too many rows") as error:
        stage(lake, tables, postgres_dsn, captured, WHOLE, timeout_s=10, most_rows=19)
    assert "penstock source resnapshot shop --tables public.t --yes" in error.value.remedy
    assert InstallBook(lake, tables).entries() == []

    part = KeyRange(low=("5",), high=("24",))
    done = stage(lake, tables, postgres_dsn, captured, part, timeout_s=10, most_rows=16)
    assert done.rows == 16
