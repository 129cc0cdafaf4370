"""A sink is begun once the lake has an epoch: what it sends is told apart by the lake's name."""

from __future__ import annotations

from unittest.mock import Mock

import pyarrow as pa
from deltalake import write_deltalake

from kernel.errors import Unavailable
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import LIVE, PROJECTION, DeployedCatalog, Entry
from projections.sinks.sinks import Sinks

STATEMENT = """
CREATE PROJECTION sent WITH (key = 'id', sink = 'topic:sent') AS
SELECT id FROM STREAM events.parcel.sent;
"""


def test_no_sink_is_begun_before_the_lake_has_an_epoch(lake: Lake) -> None:
    """One that began before named the table otherwise than the next process, which refused it."""
    entry = Entry(kind=PROJECTION, name="sent", generation=1, status=LIVE, text=STATEMENT)
    DeployedCatalog(lake, Tables()).put([entry])
    transact = Mock(side_effect=Unavailable("no broker here"))
    sinks = Sinks(
        lake,
        Mock(),
        Mock(),
        Mock(),
        transact=transact,
        outlet_of_events=Mock(),
        most_bytes=1,
    )
    assert not sinks.step()
    transact.assert_not_called()
    write_deltalake(lake.epochs, pa.table({"epoch": [1]}))
    sinks.step()
    transact.assert_called_once()
