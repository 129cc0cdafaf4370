"""Makes a derived table of another lake, of the raw log of the one that is read.

1. Facts of the log, decoded anew, step by step of epochs: each a commit, guarded by the epoch. The
   book notes each step, so that whoever goes on after a crash begins behind the last one.
2. A `current` table: the newest row of each key among them. A history: the fold of them.
3. One commit makes it the table (`replay.copies`).
What updates left alone comes from the facts themselves. Nothing derived is read, and nothing is
written to the lake that is read.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from kernel import failpoints
from kernel.errors import Cancelled, Conflict
from kernel.positions import DeltaVersion, Epoch
from lake import storage
from lake.attempts import Attempts
from lake.datasets import schema_of
from lake.tables import TableAt, Tables
from pipeline.history.tables import HistoryTables
from pipeline.log.large_folds import LARGE_ROWS
from pipeline.typed.last_known import FactsAlone
from pipeline.typed.tables import TypedTables
from projections.run.step_budget import within_budget
from projections.run.typed_steps import TypedSteps
from replay.book import CLAIM, UNFINISHED, Replay, ReplayBook, State
from replay.cancel import ABANDONED_AFTER, is_alive, remove_abandoned, remove_files
from replay.copies import claim_place, put_in_place, remove_older
from replay.derivations.derived_subject import (
    DerivedLake,
    DerivedSubject,
    derived_subject,
    log_rows,
)
from replay.derivations.heartbeat import beating
from replay.derivations.newest_rows import NewestRows
from replay.generations import generation_path
from replay.planning import BEFORE_ALL, next_generation
from replay.resumption import being_built
from replay.subject import Site
from schemas.registry import SchemaLookup

_DOUBT = 0.25
"""Steps are unlike by so much: the time left is a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivationProgress:
    """How far a table is: `done` of `rows` of the log, rows a second, seconds left as a range."""

    what: str
    done: int
    rows: int
    rate: float
    eta_s: tuple[float, float] | None

    @property
    def line(self) -> str:
        """One line for people."""
        told = [f"{self.what}: {self.done:,} of {self.rows:,} rows of the log"]
        if self.rate >= 1:
            told.append(f"{self.rate:,.0f} rows/s")
        if self.eta_s is not None:
            told.append(f"{self.eta_s[0]:.0f} to {self.eta_s[1]:.0f} s left")
        return ", ".join(told)


@dataclass(slots=True, kw_only=True)
class _Course:
    """How far the facts are: the epoch, and the versions of their tables there.

    `rows` of the log and `seconds` are of all processes that made them, so that rates are true.
    """

    claim: str
    up_to: Epoch
    epoch: Epoch = BEFORE_ALL
    tables: dict[str, TableAt] = field(default_factory=dict)
    seconds: float = 0.0
    rows: int = 0

    @property
    def detail(self) -> dict[str, object]:
        """Return what the book keeps."""
        versions = {name: int(at.version) for name, at in self.tables.items()}
        kept = {"epoch": int(self.epoch), "up_to": int(self.up_to), "tables": versions}
        return {CLAIM: self.claim, "derived": kept, "rows": self.rows, "seconds": self.seconds}


def _course_of(detail: Mapping[str, object], claim: str) -> _Course:
    kept: Any = detail["derived"]
    epoch = Epoch(kept["epoch"])
    tables = {
        name: TableAt(version=DeltaVersion(version), as_of_epoch=epoch)
        for name, version in kept["tables"].items()
    }
    told: Any = detail
    return _Course(
        claim=claim,
        up_to=Epoch(kept["up_to"]),
        epoch=epoch,
        tables=tables,
        seconds=told["seconds"],
        rows=told["rows"],
    )


