"""Whether the topics of a source can be told apart from those that the workspace reads already."""

from __future__ import annotations

from collections.abc import Iterator

from cdc import capture
from cdc.admission import Check
from cdc.database import connected
from cdc.name_checks import neighbour_checks
from cdc.scope import captured_tables
from cdc.site import CaptureSite
from cdc.sources import Source
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import DeployedCatalog, Deployment


def checks(site: CaptureSite, source: Source, dsn: str) -> tuple[Check, ...]:
    """Return what must be true before a source starts, its topics beside those of others too."""
    found = capture.check(source, dsn, site.placement)
    deployment = DeployedCatalog(Lake.at(site.lake), Tables()).deployment()
    captures = deployment.captures.items()
    others = {name: tuple(tables) for name, tables in captures if name != source.name}
    with connected(dsn) as connection:
        tables = captured_tables(source, connection)
    beside = neighbour_checks(source.name, tables, others)
    return (*found, *beside, *_external(source.name, site.topic_prefix, deployment))


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
