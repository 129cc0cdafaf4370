"""Waits until everything that was recorded before the call is in the tables, and in their sinks.

The event store's part is its head: the log must have every position up to it. A captured
database's part is a logical message that the call commits there: once the source's cut has passed
that message, it has passed every transaction committed before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cdc.declarations import FOLDER
from eventstore.postgres.heads import PostgresHeads, head_of_store
from kernel.errors import Unavailable
from kernel.positions import Epoch, Lsn, Offsets, lsn_from_text
from lake.layout import Lake
from lake.rows import SmallTables
from pipeline.ddl.held_tables import hold_line, release_command, retry_command
from pipeline.position.lag import StoreHeads
from projections.run.catalog import CAPTURE, PROJECTION, SOURCE, DeployedCatalog
from projections.serve.standings import TYPED, NewestEpoch, newest, runs
from projections.sinks.awaited_sinks import AwaitedSinks
from service.standstills import Standstill

if TYPE_CHECKING:
    from cdc.site import CaptureSite

POLL_S = 0.2
LOOK_S = 1.0
"""Pause between two looks at what stands still."""
_MESSAGE = "SELECT pg_logical_emit_message(true, 'penstock.wait', '')::text AS lsn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What must be in the tables: positions up to `head`, transactions up to each source's LSN.

    `ends` is where external topics ended, `topics` says which source reads each of them.
    """

    store: str | None
    head: int
    cuts: Mapping[str, Lsn]
    ends: Offsets = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUpEpoch:
    """The epoch that has it all, 0 where nothing was ever recorded.

    `tables`: derived tables and projections that reached it; `waiting`: projections that do not
    yet, because they wait for their own trigger or for the first row of an input, each with the
    reason.
    """

    epoch: Epoch
    head: int
    tables: tuple[str, ...]
    waited_s: float
    waiting: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What is still missing, one line each; `events` and `seconds` as the store counts them."""

    missing: tuple[str, ...]
    events: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Ask the parts of a stack for what they say of themselves.

    `pipeline` says None where it does not answer; `still` is what stands still, anywhere.
    """

    pipeline: Callable[[], Mapping[str, Any] | None]
    still: Callable[[], list[Standstill]]