class Derivation:
    """Makes derived tables of another lake, `site.into`. `spark` starts a session for histories."""

    def __init__(
        self,
        site: Site,
        schemas: SchemaLookup,
        report: Callable[[DerivationProgress], None],
        *,
        spark: Callable[[], SparkSession],
        abandoned_after: timedelta = ABANDONED_AFTER,
        most_rows: int = LARGE_ROWS,
    ) -> None:
        self._site = site
        self._schemas = schemas
        self._report = report
        self._spark = spark
        self._abandoned_after = abandoned_after
        self._most_rows = most_rows
        self._book = ReplayBook(site.place, site.tables)

    def build(self, asked: str) -> Replay:
        """Make a table, or go on with one that was paused, stopped, or whose process died.

        Returns it built, or paused by somebody. Raises `Conflict` where another process makes it
        or it was cancelled, and what keeps a row of the log from being one of the table.
        """
        begun, course = self._begun(asked)
        subject = replace(derived_subject(self._site, asked), up_to=course.up_to)
        try:
            with beating(ReplayBook(self._site.place, Tables()), begun, course.claim):
                return self._made(begun, subject, course)
        except Cancelled:
            remove_files(self._site, begun)
            raise Conflict(
                f"the build of {asked} was cancelled", remedy=f"penstock replay apply {asked}"
            ) from None
        except (Exception, KeyboardInterrupt) as error:
            told = {**course.detail, "error": str(error) or type(error).__name__}
            stopped = begun.now(State.STOPPED, detail=told)
            self._book.record(stopped, after=(State.BUILDING,), claim=course.claim)
            raise

    def _begun(self, asked: str) -> tuple[Replay, _Course]:
        claim = uuid.uuid4().hex
        known = [each for each in self._book.of(asked) if each.state in UNFINISHED]
        if known:
            if is_alive(known[-1], self._abandoned_after):
                raise being_built(known[-1])
            claim_place(self._site, asked)
            course = _course_of(known[-1].detail, claim)
            now = known[-1].now(State.BUILDING, detail=course.detail)
            before = str(known[-1].detail[CLAIM])
            return self._book.record(now, after=UNFINISHED, claim=before), course
        remove_abandoned(self._site, asked)
        course = _Course(claim=claim, up_to=derived_subject(self._site, asked).up_to)
        claim_place(self._site, asked)
        begun = self._book.begin(
            Replay(
                name=asked,
                generation=next_generation(self._site, asked),
                base=0,
                state=State.BUILDING,
                epoch=Epoch(0),
                include_late=False,
                text="",
                base_text="",
                detail=course.detail,
            )
        )
        remove_older(self._site, begun)
        return begun, course

    def _made(self, replay: Replay, subject: DerivedSubject, course: _Course) -> Replay:
        path = generation_path(self._site.place, replay.name, replay.generation)
        # Facts of a current table lie beside it, those of a typed one are the table.
        lake = DerivedLake(self._site.lake.root, name=subject.name, made=path)
        tables = Tables()
        if not self._facts(replay, subject, course, lake, tables):
            return replay.now(State.PAUSED, detail=course.detail)
        if subject.kind == "current":
            NewestRows(lake, tables, self._schemas, subject, path).make()
        elif subject.history is not None:
            HistoryTables(self._spark(), lake, tables).fold(subject.history, subject.up_to)
        if tables.open(path) is None:
            live = self._site.tables.open(self._site.lake.path(subject.name))
            assert live is not None, "it was there when the build began"
            tables.ensure(path, schema_of(live))
        put_in_place(self._site, replay, subject.up_to)
        failpoints.hit(failpoints.REPLAY_AFTER_BUILD)
        storage.remove(f"{path}/_beside")
        done = replay.now(State.BUILT, epoch=subject.up_to, detail=course.detail)
        return self._book.record(done, after=(State.BUILDING,), claim=course.claim)

    def _facts(
        self,
        replay: Replay,
        subject: DerivedSubject,
        course: _Course,
        lake: DerivedLake,
        tables: Tables,
    ) -> bool:
        """Append the facts of all epochs; False where somebody paused it on the way."""
        manifest = self._site.manifest
        last = subject.of(manifest.at(course.up_to))
        typed = TypedTables(lake, tables, self._schemas, last=FactsAlone(lake, tables))
        steps = TypedSteps(lake, tables, manifest, typed, anew=True)
        counts = log_rows(self._site, subject)
        began, before = time.monotonic(), sum(n for e, n in counts.items() if e <= course.epoch)
        wanted, earlier = {*subject.needed}.__contains__, course.seconds
        while course.epoch < course.up_to:
            to = within_budget(manifest, course.epoch, last, most=self._most_rows)
            attempts = Attempts()
            steps.bring(attempts, course.tables, course.epoch, subject.of(to), wanted)
            for error in attempts.failed.values():
                raise error
            failpoints.hit(failpoints.REPLAY_BEFORE_SLICE)
            course.tables |= attempts.done
            course.epoch, spent = to.epoch, time.monotonic() - began
            course.rows = sum(n for e, n in counts.items() if e <= course.epoch)
            course.seconds = earlier + spent
            self._tell(replay.name, course.rows, sum(counts.values()), before, spent)
            if self._paused(replay):
                return False
            now = replay.now(State.BUILDING, detail=course.detail)
            self._book.record(now, after=(State.BUILDING,), claim=course.claim)
            failpoints.hit(failpoints.REPLAY_AFTER_SLICE)
        return True

    def _paused(self, replay: Replay) -> bool:
        known = self._book.known(replay.name, replay.generation)
        return known is not None and known.state is State.PAUSED

    def _tell(self, name: str, done: int, rows: int, before: int, spent: float) -> None:
        rate = (done - before) / max(spent, 1e-6)
        left = None if rate <= 0 else (rows - done) / rate
        eta = None if left is None else (left * (1 - _DOUBT), left * (1 + _DOUBT))
        told = DerivationProgress(what=name, done=done, rows=rows, rate=rate, eta_s=eta)
        self._report(told)
