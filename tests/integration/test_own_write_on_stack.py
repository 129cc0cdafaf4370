"""On the whole stack: what was appended is read from a projection as soon as it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_client import NewEvent, Penstock, RowChange
from tests.support.services.whole_stack import WholeStack

pytestmark = pytest.mark.timeout(600)
PARCELS = """
CREATE PROJECTION parcels WITH (key = 'parcel') AS
SELECT parcel, weight, occurred_at FROM STREAM events.parcel.weighed;
"""


def test_a_projection_over_http_has_what_its_reader_wrote(whole_stack: Path) -> None:
    stack = WholeStack(whole_stack, "")
    (whole_stack / "parcels.sql").write_text(PARCELS)
    url = stack.settings.required("service.url")
    with Penstock(url, workspace=whole_stack) as client:

        def weigh(weight: int) -> int:
            event = NewEvent(type="weighed", data={"parcel": "p1", "weight": weight})
            return client.append("parcel-1", event).last_position

        position = weigh(1)
        parcels = client.projection("parcels")
        try:
            stack.command("projection", "apply", str(whole_stack / "parcels.sql"))
            first = parcels.row("p1", after_position=position, wait_s=60)
            assert (first.applied, first.row and first.row["weight"]) == (True, 1)
            with parcels.changes(after="end") as changes:
                next(changes)  # It is caught up, and hears of what comes now.
                second = parcels.row("p1", after_position=weigh(2), wait_s=60)
                assert (second.applied, second.row and second.row["weight"]) == (True, 2)
                assert second.epoch > first.epoch
                change = next(item for item in changes if isinstance(item, RowChange))
            assert (change.old, change.new) == (first.row, second.row)
        finally:
            stack.command("projection", "drop", "parcels", "--yes")
