"""The eventful part: flights are posted, rows of the source change, the pipeline dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

from examples.flights import source_database
from examples.flights.crash import Killer, finished_as_bound
from examples.flights.narration import DemoCheck, Rate
from examples.flights.poster import Poster, Tally
from examples.flights.posting_order import PostedEvent
from examples.flights.scene import DemoStopwatch, Scene

_KILL_AT = 0.35
_BAIT_EVENTS = 200
"""Posted one by one until the pipeline died: all others may be through before it was caught."""
_BAIT_EVERY_S = 0.25
_TAIL_EVENTS = 300
"""The last events are posted one by one, to measure how fresh the tables are."""
_TAIL_PER_S = 30.0


def post_flights(scene: Scene) -> None:
    """Post all events but those held back, and make everything happen that happens meanwhile."""
    total = scene.events - len(scene.river.held_back)
    scene.narration.step(f"Posting {total:,} events; meanwhile rows change and the pipeline dies")
    bulk = total - _TAIL_EVENTS
    events = scene.river.events()
    watch = DemoStopwatch()
    pipeline_url = scene.found.required("pipeline.url")
    killer = Killer(scene.folder, scene.lake, pipeline_url=pipeline_url)
    with scene.poster() as poster:
        meanwhile = Meanwhile(scene, killer, bulk)
        poster.post(islice(events, bulk - _BAIT_EVENTS), meanwhile)
        scene.posted_in_bulk, scene.posting_s = bulk - _BAIT_EVENTS, watch.seconds
        scene.narration.say(
            f"{scene.posted_in_bulk:,} acknowledged in {scene.posting_s:.1f} s, "
            f"{scene.posted_in_bulk / scene.posting_s:,.0f}/s, "
            f"{scene.tally.requests:,} requests, {scene.tally.retries} sent again"
        )
        bait = islice(events, _BAIT_EVENTS)
        while killer.waits(_BAIT_EVERY_S):
            poster.post(islice(bait, 1), meanwhile)
        poster.post(bait, meanwhile)
        _tell_of_crash(scene, killer)
        scene.catch_up()
        scene.through_s = watch.seconds
        scene.narration.say(f"every table has them {watch.seconds:.1f} s after the first post")
        _post_steadily(scene, poster, events)


class Meanwhile:
    """Called after each answer: changes rows at their time, lets the pipeline die once."""

    def __init__(self, scene: Scene, killer: Killer, total: int) -> None:
        self._scene = scene
        self._killer = killer
        self._total = total
        self._todo = list(scene.script)
        self._rate = Rate(total)

    def __call__(self, tally: Tally) -> None:
        """Look at how far the posting is."""
        share = tally.events / self._total
        while self._todo and self._todo[0].after <= share:
            amendment = self._todo.pop(0)
            source_database.amend(self._scene.source_dsn, amendment)
            self._scene.narration.say(f"{share:.0%}: the source changes, {amendment.title}")
        if share >= _KILL_AT and not self._killer.started:
            self._killer.start()
        self._scene.narration.progress(self._rate.describe(tally.events))


def _tell_of_crash(scene: Scene, killer: Killer) -> None:
    killed = killer.result()
    epoch = killed.bound.epoch
    scene.narration.say(
        f"kill -9 hit the pipeline (process {killed.pid}) in mid-epoch {epoch}: bound to its "
        f"offsets, not committed. A new process was ready {killed.ready_after_s:.1f} s later"
    )
    scene.catch_up(projections=())
    scene.narration.check(
        DemoCheck(
            title=f"epoch {epoch} was finished by the new process",
            holds=finished_as_bound(scene.lake, killed),
            found="over exactly the offsets that it had been bound to",
        )
    )


def _post_steadily(scene: Scene, poster: Poster, events: Iterator[PostedEvent]) -> None:
    before = scene.tally.last_position
    scene.narration.say(f"the last {_TAIL_EVENTS} at {_TAIL_PER_S:.0f}/s, to measure freshness")
    watch = DemoStopwatch()
    for sent, event in enumerate(events):
        pause = sent / _TAIL_PER_S - watch.seconds
        if pause > 0:
            time.sleep(pause)
        poster.post([event])
    scene.tail = (before, scene.tally.last_position)
