"""The life of a captured source: declared, started, copied anew, resumed, removed.

Upstream: a workspace and its `sources/*.toml`. Downstream: connectors, the catalog that the
pipeline reads.
Entry points: `ensure_outbox` and `ensure_sources`, which `penstock up` calls; `add`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cdc import capture, outbox, sources
from cdc.admission import refuse_unless_admitted
from cdc.capture import CaptureStatus, SourceAccess, Started
from cdc.connect import ConnectClient, ConnectorStatus
from cdc.connectors import replication_name
from cdc.copies import copy_requests as copies
from cdc.database import connected, with_password
from cdc.progress import SnapshotProgress, snapshot_progress
from cdc.removal import Removal, retire_connector, retire_slot
from cdc.removal import remove as removal_of
from cdc.scope import Scope, scope_of
from cdc.site import CaptureSite
from cdc.slots import refuse_lost, refuse_set_back
from cdc.sources import Source
from cdc.upkeep import topic_names
from cdc.upkeep.noted_incarnations import forget_incarnation, noted, record_incarnation, renewing
from kernel.errors import Conflict, Misconfigured, NotFound, PenstockError, Unavailable
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.ddl.held_tables import hold_document
from pipeline.installs.install_book import InstallBook
from pipeline.position.progress import Progress
from pipeline.read import gaps
from pipeline.read.kafka_topics import KafkaTopics
from projections.run.captured_tables import CapturedTable, parse_tables, render_tables
from projections.run.catalog import CAPTURE, DROPPED, LIVE, DeployedCatalog, Entry
from schemas.identifiers import EVENTS, OUTBOX
from schemas.incarnations import Incarnation
from schemas.registry import ConfluentRegistry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resnapshot:
    """Tables that are copied anew. `renewed`: why there is a new slot, None where the old one goes
    on."""

    source: str
    renewed: str | None
    tables: tuple[str, ...]


def ensure_outbox(site: CaptureSite, *, timeout_s: float = 90.0) -> ConnectorStatus:
    """Make the event store's outbox run; call it after the migrations. Idempotent."""
    allow_records(site, OUTBOX)
    with ConnectClient(site.connect_url) as connect:
        dsn = site.store_dsn
        return outbox.ensure(dsn, site.placement, connect, timeout_s=timeout_s)


def allow_records(site: CaptureSite, name: str) -> None:
    """Let a source's topics take what `kafka.max_record_bytes` allows; `outbox` is the store's.

    They were made with the setting of their day. Where that cannot be done the connector goes on,
    and says so when it meets a row that is too large.
    """
    topics = KafkaTopics(site.bootstrap)
    largest = site.max_record_bytes
    prefix = site.topic_prefix
    try:
        of_source = topics.of_source(prefix, EVENTS if name == OUTBOX else name)
        raised = topics.allow(of_source, largest)
    except Unavailable as error:
        log.warning("%s: %s", name, error)
        return
    if raised:
        log.info("%s: topics take records of %d bytes now: %s", name, largest, ", ".join(raised))


def ensure_sources(site: CaptureSite) -> dict[str, PenstockError | None]:
    """Make every declared source run as its file says. Idempotent.

    One that cannot run does not hold up the others: the answer has its error, None where it runs.
    """
    found: dict[str, PenstockError | None] = {}
    with ConnectClient(site.connect_url) as connect:
        for source in sources.load_all(site.folder):
            found[source.name] = None
            try:
                start(site, source, connect)
            except PenstockError as error:
                found[source.name] = error
    return found


