"""Deploying SQL: declared sources and projections into the catalog that the pipeline polls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from kernel.errors import Conflict, InvalidRequest, PenstockError
from pipeline.commit.manifest_rows import TYPED
from projections.run.catalog import (
    CLAIM,
    CLAIMED_FOR,
    DROPPED,
    LIVE,
    PROJECTION,
    SOURCE,
    Entry,
)
from projections.run.relations import LakeCatalog, waits_for_input
from projections.sinks.sink_columns import check_sink_columns
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.plan import plan
from projections.sql.statements.declarations import ProjectionDecl, SourceDecl
from projections.sql.statements.lineage import readers_of
from projections.sql.statements.parse import parse_script
from projections.sql.statements.sink_circles import check_sink_circles, check_sinks_apart
from projections.sql.words.sinks import TopicSink
from replay.book import CLAIMED, Replay, ReplayBook, State, command_of
from replay.planning import next_generation
from replay.subject import Site, check_deployable, declaration, entry_of
from schemas.identifiers import EVENTS


class Outcome(StrEnum):
    """What `apply` did with one statement."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """One statement's result. `waits`: why the projection cannot run yet."""

    kind: str
    name: str
    outcome: Outcome
    generation: int
    waits: str | None


def lake_catalog(site: Site) -> LakeCatalog:
    """Return what projections may read: typed tables, registered event types, what is deployed."""
    noted = site.manifest.projected().get(TYPED)
    return LakeCatalog(
        site.lake,
        site.tables,
        site.deployed.deployment(),
        typed=[t for t in noted.tables if t.startswith("typed/")] if noted is not None else [],
        fields=site.fields,
        lateness=site.lateness,
    )


def apply(
    site: Site,
    sources: Sequence[SourceDecl],
    projections: Sequence[ProjectionDecl],
    *,
    prefix: str = "",
) -> list[Deployed]:
    """Deploy statements in one commit; the same again changes nothing.

    `prefix` begins the names of the workspace's own topics.

    Raises `Conflict` for a statement that would change the rows of something deployed,
    `InvalidRequest` for a query that cannot be compiled, `Incompatible` for columns that its sink
    cannot take. Nothing is deployed then.
    """
    results: list[Deployed] = []

    def decided() -> list[Entry]:
        # Against the catalog as it is at the commit: a swap or another `apply` may come between.
        results[:], changed = _decided(site, sources, projections, prefix)
        return changed

    site.deployed.decide(decided)
    return results


def hold_places(site: Site, going: Sequence[Entry], *, looks: bool = True) -> list[Entry]:
    """Look whether what is deployed goes with queries that are about to go live, by a commit.

    The commit only claims the projections' places, so that their live runners hold still for a
    while; it returns that. But a swap makes it behind its claim in the book, and whoever deploys at
    this moment decides anew behind it: they find the claim then. Queries that go live together have
    to go with each other. Raises `Conflict`, and `LeaseLost` when others were faster every time.
    """
    until = (datetime.now(UTC) + CLAIMED_FOR).isoformat()
    claims = [
        Entry(kind=CLAIM, name=one.name, generation=one.generation, status=LIVE, text=until)
        for one in going
    ]

    def decided() -> list[Entry]:
        if looks:
            check_together(site, going)
        return claims

    site.deployed.decide(decided)
    return claims


def check_together(site: Site, going: Sequence[Entry]) -> None:
    """Raise `Conflict` where what is deployed does not go with queries that are to go live."""
    for one in going:
        entry_of(site, one.name)  # It refuses a name that is not deployed.
        others = {each.name: each for each in going if each is not one}
        check_deployable(replace(site, coming=others), one.name, one.text)


def claims_over(site: Site, name: str, claim: Entry | None = None) -> list[Entry]:
    """Return what ends the claims of a projection's place, or the one that is given."""
    return [
        replace(entry, status=DROPPED)
        for entry in site.deployed.entries()
        if (entry.kind, entry.name, entry.status) == (CLAIM, name, LIVE) and claim in (None, entry)
    ]


def drop_ended_claims(site: Site) -> None:
    """Drop claims whose time is over: versions from before there were any refuse the catalog."""

    def decided() -> list[Entry]:
        deployment = site.deployed.deployment()
        over = {name for name in deployment.claims if not deployment.claimed(name)}
        return [entry for name in sorted(over) for entry in claims_over(site, name)]

    site.deployed.decide(decided)


