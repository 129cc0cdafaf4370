"""Builds a generation beside the live one, by the live runner's own code on the whole range."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from kernel import failpoints
from kernel.errors import Cancelled, Conflict, InvalidRequest
from kernel.positions import Epoch
from projections.runner.catalog import Entry
from projections.runner.projector import CLOSED, Projector, Target
from replay.book import READY, Replay, ReplayBook, State
from replay.cancel import ABANDONED_AFTER, remove_files
from replay.generations import live_app
from replay.planning import build_epoch, next_generation
from replay.progress import Progress, watched
from replay.subject import (
    Site,
    Subject,
    generation_target,
    input_tables,
    reachable,
    subject_of,
    typed_head,
)

RECORD_EVERY_S = 5.0

Report = Callable[[Progress], None]


@dataclass(slots=True)
class _Recorder:
    """Shows every tick, and keeps the book informed every few seconds."""

    book: ReplayBook
    replay: Replay
    report: Report
    every_s: float
    recorded_at: float

    def tick(self, progress: Progress) -> bool:
        """Take note; return False once the generation was cancelled."""
        self.report(progress)
        if time.monotonic() - self.recorded_at < self.every_s:
            return True
        self.recorded_at = time.monotonic()
        try:
            self.book.record(self.replay.now(State.BUILDING, detail=asdict(progress)))
        except (Cancelled, Conflict):
            return False
        return True


class Builder:
    """Builds and brings forward generations in one Spark session.

    The live generation is only read; a crash or a cancellation leaves it untouched.
    """

    def __init__(
        self,
        spark: SparkSession,
        site: Site,
        report: Report,
        *,
        record_every_s: float = RECORD_EVERY_S,
        abandoned_after: timedelta = ABANDONED_AFTER,
    ) -> None:
        # Temporary views of its own: the session may serve others too.
        self._spark = spark.newSession()
        self._site = site
        self._book = ReplayBook(site.lake, site.tables)
        self._projector = Projector(self._spark, site.lake, site.tables, site.manifest)
        self._report = report
        self._record_every_s = record_every_s
        self._abandoned_after = abandoned_after

    def build(self, name: str, *, text: str | None = None, include_late: bool = False) -> Replay:
        """Build a new generation up to the live one's epoch.

        `text` is another query for it. A generation that takes late rows hands that on. Raises
        `Conflict` when a build of this projection is under way or was cancelled meanwhile.
        """
        self._refuse_second(name)
        subject = subject_of(self._site, name, text)
        self._refuse_half_swapped(subject.entry)
        epoch = build_epoch(self._site, subject)
        if not epoch:
            raise InvalidRequest(
                f"{name} has nothing to be built from yet", remedy="penstock wait --caught-up"
            )
        replay = self._book.record(
            Replay(
                name=name,
                generation=next_generation(self._site, name),
                base=subject.entry.generation,
                state=State.BUILDING,
                epoch=Epoch(0),
                include_late=include_late or subject.entry.include_late,
                text=text or subject.entry.text,
                base_text=subject.entry.text,
            )
        )
        try:
            built = self._run(replay, subject, epoch)
            failpoints.hit(failpoints.REPLAY_AFTER_BUILD)
            return self._book.record(built)
        except Cancelled:
            remove_files(self._site, replay)
            raise Conflict(
                f"the build of generation {replay.generation} of {name} was cancelled",
                remedy=f"penstock replay apply {name}",
            ) from None
        except Exception as error:
            with contextlib.suppress(Cancelled, Conflict):  # Somebody else ended it.
                self._book.record(replay.now(State.FAILED, detail={"error": str(error)[:2000]}))
            remove_files(self._site, replay)
            raise

    def catch_up(self, replay: Replay, up_to: Epoch) -> Replay:
        """Bring a built generation forward to an epoch, incrementally, as the live runner does.

        Not beyond the other projections that it reads.
        """
        if replay.epoch >= up_to:
            return replay
        subject = subject_of(self._site, replay.name, replay.text)
        up_to = min(up_to, reachable(self._site, subject))
        if replay.epoch >= up_to:
            return replay
        self._project(replay, subject, up_to)
        now = replay.now(replay.state, epoch=up_to, detail=replay.detail)
        return self._book.record(now, after=READY if replay.state in READY else None)

    def head(self) -> Epoch:
        """Return the epoch up to which a generation can be brought."""
        return typed_head(self._site)

    def _run(self, replay: Replay, subject: Subject, epoch: Epoch) -> Replay:
        rows = self._input_rows(subject)
        recorder = _Recorder(
            self._book, replay, self._report, self._record_every_s, time.monotonic()
        )
        started = time.monotonic()
        group = f"replay-{replay.name}-{replay.generation}"
        with watched(self._spark, group, rows, self._age_s(epoch), recorder.tick):
            self._project(replay, subject, epoch)
        seconds = round(time.monotonic() - started, 3)
        return replay.now(State.BUILT, epoch=epoch, detail={"rows": rows, "seconds": seconds})

    def _project(self, replay: Replay, subject: Subject, up_to: Epoch) -> None:
        self._projector.run(
            subject.plan, self._target(replay, subject, up_to), subject.catalog, up_to
        )

    def _target(self, replay: Replay, subject: Subject, up_to: Epoch) -> Target:
        return generation_target(
            self._site, subject, replay.generation, up_to, include_late=replay.include_late
        )

    def _input_rows(self, subject: Subject) -> int:
        tables = [self._site.tables.open(self._site.lake.path(n)) for n in input_tables(subject)]
        return sum(int(table.count()) for table in tables if table is not None)

    def _age_s(self, epoch: Epoch) -> float:
        return (datetime.now(UTC) - self._site.manifest.at(epoch).at).total_seconds()

    def _refuse_half_swapped(self, entry: Entry) -> None:
        stable = self._site.tables.open(self._site.lake.path(f"projection/{entry.name}"))
        live = live_app(entry.name, entry.generation)
        if stable is not None and stable.transaction_version(live) == CLOSED:
            raise Conflict(
                f"a swap or rollback of {entry.name} was interrupted",
                remedy=f"Give the same command again; penstock replay status {entry.name} shows "
                "which it was.",
            )

    def _refuse_second(self, name: str) -> None:
        for other in self._book.of(name):
            if other.state is not State.BUILDING or other.at is None:
                continue
            if datetime.now(UTC) - other.at < self._abandoned_after:
                raise Conflict(
                    f"generation {other.generation} of {name} is being built",
                    remedy=f"Wait for it, or stop it: penstock replay cancel {name}",
                )
            # Whoever built it has not been heard of: it died.
            died = other.now(State.FAILED, detail={"error": "its process ended"})
            self._book.record(died, after=(State.BUILDING,))
            remove_files(self._site, other)
