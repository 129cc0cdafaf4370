"""Whether the topics of a source can be told apart from those of the workspace's other sources."""

from __future__ import annotations

from cdc import capture
from cdc.admission import Check
from cdc.database import connected
from cdc.name_checks import neighbour_checks
from cdc.scope import captured_tables
from cdc.site import CaptureSite
from cdc.sources import Source
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import DeployedCatalog


def checks(site: CaptureSite, source: Source, dsn: str) -> tuple[Check, ...]:
    """Return what must be true before a source starts, its topics beside those of others too."""
    found = capture.check(source, dsn, site.placement)
    captures = DeployedCatalog(Lake.at(site.lake), Tables()).deployment().captures
    others = {name: tuple(tables) for name, tables in captures.items() if name != source.name}
    with connected(dsn) as connection:
        tables = captured_tables(source, connection)
    return (*found, *neighbour_checks(source.name, tables, others))
