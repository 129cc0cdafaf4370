"""The continuous verifier: a range of a table at a time, at a low rate, source after source.

What differs is compared at one LSN; only then it is a difference, recorded and healed. The rate is
bounded twice: by `verify.rows_per_second`, and by resting 50 times as long as a step was busy, so
that a table whose every range costs a look at the whole of it takes no more than 2 % of a core.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

import psycopg
from prometheus_client import CollectorRegistry, Counter, Gauge

from cdc.declarations import FILES
from cdc.site import CaptureSite
from cdc.sources import Source, load_all
from cdc.verification.comparison import Captured, Comparison
from cdc.verification.continuous import ContinuousCheck
from cdc.verification.healing import heal
from cdc.verification.on_demand import captured_tables
from cdc.verification.reports import TableReport
from cdc.verification.rounds import (
    MOST_FAILED_HEALS,
    SourceRounds,
    TableRound,
    load_rounds,
    save_rounds,
)
from kernel.errors import (
    InvalidRequest,
    Misconfigured,
    NotComparable,
    NotFound,
    PenstockError,
    cause_and_fix,
)
from kernel.loops import Loop
from kernel.positions import Lsn, lsn_from_text, lsn_to_text
from lake.layout import Lake, current_name
from lake.tables import Tables
from pipeline.verification.book import Fact, Kind, Verifications
from projections.run.catalog import DeployedCatalog
from schemas.key_ranges import WHOLE, KeyRange
from schemas.registry import SchemaRegistry

log = logging.getLogger("penstock.verify")

IDLE_S = 5.0
PAUSES_S = (5.0, 15.0, 60.0, 300.0)
REST = 50.0
"""A step is followed by a rest of so many times its length."""
ROUND_S = 300.0
"""A table's rounds begin at least so far apart: a range that is written to costs an epoch."""
TIMEOUT_S = 60.0