@dataclass(slots=True)
class Waiting:
    """Looks at the lake of one workspace until it has caught up with a goal."""

    lake: Lake
    accounts: Accounts
    goal: Goal
    heads: StoreHeads
    tables: SmallTables = field(default_factory=SmallTables)
    _epoch: Epoch | None = None
    _sinks: AwaitedSinks | None = None

    def look(self) -> CaughtUpEpoch | Behind:
        """Say how things stand now."""
        last = newest(self.lake, self.tables)
        if self._epoch is None:
            missing = self._missing_input(last)
            if missing:
                _, events, seconds = self.heads.lag(last.heads if last else {})
                return Behind(missing=missing, events=events, seconds=seconds)
            # What comes later is not this call's concern. Where nothing was ever recorded there
            # is no epoch to wait for.
            self._epoch = Epoch(last.epoch if last is not None else 0)
        reached, lacking = self._missing_tables(self._epoch)
        waiting = by_design(self.accounts.pipeline(), self._epoch) if lacking else {}
        rest = {name: line for name, line in lacking.items() if name not in waiting}
        if rest:
            return Behind(missing=tuple(rest.values()), events=0, seconds=0.0)
        if unsent := self._missing_sinks():
            return Behind(missing=unsent, events=0, seconds=0.0)
        return CaughtUpEpoch(
            epoch=self._epoch,
            head=self.goal.head,
            tables=tuple(name for name in reached if name not in lacking),
            waited_s=0.0,
            waiting={name: waiting[name] for name in lacking},
        )

    def _missing_sinks(self) -> tuple[str, ...]:
        if self._sinks is None:
            self._sinks = AwaitedSinks(self.lake, self.tables)
        return self._sinks.missing(self.accounts.pipeline())

    def _missing_input(self, last: NewestEpoch | None) -> tuple[str, ...]:
        missing = []
        have = last.heads.get(self.goal.store or "", 0) if last is not None else 0
        if have < self.goal.head:
            missing.append(f"events: position {have} of {self.goal.head}")
        for source, lsn in self.goal.cuts.items():
            cut = last.cuts.get(source, 0) if last is not None else 0
            if cut < lsn:
                missing.append(f"source {source}: {lsn - cut:,} bytes of WAL")
        taken = last.ends if last is not None else {}
        for topic, ends in self.goal.ends.items():
            read = taken.get(topic, {})
            behind = sum(max(0, end - read.get(place, 0)) for place, end in ends.items())
            if behind:
                source = self.goal.topics[topic]
                missing.append(f"source {source}: {behind:,} records of topic {topic}")
        held = last.held if last is not None else {}
        missing += [
            f"{hold_line(source, table, hold)} (release: {release_command(source, table, hold)})"
            for source in self.goal.cuts
            for table, hold in held.get(source, {}).items()
        ]
        return tuple(missing)

    def _missing_tables(self, epoch: Epoch) -> tuple[tuple[str, ...], dict[str, str]]:
        noted = runs(self.lake, self.tables)
        wanted = {"typed tables": TYPED}
        deployed = DeployedCatalog(self.lake, self.tables).live(PROJECTION)
        for each in sorted(deployed, key=lambda entry: entry.name):
            wanted[f"projection {each.name}"] = f"projection/{each.name}/g{each.generation}"
        held = noted[TYPED].held if TYPED in noted else {}
        missing = {
            name: f"{name} is held since epoch {hold.from_epoch}: {hold.reason}"
            f" (release: {retry_command(name, hold)})"
            for name, hold in held.items()
        }
        for shown, name in wanted.items():
            done = noted[name].epoch if name in noted else 0
            if done < epoch:
                missing[shown] = f"{shown}: epoch {done} of {epoch}"
        return tuple(wanted), missing


def goal_of(site: CaptureSite) -> Goal:
    """Ask the event store and every captured database how far they are now."""
    store, head = head_of_store(site.store_dsn)
    lake = Lake.at(site.lake)
    catalog = DeployedCatalog(lake, SmallTables())
    captured = [each.name for each in catalog.live(CAPTURE)]
    # A file that cannot be read is told, whether or not anything is captured yet.
    described = any((site.folder / FOLDER).glob("*.toml"))
    cuts = _marked(site, captured) if captured or described else {}
    ends, topics = _external(site) if catalog.live(SOURCE) else ({}, {})
    return Goal(store=store, head=head, cuts=cuts, ends=ends, topics=topics)


def _marked(site: CaptureSite, captured: Collection[str]) -> dict[str, Lsn]:
    """Commit a message in every captured database; return the LSN of each."""
    # It takes half a second to load, which nobody without a captured database pays for.
    from cdc import sources
    from cdc.database import connected

    cuts: dict[str, Lsn] = {}
    for source in sources.load_all(site.folder):
        if source.name not in captured:
            continue
        with connected(source.full_dsn(site.folder)) as database:
            found = database.execute(_MESSAGE).fetchone()
            assert found is not None
            cuts[source.name] = lsn_from_text(str(found["lsn"]))
    return cuts


def _external(site: CaptureSite) -> tuple[Offsets, dict[str, str]]:
    """Return where external topics end, and the sources that read them.

    To read declarations takes seconds to load, which nobody without any pays for.
    """
    from cdc.upkeep.topic_sources import declared_topics
    from pipeline.read.kafka_topics import KafkaTopics
    from pipeline.read.topic_lag import ends_of

    declared = declared_topics(site)
    ends = ends_of(KafkaTopics(site.bootstrap), declared) if declared else {}
    return ends, {shape.topic: name for name, shape in declared.items()}