def resnapshot_outbox(site: CaptureSite) -> Resnapshot:
    """Send the event store's events again behind a new slot, where the outbox's slot is lost.

    Events that the log has are recognised by their positions and dropped.
    """
    placement = site.placement
    dsn = site.store_dsn
    with ConnectClient(site.connect_url) as connect:
        retire_connector(f"{placement.workspace}-{OUTBOX}", connect)
        retire_slot(dsn, replication_name(placement.workspace, OUTBOX))
        outbox.ensure(dsn, placement, connect)
    lost = missing(site, OUTBOX)
    if lost:
        gaps.skip(InstallBook(Lake.at(site.lake), Tables()), OUTBOX, lost)
    return Resnapshot(source=OUTBOX, renewed="asked for", tables=("es.events",))


def missing(site: CaptureSite, name: str) -> list[gaps.Gap]:
    """Return what Kafka lost of a source before it was read; `outbox` is the event store's."""
    lake, tables = Lake.at(site.lake), Tables()
    manifest = Manifest(lake, tables)
    last, bound = manifest.last(), manifest.unfinished()
    if last is None and bound is None:
        return []
    prefix = site.topic_prefix
    first = re.escape(f"{prefix}{EVENTS if name == OUTBOX else name}.")
    topics = KafkaTopics(site.bootstrap)
    captures = DeployedCatalog(lake, tables).deployment().captures
    book = InstallBook(lake, tables)
    return gaps.look(topics, f"{first}.+", last, book, captures, prefix, bound=bound).get(name, [])


def access_of(site: CaptureSite, source: Source) -> SourceAccess:
    """Gather what a source's declaration leaves out: secrets, and what was noted of its slot."""
    found, removed = noted(lake := Lake.at(site.lake), source.name)
    return SourceAccess(
        dsn=source.full_dsn(site.folder),
        salt=source.full_salt(site.folder),
        known=None if removed else found,
        retired=found if removed else None,
        seen=Manifest(lake, Tables()).seen_up_to(source.name) if removed else 0,
    )


def start(
    site: CaptureSite,
    source: Source,
    connect: ConnectClient,
    *,
    renew: bool = False,
    timeout_s: float = 90.0,
) -> Started:
    """Make a source run as declared, and tell the catalog and the copier what it captures.

    What a copy has to bring is noted before the connector starts, or the publication is altered: a
    crash in between repeats it.
    Raises what `cdc.capture.ensure` raises.
    """
    allow_records(site, source.name)
    lake = Lake.at(site.lake)

    def before_start(incarnation: Incarnation | None) -> None:
        slots = incarnation.slots if incarnation is not None else 0
        anew = renew or access.retired is not None
        by_copy = source.snapshot == sources.COPY
        if anew or (by_copy and not copies.brought(lake, source.name, slots)):
            copies.awaited(lake, source.name, slots)
        if incarnation is not None:
            # From here on a pipeline that looks takes the new slot for the right one.
            record_incarnation(lake, source.name, incarnation)

    def before_join(joining: Sequence[str]) -> None:
        by_copy = source.snapshot == sources.COPY or (access.known and access.known.slots > 1)
        copies.joining(lake, source.name, joining, known=known if by_copy else joining)

    access, known = access_of(site, source), captured_tables(lake, source.name)
    started = capture.ensure(
        source,
        access,
        site.placement,
        connect,
        before_start=before_start,
        before_join=before_join,
        renew=renew,
        timeout_s=timeout_s,
    )
    record_capture(lake, source.name, LIVE, tables_of(source, started.scope))
    copies.joined(lake, source.name, started.scope.tables)
    if started.incarnation is not None:
        record_incarnation(lake, source.name, started.incarnation)
    return started


def add(
    site: CaptureSite, source: Source, password: str | None, *, timeout_s: float = 90.0
) -> Started:
    """Declare a source and start it; the same again changes nothing but where its database is.

    Nothing is written before everything is admitted. Raises `Conflict` when the source's file says
    otherwise, and what `cdc.capture.ensure` raises.
    """
    source = _as_declared(site, source)
    refuse_unless_admitted(topic_names.checks(site, source, with_password(source.dsn, password)))
    sources.save(site.folder, source, password)
    with ConnectClient(site.connect_url) as connect:
        return start(site, source, connect, timeout_s=timeout_s)