class VerifyMetrics:
    """Counters and gauges of the continuous verifier, per source and table."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["source", "table"]

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(name, what, labels, registry=registry)

        def counter(name: str, what: str) -> Counter:
            return Counter(name, what, labels, registry=registry)

        self.rows = counter("penstock_verify_rows_total", "Rows compared with their source")
        self.differing = counter(
            "penstock_verify_differing_rows_total", "Rows found missing, extra or differing"
        )
        self.healed = counter(
            "penstock_verify_healed_ranges_total", "Ranges replaced and equal after"
        )
        self.verified = gauge(
            "penstock_verify_verified_timestamp_seconds", "When a range was last found equal"
        )
        self.round = gauge(
            "penstock_verify_round_timestamp_seconds", "When the last full round ended"
        )
        self.coverage = gauge(
            "penstock_verify_coverage_ratio", "Share of the table the round under way has done"
        )


@dataclass(slots=True)
class _Away:
    """A source that does not answer: tried again later, named once."""

    reason: str
    failures: int
    until: float


class Verifying:
    """Verifies all captured tables of a workspace, one range at a time. For one thread."""

    def __init__(
        self,
        site: CaptureSite,
        registry: SchemaRegistry,
        metrics: VerifyMetrics,
        *,
        round_s: float = ROUND_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._site = site
        self._lake = Lake.at(site.lake)
        self._tables = Tables()
        self._registry = registry
        self._comparison = Comparison(self._lake, self._tables, registry)
        self._facts = Verifications(self._lake, self._tables)
        self._deployed = DeployedCatalog(self._lake, self._tables)
        self._metrics = metrics
        self._round_s = round_s
        self._timeout_s = timeout_s
        self._rounds: dict[str, SourceRounds] = {}
        self._away: dict[str, _Away] = {}
        self._turn = ""
        self.loop = Loop("verify")

    @property
    def states(self) -> dict[str, object]:
        """Say per source how the verification goes, for health."""
        found: dict[str, object] = {name: away.reason for name, away in self._away.items()}
        for name, rounds in self._rounds.items():
            found.setdefault(
                name,
                {
                    table: {
                        "verified_at": each.verified_at,
                        "coverage": round(each.coverage, 3),
                        "differing": each.last_differing,
                        "note": each.note,
                    }
                    for table, each in rounds.tables.items()
                },
            )
        return found

    def run(self, stop: threading.Event) -> None:
        """Verify until `stop` is set."""
        rate = self._site.verified_rows_per_second
        while rate > 0 and not stop.is_set():
            began = time.monotonic()
            with self.loop.working("a range to compare"):
                rows, busy_s = self.step()
            pause = max(rows / rate, busy_s * REST) if rows or busy_s else IDLE_S
            stop.wait(max(pause - (time.monotonic() - began - busy_s), 0.1))

    def step(self) -> tuple[int, float]:
        """Check one range; return the rows that were read and the seconds that it was busy.

        Nothing is raised: what goes wrong is named in `states` and tried again after a pause that
        grows.
        """
        try:
            source = self._next_source()
        except Exception as error:
            # One file that is wrong hides them all, until it is mended.
            self._note_away(FILES, error)
            return 0, 0.0
        self._away.pop(FILES, None)
        if source is None:
            return 0, 0.0
        try:
            rows, busy_s = self._check_source(source)
        except Exception as error:
            # Its pause is that of its failures: a rest of so many times the time that it took
            # would leave it, and all other sources, alone for much longer.
            self._note_away(source.name, error)
            return 0, 0.0
        self._away.pop(source.name, None)
        return rows, busy_s

    def _next_source(self) -> Source | None:
        now = time.monotonic()
        found = {
            source.name: source
            for source in load_all(self._site.folder)
            if source.name not in self._away or self._away[source.name].until <= now
        }
        if not found:
            return None
        later = [name for name in sorted(found) if name > self._turn]
        self._turn = later[0] if later else min(found)
        return found[self._turn]

    def _check_source(self, source: Source) -> tuple[int, float]:
        deployment = self._deployed.deployment()
        if not deployment.captures.get(source.name):
            return 0, 0.0
        try:
            last = self._comparison.reader.last()
        except NotFound:
            # Before the first epoch there is nothing that could be compared, and nothing is wrong.
            return 0, 0.0
        if not last.cuts.get(source.name):
            return 0, 0.0
        tables = {each.table: each for each in captured_tables(self._site, deployment, source)}
        rounds = self._rounds.setdefault(
            source.name, load_rounds(self._site.state_dir, source.name)
        )
        rounds.keep_only(list(tables))
        due = [name for name in tables if rounds.of(name).due(self._round_s)]
        if not due:
            return 0, 0.0
        captured = tables[rounds.next_of(due)]
        dsn = source.full_dsn(self._site.folder)
        current = rounds.of(captured.table)
        try:
            return self._check_table(captured, dsn, current)
        except (NotFound, InvalidRequest, NotComparable) as error:
            current.note = f"{error.message} | fix: {error.remedy}"
            return 0, 0.0
        except Misconfigured as error:
            if not isinstance(error.__cause__, psycopg.ProgrammingError):
                raise
            # DDL since its columns were looked at, or a right that it alone lacks.
            current.note = f"{error.message} | fix: penstock source check {source.name}"
            return 0, 0.0
        finally:
            save_rounds(self._site.state_dir, source.name, rounds)

    def _check_table(self, captured: Captured, dsn: str, current: TableRound) -> tuple[int, float]:
        held = self._comparison.reader.held_now(captured.source).get(captured.table)
        if held is not None:
            current.note = held
            return 0, 0.0
        check = ContinuousCheck(self._comparison, dsn, timeout_s=self._timeout_s)
        began = time.monotonic()
        known = current.table_rows if current.began is not None else None
        place = check.place(captured, current.low, known)
        if current.began is None:
            current.begin(place.rows)
        placing_s = time.monotonic() - began
        if place.by_range:
            step = check.check(captured, place)
            rows, busy_s, area, lsn = step.rows, step.busy_s, step.area, step.lsn
            exact, moving = not step.settled and bool(step.suspects), step.moving
        else:
            rows, busy_s, area, lsn, exact, moving = place.rows, 0.0, WHOLE, Lsn(0), True, 0
        differing, wrong = 0, None
        if exact:
            report = self._compare(captured, dsn, area)
            lsn = lsn_from_text(report.lsn)
            busy_s += report.seconds
            if report.held is not None:
                # Nothing was compared: the range is still to be checked.
                current.note = report.held
                return 0, busy_s + placing_s
            differing, wrong = self._took_report(captured, dsn, report, current)
        current.took(rows, lsn_to_text(lsn), differing=differing, moving=moving, wrong=wrong)
        self._book(captured, current, rows, differing, equal=wrong is None)
        if current.go_on(area.high) and current.wrong is None:
            self._ended(captured, current, lsn)
        return rows, busy_s + placing_s

    def _compare(self, captured: Captured, dsn: str, area: KeyRange) -> TableReport:
        (report,) = self._comparison.compare(
            dsn, [captured], timeout_s=self._timeout_s, within=area
        )
        return report

    def _took_report(
        self, captured: Captured, dsn: str, report: TableReport, current: TableRound
    ) -> tuple[int, str | None]:
        """Record what a comparison at one LSN found, and heal it.

        Returns the rows that differed, and what is wrong still: None where all is equal now.
        """
        if report.equal:
            return 0, None
        found = report.differences
        number = found.missing + found.extra + found.differing
        log.warning(
            "%s.%s differs: %d missing, %d extra, %d differing in %s%s",
            captured.source,
            captured.table,
            found.missing,
            found.extra,
            found.differing,
            ", ".join(map(str, report.differing_ranges)),
            f"; {report.cause}" if report.cause else "",
        )
        self._facts.add([report.fact(captured.source, Kind.DIFFERENCE)])
        if not found.healable:
            return number, report.cause
        if not current.heals:
            return number, _left_alone(captured)
        healed = heal(
            self._lake,
            self._tables,
            self._comparison,
            dsn,
            captured,
            report,
            timeout_s=self._timeout_s,
        )
        self._facts.add([healed.fact(captured.source, Kind.HEAL)])
        log.warning(
            "%s.%s: install %s, after: %s",
            captured.source,
            captured.table,
            healed.install,
            healed.after,
        )
        if healed.after == "equal":
            self._metrics.healed.labels(captured.source, captured.table).inc()
            return number, None
        current.failed_heals += 1
        if current.failed_heals >= MOST_FAILED_HEALS:
            return number, _left_alone(captured)
        return number, f"{number} rows differ, and differed after healing; it is tried again"

    def _book(
        self, captured: Captured, current: TableRound, rows: int, differing: int, *, equal: bool
    ) -> None:
        labels = (captured.source, captured.table)
        self._metrics.rows.labels(*labels).inc(rows)
        self._metrics.differing.labels(*labels).inc(differing)
        if equal:
            self._metrics.verified.labels(*labels).set_to_current_time()
        self._metrics.coverage.labels(*labels).set(current.coverage)

    def _ended(self, captured: Captured, current: TableRound, lsn: Lsn) -> None:
        self._metrics.round.labels(captured.source, captured.table).set_to_current_time()
        last = self._comparison.reader.last()
        if not current.record(last.tables[current_name(captured.source, captured.table)].version):
            return
        self._facts.add(
            [
                Fact(
                    source=captured.source,
                    table=captured.table,
                    kind=Kind.ROUND,
                    lsn=lsn,
                    epoch=last.epoch,
                    ranges=current.last_ranges,
                    rows=current.last_rows,
                    differing=current.last_differing,
                )
            ]
        )

    def _note_away(self, name: str, error: Exception) -> None:
        known = self._away.get(name)
        failures = known.failures + 1 if known is not None else 0
        reason = cause_and_fix(error, most=500)
        if known is None:
            expected = isinstance(error, PenstockError)
            log.warning("%s is not verified now: %s", name, reason, exc_info=not expected)
        pause = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
        self._away[name] = _Away(reason, failures, time.monotonic() + pause)


def _left_alone(captured: Captured) -> str:
    return (
        f"it differs after {MOST_FAILED_HEALS} healings in a row and is healed no more"
        f" | fix: penstock source verify {captured.source}, then: penstock source resnapshot"
        f" {captured.source} --tables {captured.table} --yes"
    )
