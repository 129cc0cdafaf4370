"""Builds a generation beside the live one, slice by slice, so that a build can end at any moment.

The steps of a slice, and what a crash between them leaves:
1. compute the slice from the inputs as they were at the build's epoch: nothing is there yet;
2. one commit appends it to the generation's table, guarded by its number: from here on it is done,
   whatever the book says;
3. the book: how many are done and how long each took.
After the last one an empty commit says up to which epoch the table is, and the book that it is
built. Whoever goes on after a crash asks the table how many slices it has.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from kernel import failpoints
from kernel.errors import Cancelled, Conflict, is_no_room
from kernel.positions import Epoch
from lake.sessions import Spark, SparkOnDemand
from pipeline.executor import ExecutorChoice
from projections.run.input_rows import input_bytes
from projections.run.projector import Projector
from projections.run.targets import Target, at_table
from projections.run.whole_tables import BOUNDED_BYTES
from projections.sql.statements.lineage import read_by
from replay.bases import Base, base_of, parts_of
from replay.book import READY, UNFINISHED, Replay, ReplayBook, State
from replay.cancel import ABANDONED_AFTER, is_alive, remove_abandoned, remove_files
from replay.copies import claim_place, put_in_place, read_elsewhere, remove_older
from replay.course import Course, Report, age_at
from replay.driver_slices import DriverSlices
from replay.mends import mended
from replay.planning import epoch_to_build, input_rows, next_generation
from replay.progress import watched
from replay.rates import rates_for
from replay.resumption import (
    being_built,
    needing,
    no_room,
    refuse_held,
    refuse_other,
    slice_failed,
    stale,
    unfinished,
)
from replay.slice_writer import FAILURES, SliceWriter
from replay.slices import (
    SlicedBuild,
    Whole,
    build_of,
    copying,
    fingerprint_of,
    slice_guard,
    slicing_of,
)
from replay.starts import BEGINNING, Start
from replay.subject import (
    Site,
    Subject,
    ended_before,
    entry_of,
    generation_target,
    reachable,
    subject_of,
)
from replay.swap_place import refuse_half_swapped

RECORD_EVERY_S = 5.0


class Builder:
    """Builds and brings forward generations: small slices in this process, others in Spark.

    The live generation is only read; a crash or a cancellation leaves it untouched.
    """

    def __init__(
        self,
        spark: Spark,
        site: Site,
        report: Report,
        *,
        choice: ExecutorChoice | None = None,
        record_every_s: float = RECORD_EVERY_S,
        abandoned_after: timedelta = ABANDONED_AFTER,
        bounded_bytes: int = BOUNDED_BYTES,
        reserve_bytes: int = 0,
    ) -> None:
        """`choice`: who makes slices; `reserve_bytes` stay free where rows are laid apart."""
        # Temporary views of its own: the session may serve others too.
        self._spark = SparkOnDemand.of(spark).beside()
        self._site = site
        self._book = ReplayBook(site.place, site.tables)
        common = site.lake, site.tables
        self._projector = Projector(self._spark, *common, site.manifest, choice=choice)
        self._builds = self._projector.builds
        slices = DriverSlices(self._projector, site.tables, reserve_bytes=reserve_bytes)
        self._writer = SliceWriter(
            self._spark, self._projector, *common, slices, bounded_bytes=bounded_bytes
        )
        self._report = report
        self._record_every_s = record_every_s
        self._abandoned_after = abandoned_after

    def build(
        self,
        name: str,
        *,
        text: str | None = None,
        include_late: bool = False,
        slices: int | None = None,
        rate: float | None = None,
        start: Start = BEGINNING,
        agreed: Callable[[], None] = lambda: None,
    ) -> Replay:
        """Build a new generation up to the live one's epoch, or go on with one that died.

        `text` is another query for it. A generation that takes late rows hands that on. `rate`:
        input rows a second that it may take. `start`: the rows to begin with; see `replay.bases`.
        `agreed` is called once the tables that are read are pinned: it raises for a stale plan.
        Returns it built, or paused by somebody. Raises `Conflict` when another build of this
        projection is unfinished, or it was cancelled.
        """
        if (begun := unfinished(self._book, name, self._abandoned_after)) is not None:
            entry = entry_of(self._site, name)
            refuse_other(begun, entry, text, include_late=include_late, start=start, slices=slices)
            return self.resume(name, rate=rate)
        remove_abandoned(self._site, name)
        subject = subject_of(self._site, name, text)
        refuse_half_swapped(self._site, name, subject.entry.generation)
        epoch = epoch_to_build(self._site, subject)
        base = base_of(self._site, subject, start, up_to=epoch, include_late=include_late)
        if base is not None and self._site.into is not None:
            epoch = base.epoch  # It is copied as it was then.
        build = self._cut(subject, epoch, base, slices, rate)
        replay = Replay(
            name=name,
            generation=next_generation(self._site, name),
            base=subject.entry.generation,
            state=State.BUILDING,
            epoch=Epoch(0),
            include_late=include_late or subject.entry.include_late,
            text=text or subject.entry.text,
            base_text=subject.entry.text,
            detail=build.detail,
        )
        target = self._target(replay, subject, epoch)
        build = replace(build, read=read_elsewhere(self._site, target))
        agreed()  # What is swapped from here on, the build does not see.
        claim_place(self._site, name)
        begun = self._book.begin(replace(replay, detail=build.detail))
        remove_older(self._site, begun)
        return self._go_on(begun, subject, build, target)

    def resume(
        self,
        name: str,
        *,
        generation: int | None = None,
        text: str | None = None,
        rate: float | None = None,
    ) -> Replay:
        """Go on with a build that was paused, stopped by an error or left by a process that died.

        At most one slice is computed again. `text`: a query that was mended, see `replay.mends`;
        `rate`: another one than it had. Raises `NotFound` where there is none, `Conflict` while its
        process lives, where the query, its meaning or the live generation changed, and where the
        mended one may give other rows.
        """
        replay = self._book.newest(name, *UNFINISHED, generation=generation)
        if is_alive(replay, self._abandoned_after):
            raise being_built(replay)
        claim_place(self._site, name)  # Another lake may have a projection of that name, too.
        before = build_of(replay.detail)
        if before is None:
            raise stale(replay, "it was begun by a version that built without slices")
        subject = subject_of(self._site, name, replay.text)
        refuse_half_swapped(self._site, name, subject.entry.generation)
        if subject.entry.generation != replay.base:
            raise stale(replay, f"generation {subject.entry.generation} went live since")
        if fingerprint_of(subject.plan, before.slicing) != before.fingerprint:
            raise stale(replay, "its query, its inputs or what they mean changed since")
        build = replace(before, claim=uuid.uuid4().hex, rate=before.rate if rate is None else rate)
        if text is not None:
            subject = mended(self._site, replay, subject, before.slicing, text)
            build = replace(build, fingerprint=fingerprint_of(subject.plan, before.slicing))
            replay = replace(replay, text=text)
        with needing(replay):
            if build.base is not None:
                parts_of(self._site, name, build.base)
            target = self._target(replay, subject, build.up_to)
        if build.read != read_elsewhere(self._site, target):
            raise stale(replay, "another projection that it reads was written again since")
        now = replay.now(State.BUILDING, detail=build.detail)
        self._book.record(now, after=UNFINISHED, claim=before.claim)
        return self._go_on(now, subject, build, target)

    def catch_up(self, replay: Replay, up_to: Epoch, *, live: bool = False) -> Replay:
        """Bring a built generation forward to an epoch, incrementally, as the live runner does.

        `live`: it is the table. Not beyond the other projections that it reads, whose rows change
        at the epoch where they stand, too. Raises `Conflict` where a held table keeps it.
        """
        if replay.epoch > up_to:
            return replay
        subject, wanted = subject_of(self._site, replay.name, replay.text), up_to
        up_to = min(up_to, reachable(self._site, subject))
        again = replay.epoch == up_to and bool(read_by(subject.plan))
        if replay.epoch >= up_to and not again:
            return self._at_its_head(replay, subject, wanted)
        target = self._target(replay, subject, up_to)
        if live:
            target = at_table(target, self._site.lake, replay.name, replay.generation)
        run = self._projector.run(subject.plan, target, subject.catalog, up_to)
        if again and not run.rows + run.deleted:
            return self._at_its_head(replay, subject, wanted)
        now = replay.now(replay.state, epoch=up_to, detail=replay.detail)
        after = READY if replay.state in READY else (replay.state,)  # It may be taken back since.
        return self._book.record(now, after=after)

    def _at_its_head(self, replay: Replay, subject: Subject, wanted: Epoch) -> Replay:
        """Return a generation that is as far as it can be. Raises `Conflict` for a held table."""
        if replay.epoch < wanted:
            refuse_held(self._site, f"generation {replay.generation} of {replay.name}", subject)
        return replay

    def _cut(
        self,
        subject: Subject,
        epoch: Epoch,
        base: Base | None,
        slices: int | None,
        rate: float | None,
    ) -> SlicedBuild:
        """Cut a build into slices, none of which is done. Raises `InvalidRequest`."""
        after = Epoch(0) if base is None else base.epoch
        rows, later = input_rows(self._site, subject, epoch, after=after)
        since = 0
        if base is None:
            size = self._bytes_of(subject)
            here = self._builds.suits(subject.plan, subject.catalog, size)
            slicing = slicing_of(subject.plan, rows, slices=slices, rate=rate, size=size, here=here)
        else:
            parts = parts_of(self._site, subject.entry.name, base)
            since, rows = rows, base.rows
            slicing = copying(parts, slices, rate, where=base.where)
            if base.where is not None:
                self._writer.ask(parts[0], subject.plan.key, base.where)
        return SlicedBuild(
            claim=uuid.uuid4().hex,
            up_to=epoch,
            slicing=slicing,
            done=0,
            rows=rows,
            later=later,
            seconds=(),
            fingerprint=fingerprint_of(subject.plan, slicing),
            rate=rate,
            ended_us=ended_before(self._site, subject, epoch),
            base=base,
            since=since,
            strides=base is None and slices is None and rate is None,
        )

    def _go_on(
        self, replay: Replay, subject: Subject, build: SlicedBuild, target: Target
    ) -> Replay:
        course = Course(
            book=self._book,
            replay=replay,
            build=build,
            report=self._report,
            every_s=self._record_every_s,
            age_s=age_at(self._site.manifest, build.up_to),
            rates=rates_for(replay.name, self._book.built()),
        )
        try:
            return self._slices(course, subject, target)
        except Cancelled:
            if course.lost:
                # Jobs are cancelled then as well; the files are the other process's.
                raise course.taken_over() from None
            raise self._cancelled(replay) from None
        except (Exception, KeyboardInterrupt) as error:
            if not course.stopped(error):
                raise self._cancelled(replay) from error
            if is_no_room(error):
                raise no_room(replay, error) from error
            raise
        finally:
            self._writer.release()

    def _slices(self, course: Course, subject: Subject, target: Target) -> Replay:
        replay, build = course.replay, course.build
        whole = Whole(
            plan=subject.plan,
            target=target,
            catalog=subject.catalog,
            up_to=build.up_to,
            slicing=build.slicing,
            input_bytes=self._bytes_of(subject),
            base=build.base,
            parts=parts_of(self._site, replay.name, build.base) if build.base else (),
        )
        # The table knows what the book may have missed.
        first = self._writer.done(whole, slice_guard(replay.name, replay.generation, 0))
        course.found(first)
        course.sizes = whole.sizes
        with needing(replay):
            self._lay_apart(course, whole)
        while course.build.done < build.slicing.slices:
            course.wait()
            if course.pausing:
                return course.paused()
            with needing(replay):
                many = self._next(course, whole)
            course.finished(course.running_s, many)
        group = f"replay-{replay.name}-{replay.generation}-finish"
        with watched(self._spark, group, course.tick, self._builds.work):
            self._finish(course.replay, whole, resumed=first > 0)
        failpoints.hit(failpoints.REPLAY_AFTER_BUILD)
        return course.built()

    def _lay_apart(self, course: Course, whole: Whole) -> None:
        """Have the inputs read once for all slices, where each would read them again."""
        replay, pieces = course.replay, self._writer.pieces(whole, course.build)
        if not pieces:
            return
        course.laid = 0
        group = f"replay-{replay.name}-{replay.generation}-apart"
        for piece in pieces:
            course.wait()
            if course.pausing:
                return
            with watched(self._spark, group, course.tick, self._builds.work):
                if not self._writer.lay(whole, piece):
                    break
            course.lays(piece.rows)
        course.laid_apart()

    def _next(self, course: Course, whole: Whole) -> int:
        """Write the next slices, in one commit; return how many more there are by now."""
        replay, number = course.replay, course.build.done
        many = course.stride = min(course.stride, self._writer.most_at_once(whole))
        group = f"replay-{replay.name}-{replay.generation}-{number}"
        guard = slice_guard(replay.name, replay.generation, number, many)
        try:
            with watched(self._spark, group, course.tick, self._builds.work):
                self._writer.write(whole, number, guard, many)
        except FAILURES as error:
            if is_no_room(error):
                raise
            if many > 1:
                # What can be computed before the row that cannot is there when the build stops.
                course.stride = 1
                return self._next(course, whole)
            with watched(self._spark, f"{group}-search", course.tick, self._builds.work):
                key = self._writer.failing_key(whole, number)
            raise slice_failed(replay, number, key, error) from error
        # More, where a process that this one took over from came first.
        return self._writer.done(whole, guard) - number

    def _finish(self, replay: Replay, whole: Whole, *, resumed: bool) -> None:
        try:
            if self._site.into is not None:
                put_in_place(self._site, replay, self._writer.close(whole))
            else:
                self._writer.finish(whole, resumed=resumed)
        except FAILURES as error:
            raise slice_failed(replay, whole.slicing.slices, None, error) from error

    def _target(self, replay: Replay, subject: Subject, up_to: Epoch) -> Target:
        begun = build_of(replay.detail)
        return generation_target(
            self._site,
            subject,
            replay.generation,
            up_to,
            include_late=replay.include_late,
            ended_us=None if begun is None else begun.ended_us,
            computed=self._site.into is None or begun is None or begun.base is None,
        )

    def _bytes_of(self, subject: Subject) -> int:
        return input_bytes(self._site.lake, self._site.tables, subject.plan, subject.catalog)

    def _cancelled(self, replay: Replay) -> Conflict:
        remove_files(self._site, replay)
        return Conflict(
            f"the build of generation {replay.generation} of {replay.name} was cancelled",
            remedy=f"penstock replay apply {replay.name}",
        )