def resnapshot(
    site: CaptureSite, source: Source, *, tables: Sequence[str] = (), timeout_s: float = 90.0
) -> Resnapshot:
    """Copy tables anew. A source whose slot is lost gets a new slot first, and all its tables.

    Readers keep the old rows until the new ones replace them in one commit. Repeating it after a
    crash is safe. Raises `NotFound` for a table that is not captured, `Incompatible` for a server
    that ends before what the lake has.
    """
    lake = Lake.at(site.lake)
    known = captured_tables(lake, source.name)
    strangers = [name for name in tables if name not in known]
    if strangers:
        raise NotFound(
            f"source {source.name} does not capture {', '.join(strangers)}",
            remedy=f"It captures {', '.join(known) or 'nothing'}.",
        )
    with ConnectClient(site.connect_url) as connect:
        now = status(site, source, connect)
        if now.away is not None:
            raise Unavailable(now.away, remedy="Repeat it when the database answers.")
        lost = now.watch.lost if now.watch is not None else None
        gaps_ = missing(site, source.name)
        if gaps_:
            lost = lost or gaps.reason(gaps_)
        if lost is None:
            chosen = tuple(tables) or tuple(known)
            copies.again(lake, source.name, chosen, reason="penstock source resnapshot")
            return Resnapshot(source=source.name, renewed=None, tables=chosen)
        if now.watch is not None:
            seen = Manifest(lake, Tables()).seen_up_to(source.name)
            refuse_set_back(source.name, now.watch.server, seen)
            renewing(lake, source.name, now.watch.server, lost)
        started = start(site, source, connect, renew=True, timeout_s=timeout_s)
        if gaps_:
            # Last: from here on ingest reads on, and finds the cut held for the copy.
            gaps.skip(InstallBook(lake, Tables()), source.name, gaps_)
        return Resnapshot(source=source.name, renewed=lost, tables=tuple(started.scope.tables))


def status(site: CaptureSite, source: Source, connect: ConnectClient) -> CaptureStatus:
    """Report what a source does now. What it lacks (a password, say) is part of the report."""
    try:
        access = access_of(site, source)
    except Misconfigured as error:
        return CaptureStatus(
            source=source.name, connector=None, watch=None, snapshot="unknown", away=error.message
        )
    return capture.status(
        source,
        access,
        site.placement,
        connect,
        alarm_bytes=site.slot_alarm_bytes,
    )


def held(site: CaptureSite, source: Source) -> dict[str, str]:
    """Return the tables that match a pattern but are not captured, each with its reason."""
    try:
        name = replication_name(site.name, source.name)
        with connected(source.full_dsn(site.folder)) as connection:
            return dict(scope_of(source, connection, name, slot=False, runs=True).held)
    except Misconfigured as error:
        return {"all": error.message}


def standing_still(site: CaptureSite, source: Source) -> dict[str, dict[str, object]]:
    """Return the tables that DDL of the source holds: why, what differs, and what releases them."""
    last = Manifest(Lake.at(site.lake), Tables()).last()
    held = Progress.from_json(last.progress).held if last is not None else {}
    return {
        table: hold_document(source.name, table, hold)
        for table, hold in held.get(source.name, {}).items()
    }


def resume(site: CaptureSite, source: Source, connect: ConnectClient) -> ConnectorStatus:
    """Go on after a pause or a failure. Raises `Incompatible` for a source that is slot-lost."""
    now = status(site, source, connect)
    if now.watch is not None and now.watch.lost is not None:
        refuse_lost(source.name, now.watch.lost)
    failed = now.connector is not None and now.connector.failed
    if failed or any(said.exclude or said.veiled for said in source.options.values()):
        # What the file and the settings say now is applied before anything is read under it.
        start(site, source, connect)
    name = f"{site.name}-{source.name}"
    connect.resume(name)
    if connect.status(name).failed:
        connect.restart(name)
    return connect.await_running(name)


