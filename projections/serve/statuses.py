"""Pauses and resumes projections, and has held tables tried again.

It writes the rows that `DeployedCatalog` writes, without what loads slowly. Who drops a projection
asks what reads it first, and goes there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from arro3.core import DataType, Field, Schema

from lake.layout import Lake
from lake.ledger import Ledger
from lake.rows import SmallTables
from projections.serve.standings import LIVE, RETRY, Standing, standing
from schemas.identifiers import text_literal

COLUMNS = Schema(
    [
        Field("entry", DataType.int64()),
        Field("kind", DataType.utf8()),
        Field("name", DataType.utf8()),
        Field("generation", DataType.int32()),
        Field("status", DataType.utf8()),
        Field("text", DataType.utf8()),
        Field("include_late", DataType.bool()),
        Field("at", DataType.timestamp("us", tz="UTC")),
    ]
)
_APP_ID = "catalog"
_NEWEST = """
SELECT * FROM rows WHERE kind = 'projection' AND name = {name} ORDER BY entry DESC LIMIT 1
"""


def set_status(lake: Lake, name: str, status: str) -> Standing:
    """Pause or resume a projection; return it as it is then. Raises `NotFound`, `LeaseLost`."""
    standing(lake, name)  # It refuses a name that is not deployed.
    tables = SmallTables()

    def rows(number: int) -> list[dict[str, Any]]:
        # The entry as it is at the commit: a swap may deploy another generation meanwhile.
        (newest,) = tables.select(lake.catalog, _NEWEST.format(name=text_literal(name)))
        changed = newest["status"] != status
        return [newest | _moment(number) | {"status": status}] if changed else []

    Ledger(lake.catalog, tables, COLUMNS, _APP_ID).put(rows)
    return standing(lake, name)


def try_again(lake: Lake, table: str) -> None:
    """Have the pipeline try a held table again now. Raises `LeaseLost`."""
    entry = {"kind": RETRY, "name": table, "generation": 1, "status": LIVE, "text": ""}
    Ledger(lake.catalog, SmallTables(), COLUMNS, _APP_ID).put(
        lambda number: [entry | {"include_late": False} | _moment(number)]
    )


def _moment(number: int) -> dict[str, object]:
    return {"entry": number * 1000, "at": datetime.now(UTC)}