def _refuse_amid_swaps(
    site: Site,
    changed: Sequence[Entry],
    sources: Collection[SourceDecl],
    projections: Mapping[str, ProjectionDecl],
) -> None:
    """Raise `Conflict` for what may not go with a generation that is about to go live."""
    names = {entry.name for entry in changed if entry.kind == PROJECTION}
    live = site.deployed.deployment().generations
    for replay in ReplayBook(site.lake, site.tables).all() if changed else ():
        # One whose place another generation took since will not go live any more.
        due = live.get(replay.name) in (replay.base, replay.generation)
        if replay.state not in CLAIMED or not due:
            continue
        text, why, command = _about_to_go_live(replay)
        coming = {**projections, replay.name: declaration(replay.name, text)}.values()
        check_sinks_apart(coming)
        check_sink_circles(sources, coming)
        for reader in sorted(names.intersection(readers_of(replay.name, coming))):
            raise Conflict(
                f"{reader} reads {replay.name}, {why}",
                remedy="Give the same command again; where that was interrupted, before it: "
                f"{command}",
            )


def _about_to_go_live(replay: Replay) -> tuple[str, str, str]:
    """Return the query that a claimed generation brings, how, and the command that finishes it."""
    name, generation = replay.name, replay.generation
    if replay.state is State.ROLLING_BACK:
        why = f"which is being rolled back to generation {replay.base}, or that was interrupted"
        command = (
            command_of(replay)
            if replay.together
            else (
                f"penstock replay rollback {name}; or, to keep generation {generation}, penstock "
                f"replay cancel {name} --generation {generation}"
            )
        )
        return replay.base_text, why, command
    why = f"whose generation {generation} is being swapped, or its swap was interrupted"
    names = " ".join(sorted(replay.together)) or name
    return (
        replay.text,
        why,
        f"{command_of(replay)}; or, to give it up, penstock replay rollback {names}",
    )


def _decided(
    site: Site, sources: Sequence[SourceDecl], projections: Sequence[ProjectionDecl], prefix: str
) -> tuple[list[Deployed], list[Entry]]:
    """Return what becomes of each statement, and the entries that are to be deployed for that."""
    before = {(e.kind, e.name): e for e in site.deployed.entries()}
    results: list[Deployed] = []
    changed: list[Entry] = []
    _check_topics(site, sources, before, prefix)
    for source in sources:
        entry, outcome = _source_entry(source, before.get((SOURCE, source.name)))
        results.append(_result(entry, outcome, None))
        changed += [entry] if outcome is not Outcome.UNCHANGED else []
    deployed = site.deployed.deployment()
    all_sources = {**deployed.sources, **{s.name: s for s in sources}}.values()
    together = {**deployed.declared, **{d.name: d for d in projections}}
    all_projections = together.values()
    _check_sinks(deployed.captures, all_sources, all_projections, prefix)
    check_sinks_apart(all_projections)
    check_sink_circles(all_sources, all_projections)
    declared = DeclaredCatalog(lake_catalog(site), [*all_sources], [*all_projections])
    for decl in projections:
        entry, outcome = _projection_entry(site, decl, before.get((PROJECTION, decl.name)))
        results.append(_result(entry, outcome, _waits(decl, declared)))
        changed += [entry] if outcome is not Outcome.UNCHANGED else []
    _refuse_amid_swaps(site, changed, all_sources, together)
    return results, changed


def _source_entry(source: SourceDecl, before: Entry | None) -> tuple[Entry, Outcome]:
    fresh = Entry(kind=SOURCE, name=source.name, generation=1, status=LIVE, text=source.text)
    if before is None:
        return fresh, Outcome.CREATED
    old = _old_source(before)
    if old is None:
        raise _refused_by_now(before, "Declare it under another name, and read that one.")
    if before.status == DROPPED:
        if source.topic and old.topic and old.topic != source.topic:
            raise Conflict(
                f"the log of source {source.name} has the records of topic {old.topic}",
                remedy="Declare it under another name, and read that one.",
            )
        return fresh, Outcome.CREATED
    if _rows_of(old) != _rows_of(source):
        raise Conflict(
            f"source {source.name} is deployed with another input, key or event time: histories "
            "and projections were made from that",
            remedy=_another_declaration(source),
        )
    same = _terms_of(old) == _terms_of(source)
    return (before, Outcome.UNCHANGED) if same else (fresh, Outcome.CHANGED)


def _old_source(before: Entry) -> SourceDecl | None:
    """Read a source that was deployed before; None where its text is refused by now."""
    with suppress(InvalidRequest):
        return next(iter(parse_script(before.text).sources))
    return None


def _refused_by_now(before: Entry, fix: str) -> Conflict:
    why = f"{before.kind} {before.name} is deployed with a text that is refused by now"
    return Conflict(why, remedy=fix)


def _terms_of(source: SourceDecl) -> tuple[object, ...]:
    """What may be declared anew: which rows are late from now on."""
    return source.lateness, source.closed_after, source.idle_timeout