def wait(
    site: CaptureSite, accounts: Accounts, *, timeout_s: float, show: Callable[[Behind], None]
) -> CaughtUpEpoch:
    """Return when the tables have everything that was recorded before this call.

    Raises `Unavailable` after `timeout_s`, naming what is behind.
    """
    with closing(PostgresHeads(site.store_dsn)) as heads:
        with _told_with_causes(accounts):
            goal = goal_of(site)
        waiting = Waiting(lake=Lake.at(site.lake), accounts=accounts, goal=goal, heads=heads)
        return _awaited(waiting, timeout_s=timeout_s, show=show)


@contextmanager
def _told_with_causes(accounts: Accounts) -> Iterator[None]:
    """Add what stands still to the error of one who was asked and does not answer."""
    try:
        yield
    except Unavailable as error:
        still = accounts.still()
        if not still:
            raise
        raise Unavailable(
            "; ".join([error.message, *map(str, still)]), remedy=still[0].command
        ) from error


def _awaited(
    waiting: Waiting, *, timeout_s: float, show: Callable[[Behind], None]
) -> CaughtUpEpoch:
    started, look_at_s, accounts = time.monotonic(), 0.0, waiting.accounts
    still: list[Standstill] = []
    while True:
        with _told_with_causes(accounts):
            found = waiting.look()
        waited_s = time.monotonic() - started
        if isinstance(found, CaughtUpEpoch):
            return replace(found, waited_s=waited_s)
        if waited_s >= look_at_s:
            look_at_s = waited_s + LOOK_S
            still = [*accounts.still(), *_paused(accounts, found.missing)]
            _refuse_standstill(still)
        # What was seen last counts until the next look, and whenever time is over.
        found = replace(found, missing=(*found.missing, *map(str, still)))
        if waited_s > timeout_s:
            reasons = "; ".join([*found.missing, *_reasons(accounts)])
            raise Unavailable(
                f"not caught up within {timeout_s:g} s: {reasons}",
                remedy="See which part stands still: penstock status, penstock logs pipeline",
                events_behind=found.events,
            )
        show(found)
        time.sleep(POLL_S)


def by_design(state: Mapping[str, Any] | None, epoch: Epoch) -> dict[str, str]:
    """Return the projections that wait for their own trigger, or for the first row of an input,
    at an epoch or later, and why.
    """
    known = (state or {}).get("projections", {})
    return {
        f"projection {name}": str(why)
        for name, each in known.items()
        if (why := each.get("trigger") or each.get("first_row")) and each.get("asked", 0) >= epoch
    }


def _paused(accounts: Accounts, missing: Sequence[str]) -> list[Standstill]:
    """Return the paused sources of which something is missing: they stand still on purpose.

    One that was resumed a moment ago may be called paused still: nobody is refused for it.
    """
    connectors = (accounts.pipeline() or {}).get("connectors", {})
    return [
        Standstill(
            component="connector",
            name=name,
            cause="it is paused",
            command=f"penstock source resume {name}",
        )
        for name, said in connectors.items()
        if said == "paused" and any(line.startswith(f"source {name}: ") for line in missing)
    ]


def _refuse_standstill(still: Sequence[Standstill]) -> None:
    """Raise `Unavailable` for what stands still and will not move by itself."""
    lasting = [each for each in still if each.lasting]
    if lasting:
        raise Unavailable(
            "not caught up, and it does not go on by itself: " + "; ".join(map(str, lasting)),
            remedy=lasting[0].command,
        )


def _reasons(accounts: Accounts) -> list[str]:
    state = accounts.pipeline()
    if state is None:
        return ["the pipeline does not answer"]
    found = []
    for part in ("ingest", "projecting"):
        reason = state.get(part, {}).get("reason")
        if reason:
            found.append(f"{part}: {reason}")
    for name, projection in state.get("projections", {}).items():
        if projection.get("error"):
            found.append(f"projection {name}: {projection['error']}")
    return found
