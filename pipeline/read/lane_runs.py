"""The runs of one ingest: one for all lanes that keep up, and one for each that is apart.

All of them make their epochs in turns, in one manifest. What ends the run of a lane that is apart
before its turn is that lane's alone: it is held, and begun again after a pause. The common run goes
on, whoever leaves it or joins it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from kernel.errors import Unavailable
from pipeline.commit.manifest import Manifest
from pipeline.lanes.lane_book import LaneBook
from pipeline.read.gaps import Gap
from pipeline.read.stream import IngestRun
from pipeline.read.turns import Turn

log = logging.getLogger("penstock.pipeline")

_LOOKS_BETWEEN = 10
"""Looks at a lane that is apart between two questions to the broker how far it is behind."""
_PART = 10
"""Decoding this part of what a lane takes at once by itself takes as long as the rest of an epoch:
with more it is parted from others."""
_FEW = 4
"""A lane keeps up that has fewer unread records than this part of what parts it from others."""


class NewRun(Protocol):
    """Makes a run that has not begun."""

    def __call__(
        self,
        *,
        without: frozenset[str],
        checkpoints: Path,
        max_records: int,
        turn: Turn,
        apart: bool,
        parting: LaneBook | None,
        much: int,
    ) -> IngestRun:
        """Return it: see `IngestRun`."""
        ...


class LaneRuns:
    """Begins, watches and ends the streams. `book` says which lanes are apart, over restarts."""

    def __init__(
        self,
        spark: SparkSession,
        new_run: NewRun,
        book: LaneBook,
        *,
        lanes: frozenset[str],
        checkpoints: Path,
        max_records: int,
        lane_records: int,
        much: int | None = None,
    ) -> None:
        """A lane by itself takes up to `lane_records` at once.

        It is parted from others that has more than `much` records in a batch with them.
        """
        self._spark = spark
        self._new_run = new_run
        self._book = book
        book.keep(lanes)
        self._lanes = lanes
        self._checkpoints = checkpoints
        self._max_records = max_records
        self._lane_records = lane_records
        self._much = max(1, lane_records // _PART) if much is None else much
        self._turn = Turn()
        self._apart: dict[str, IngestRun] = {}
        self._looks = 0
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        self.together = self._made(book.names)

    @property
    def gaps(self) -> Mapping[str, list[Gap]]:
        """What Kafka has lost, by lane, as it was when the common stream began."""
        return self.together.gaps

    @property
    def failed(self) -> bool:
        """Whether an epoch of any stream failed: the next look tells of it."""
        return self._turn.error is not None

    def finish_unfinished(self, manifest: Manifest) -> None:
        """Finish the epoch that was bound; lanes that this could not be done with are held.

        Those that are apart belong to it: the log may have rows of theirs already.
        """
        run = self._made(self._book.names - self._book.awaited())
        with closing(run):
            run.finish_unfinished(manifest)
        for lane, error in run.refused.items():
            self._book.refuse(lane, error)

    def start(self) -> None:
        """Begin to read. Raises `Unavailable` while there is nothing to read, and nothing to try.

        While all that there is to be read is in lanes that are apart, these alone are read. One of
        which Kafka tells nothing just now is held, and tried again by itself.
        """
        self.together.close()
        self.together = self._made(frozenset())
        apart = self._book.names
        try:
            self.together.start()
        except Unavailable:
            waits = self._book.awaited() | (self.together.silent.keys() - apart)
            if not waits & self._lanes:
                raise
        for lane, error in self.together.silent.items():
            if lane not in apart:
                self._book.refuse(lane, error)

    def look(self) -> None:
        """Look after all streams. Raises what ended the common one, or an epoch of any."""
        self._looks += 1
        self._refuse_failed_epoch()
        for lane in list(self._apart):
            self._look_at(lane)
        for lane in self._book.due():
            if lane in self._lanes and lane not in self._apart:
                self._begin(lane)
        if self.together.active:
            return
        self._refuse_ended()
        if self._looks % _LOOKS_BETWEEN == 0:
            # There was nothing to read but lanes that are apart: there may be more by now.
            self.start()

    def stop(self) -> None:
        """End all streams between two epochs; an epoch under way is finished first."""
        with ExitStack() as ending:
            for run in [self.together, *self._apart.values()]:
                ending.callback(run.stop if run.active else run.close)
        self._apart = {}

    def _look_at(self, lane: str) -> None:
        run = self._apart[lane]
        if not run.active:
            self._refuse_failed_epoch()
            error = run.error or Unavailable("its stream ended")
            run.close()
            del self._apart[lane]
            self._book.refuse(lane, error)
            return
        if run.epochs:
            self._book.reads(lane)
        if self._looks % _LOOKS_BETWEEN:
            return
        try:
            few = run.unread() <= self._much // _FEW
        except Unavailable:
            return
        if self._book.keeps_up(lane, now=few):
            self._join(lane, run)

    def _join(self, lane: str, run: IngestRun) -> None:
        """Have a lane read with the others, where these do not miss what was planned for it."""

        def joined() -> None:
            run.leave()
            self._book.join(lane)

        if lane in self.together.lanes and self.together.active:
            with self._turn:
                if not self.together.reach.take_over(lane, run.reach.taken, joined):
                    return
            self._end(lane, run)
            return
        # Kafka told nothing of it when the others began: they begin anew, to read it too.
        self._end(lane, run)
        self._book.join(lane)
        if self.together.active:
            self.together.stop()
        self._refuse_ended()
        self.start()

    def _end(self, lane: str, run: IngestRun) -> None:
        log.info("lane %s keeps up: it is read with the others", lane)
        run.stop()
        del self._apart[lane]

    def _refuse_failed_epoch(self) -> None:
        """Raise what failed amid an epoch of any stream: all of ingest has to begin again."""
        if self._turn.error is not None:
            raise self._turn.error

    def _begin(self, lane: str) -> None:
        run = self._made(self._lanes - {lane}, apart=lane)
        try:
            run.start()
        except Exception as error:
            run.close()
            self._book.refuse(lane, error)
        else:
            self._apart[lane] = run

    def _refuse_ended(self) -> None:
        """Raise what ended the common stream, or failed amid an epoch of any."""
        self._refuse_failed_epoch()
        if self.together.error is not None:
            raise self.together.error

    def _made(self, without: frozenset[str], *, apart: str | None = None) -> IngestRun:
        """Return a run over all lanes but some, or over the one that is `apart` from others."""
        return self._new_run(
            without=without,
            checkpoints=self._checkpoints / ("together" if apart is None else f"lane-{apart}"),
            max_records=self._max_records if apart is None else self._lane_records,
            turn=self._turn,
            apart=apart is not None,
            parting=self._book if apart is None else None,
            much=self._much,
        )