def _rows_of(source: SourceDecl) -> Mapping[str, object]:
    """What the rows of a source's tables depend on."""
    return {
        "on": source.on,
        "topic": (source.topic, source.format, source.columns),
        "key": source.key,
        "event_time": source.event_time,
        "sequence": source.sequence,
        "deleted": source.deleted,
        "identity": source.identity,
    }


def _another_declaration(source: SourceDecl) -> str:
    if source.topic is None:
        return "Declare it under another name, and read that one."
    return (
        f"Drop what reads it, then the source: penstock source remove {source.name} --yes; declared"
        " again, its rows are made anew from the log."
    )


def _check_topics(
    site: Site, sources: Sequence[SourceDecl], before: Mapping[tuple[str, str], Entry], prefix: str
) -> None:
    """Refuse a topic that is the workspace's own, and one that another source reads or has read."""
    captured = site.deployed.deployment().captures
    owners: dict[str, str] = {}
    for (kind, name), entry in before.items():
        old = _old_source(entry) if kind == SOURCE else None
        if old is not None and old.topic:
            owners[old.topic] = name
    for source in sources:
        if source.topic is None:
            continue
        if own := _own_stream(source.topic, prefix, captured):
            raise Conflict(
                f"topic {source.topic} is one of the workspace's own",
                remedy=f"Read it as it is: FROM STREAM {own}.…",
            )
        if owners.setdefault(source.topic, source.name) != source.name:
            other = owners[source.topic]
            raise Conflict(
                f"topic {source.topic} is in the log of source {other}",
                remedy=f"Read that one: FROM STREAM {other}; or declare {other} again.",
            )


def _own_stream(topic: str, prefix: str, captured: Collection[str]) -> str | None:
    """Return what begins the names of the streams that a topic of the workspace feeds."""
    own, _, rest = topic.removeprefix(prefix).partition(".")
    is_own = topic.startswith(prefix) and rest and (own == EVENTS or own in captured)
    return own if is_own else None


def _check_sinks(
    captured: Collection[str],
    sources: Iterable[SourceDecl],
    projections: Iterable[ProjectionDecl],
    prefix: str,
) -> None:
    """Refuse a topic that others write or the workspace reads."""
    readers = {source.topic: source.name for source in sources if source.topic is not None}
    for decl in projections:
        if not isinstance(decl.sink, TopicSink):
            continue
        topic = decl.sink.topic
        if _own_stream(topic, prefix, captured) or topic.startswith("_"):
            raise Conflict(
                f"topic {topic} is not for sinks: events, captured tables or a part write it",
                remedy="Name a topic that nothing else writes: sink = 'topic:NAME'.",
            )
        if topic in readers:
            raise Conflict(
                f"topic {topic} is read by source {readers[topic]}: rows would go round",
                remedy=f"Read the projection by its name: FROM {decl.name}.",
            )


def _projection_entry(
    site: Site, decl: ProjectionDecl, before: Entry | None
) -> tuple[Entry, Outcome]:
    fresh = Entry(kind=PROJECTION, name=decl.name, generation=1, status=LIVE, text=decl.text)
    if before is None:
        return fresh, Outcome.CREATED
    if before.status == DROPPED:
        # Its old table is still there: another generation replaces it as a whole.
        return replace(fresh, generation=next_generation(site, decl.name)), Outcome.CREATED
    try:
        old = next(iter(parse_script(before.text).projections))
    except InvalidRequest as error:
        fix = f"Drop it, and deploy it again: penstock projection drop {decl.name} --yes"
        raise _refused_by_now(before, fix) from error
    if old.fingerprint != decl.fingerprint:
        raise Conflict(
            f"projection {decl.name} is deployed with another query",
            remedy=f"Build the new one beside it: penstock replay apply {decl.name} --sql FILE",
        )
    same = (old.freshness, old.emit, old.sink) == (decl.freshness, decl.emit, decl.sink)
    if same:
        return before, Outcome.UNCHANGED
    return replace(before, text=decl.text), Outcome.CHANGED


def _waits(decl: ProjectionDecl, declared: DeclaredCatalog) -> str | None:
    """Compile against what the lake has; say what is missing, or refuse what is wrong."""
    try:
        columns = plan(decl, declared).columns
    except InvalidRequest as error:
        if waits_for_input(error):
            return error.message
        raise
    except PenstockError as error:
        return error.message
    check_sink_columns(decl, columns)
    return None


def _result(entry: Entry, outcome: Outcome, waits: str | None) -> Deployed:
    return Deployed(
        kind=entry.kind,
        name=entry.name,
        outcome=outcome,
        generation=entry.generation,
        waits=waits,
    )
