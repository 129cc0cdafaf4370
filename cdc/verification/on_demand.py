"""`source verify`: all tables of a source at one LSN, on demand; what it finds is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.site import CaptureSite
from cdc.sources import Source
from cdc.verification.comparison import Captured, Comparison
from cdc.verification.healing import heal_reports
from cdc.verification.reports import TableReport
from kernel.errors import NotFound
from lake.layout import Lake
from lake.tables import Tables
from pipeline.verification.book import Kind, Verifications
from pipeline.verification.large_states import LargeStates
from projections.run.catalog import DeployedCatalog, Deployment
from schemas.registry import ConfluentRegistry


def verify(
    site: CaptureSite,
    source: Source,
    *,
    tables: Sequence[str] = (),
    ranges: int | None = None,
    heal: bool = False,
    timeout_s: float,
    large: LargeStates | None = None,
) -> list[TableReport]:
    """Compare tables (default: all captured ones) with the lake; see `Comparison.compare`.

    With `heal`, ranges that differ are replaced by the source's rows, and compared again. `large`
    hashes tables that are too large to be read here. Every report becomes a fact in
    `lake/verifications`. Raises `NotFound` for a table that is not captured, `Unavailable` when the
    source or the lake does not come to the LSN in time.
    """
    lake, opened = Lake.at(site.lake), Tables()
    deployment = DeployedCatalog(lake, opened).deployment()
    wanted = captured_tables(site, deployment, source, tables)
    dsn = source.full_dsn(site.folder)
    registry = ConfluentRegistry(site.registry_url)
    try:
        comparison = Comparison(lake, opened, registry, large=large)
        reports = comparison.compare(dsn, wanted, ranges=ranges, timeout_s=timeout_s)
        if heal:
            reports = heal_reports(
                lake, opened, comparison, dsn, wanted, reports, timeout_s=timeout_s
            )
    finally:
        registry.close()
    facts = [
        report.fact(source.name, Kind.HEAL if report.install else Kind.COMMAND)
        for report in reports
        if report.held is None
    ]
    Verifications(lake, opened).add(facts)
    return reports


def captured_tables(
    site: CaptureSite, deployment: Deployment, source: Source, tables: Sequence[str] = ()
) -> list[Captured]:
    """Return what is needed to compare the tables of a source, sorted by name."""
    known = deployment.captures.get(source.name, {})
    unknown = sorted(set(tables) - set(known))
    if unknown:
        raise NotFound(
            f"{source.name} does not capture {', '.join(unknown)}",
            remedy=f"It captures: {', '.join(sorted(known)) or 'nothing yet'}.",
        )
    return [
        Captured(
            source=source.name,
            table=table,
            catalog=known[table],
            options=source.options_of(table),
            salt=source.full_salt(site.folder) or "",
        )
        for table in sorted(tables or known)
    ]
