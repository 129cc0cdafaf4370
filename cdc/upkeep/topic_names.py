"""Whether topics and slot of a source can be told apart from those that are there already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from cdc import capture
from cdc.admission import Check
from cdc.connect import ConnectClient
from cdc.connectors import replication_name
from cdc.database import connected
from cdc.declarations import declared
from cdc.name_checks import neighbour_checks
from cdc.owners import owner_checks, writer_checks
from cdc.scope import captured_tables
from cdc.site import CaptureSite
from cdc.sources import Source
from kernel.errors import PenstockError
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import DeployedCatalog, Deployment


def checks(site: CaptureSite, source: Source, dsn: str) -> tuple[Check, ...]:
    """Return what must be true before a source starts, beside what others have, too."""
    found = capture.check(source, dsn, site.placement)
    deployment = DeployedCatalog(Lake.at(site.lake), Tables()).deployment()
    captures = deployment.captures.items()
    others = {name: tuple(tables) for name, tables in captures if name != source.name}
    connector = f"{site.name}-{source.name}"
    new = source.name not in deployment.captures and source.name not in declared(site.folder)
    with connected(dsn) as connection:
        tables = captured_tables(source, connection)
        name = replication_name(site.name, source.name)
        owned = [*owner_checks(connection, name, connector, new=new)]
    # Without Connect the source cannot start anyway: then it is asked again.
    with suppress(PenstockError), ConnectClient(site.connect_url) as connect:
        connect.ask()
        topics = f"{site.topic_prefix}{source.name}"
        if new:
            owned += writer_checks(connect, connector, topics)
    beside = neighbour_checks(source.name, tables, others)
    return (*found, *owned, *beside, *_external(source.name, site.topic_prefix, deployment))


def _external(name: str, prefix: str, deployment: Deployment) -> Iterator[Check]:
    """Check that no external topic is called as the source's own ones are: both would write it."""
    for shape in deployment.topics.values():
        if shape.topic.startswith(f"{prefix}{name}."):
            yield Check(
                subject=f"topic {shape.topic}",
                required=f"no other topics that begin with {prefix}{name}.",
                found=f"source {shape.source} reads it as an external one",
                ok=False,
                fix="Capture it under another name: penstock source add NAME",
            )