def progress(site: CaptureSite, source: Source) -> SnapshotProgress:
    """Report how far the source's snapshot is."""
    topic = f"{site.topic_prefix}{source.name}.notifications"
    registry = ConfluentRegistry(site.registry_url)
    try:
        return snapshot_progress(site.bootstrap, topic, registry)
    finally:
        registry.close()


def removable(site: CaptureSite, name: str) -> Source:
    """Return a source that can be removed: a declared one, or one that is removed in part."""
    for source in sources.load_removing(site.folder):
        if source.name == name:
            return source
    return sources.load(site.folder, name)


def remove(site: CaptureSite, source: Source) -> Removal:
    """Remove everything but the tables of the lake, and then the declaration.

    The declaration is set aside first: a pipeline that runs must not start it again. There it
    stays, with its secrets, while something could not be reached: the same again finishes it.
    """
    lake, placement = Lake.at(site.lake), site.placement
    dsn = source.full_dsn(site.folder)
    sources.set_aside(site.folder, source.name)
    record_capture(lake, source.name, DROPPED, {})
    with ConnectClient(site.connect_url) as connect:
        removal = removal_of(source.name, dsn, placement, connect)
        connector = f"{placement.workspace}-{source.name}"
        if removal.whole and connect.config(connector) is not None:
            # A pipeline was just about to start it when the declaration was set aside.
            removal = removal_of(source.name, dsn, placement, connect)
    if removal.whole:
        record_capture(lake, source.name, DROPPED, {})
        forget_incarnation(lake, source.name)
        sources.forget(site.folder, source.name)
    return removal


def tables_of(source: Source, scope: Scope) -> dict[str, CapturedTable]:
    """Return what the catalog is told about each table that a source captures now."""
    return {
        table: CapturedTable(
            keys=keys,
            history=source.options_of(table).history,
            soft_deletes=source.options_of(table).soft_deletes,
        )
        for table, keys in scope.tables.items()
    }


def captured_tables(lake: Lake, name: str) -> dict[str, CapturedTable]:
    """Return the tables that the catalog has for a source; empty for one that is new or dropped."""
    for entry in DeployedCatalog(lake, Tables()).entries():
        if (entry.kind, entry.name) == (CAPTURE, name) and entry.status != DROPPED:
            return parse_tables(entry.text)
    return {}


def record_capture(
    lake: Lake, name: str, status_: str, tables: Mapping[str, CapturedTable]
) -> None:
    """Tell the catalog which tables of a source are captured, their keys and what is kept."""
    catalog = DeployedCatalog(lake, Tables())
    text = render_tables(tables)
    entry = Entry(kind=CAPTURE, name=name, generation=0, status=status_, text=text)
    catalog.decide(lambda: [] if entry in catalog.entries() else [entry])


def _as_declared(site: CaptureSite, source: Source) -> Source:
    """Return what is to be written: never less than what the source's file says already."""
    if source.name in [each.name for each in sources.load_removing(site.folder)]:
        raise Conflict(
            f"source {source.name} is removed in part",
            remedy=f"Finish that first: penstock source remove {source.name} --yes",
        )
    for known in sources.load_all(site.folder):
        if known.name != source.name:
            continue
        if set(known.tables) != set(source.tables):
            raise _declared_otherwise(source, f"captures {', '.join(known.tables)} already")
        if (known.keys, known.set_options, known.snapshot) != (
            source.keys,
            source.set_options,
            source.snapshot,
        ):
            raise _declared_otherwise(source, "is declared with other keys or options already")
        return replace(source, salt=known.salt)
    return source


def _declared_otherwise(source: Source, how: str) -> Conflict:
    return Conflict(
        f"source {source.name} {how}",
        remedy=f"Change sources/{source.name}.toml: a running pipeline applies it.",
    )
