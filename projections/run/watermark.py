"""Up to which moment the inputs of a projection have brought all that is in time.

Rows of a stream that come from epoch E+1 on and are older than its watermark at E, minus its
lateness, are late. So what ended before that is final. Of several streams the least counts.

A partition in which nothing was ever written, up to the epoch's end, is not waited for.

A partition that brought nothing newer for the source's `idle_timeout` is not waited for, nor is a
stream of which all partitions are so; where all streams are, the greatest of their moments counts.
Both are judged by rows of the manifest alone, so that whoever asks for an epoch gets one answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from kernel.positions import Epoch, Offsets
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Committed
from pipeline.position.progress import Progress, Watermarks

_STEP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTerms:
    """What counts as late in an input. `name` is that of its watermark."""

    name: str
    lateness: timedelta
    idle_timeout: timedelta | None = None


def ended_up_to(manifest: Manifest, epoch: Epoch, terms: Iterable[StreamTerms]) -> int | None:
    """Return the moment, in microseconds since 1970, up to which all is there at an epoch.

    None while a stream has not been heard of, and is not idle either.
    """
    done = manifest.at(epoch)
    now = _without_empty(_watermarks(done), done.end)
    busy: list[int] = []
    idle: list[int] = []
    for each in dict.fromkeys(terms):
        mark, rests = _mark(now, _before(manifest, done, each.idle_timeout), each.name)
        if mark is None and not rests:
            return None
        if mark is not None:
            ended = mark - each.lateness // timedelta(microseconds=1)
            (idle if rests else busy).append(ended)
    return min(busy) if busy else max(idle, default=None)


def greater(one: int | None, other: int | None) -> int | None:
    """Return the later of two moments; None stands for the beginning."""
    known = [each for each in (one, other) if each is not None]
    return max(known, default=None)


def _mark(now: Watermarks, before: Watermarks | None, name: str) -> tuple[int | None, bool]:
    """Return a stream's watermark, and whether all of it is idle since `before`."""
    if before is None:
        return now.of(name), False
    places, old = now.seen.get(name, {}), before.seen.get(name, {})
    moving = [time for place, time in places.items() if old.get(place) != time]
    return (min(moving), False) if moving else (max(places.values(), default=None), True)


def _without_empty(marks: Watermarks, end: Offsets) -> Watermarks:
    """Return watermarks that do not wait for partitions which were read and have no record.

    All events of one stream are in one partition, so that the others may stay empty for ever.
    """
    waited = dict(marks.partitions)
    for name, places in marks.seen.items():
        topics = {place.rpartition("/")[0] for place in places}
        empty = {
            f"{topic}/{number}"
            for topic in topics
            for number, next_offset in end.get(topic, {}).items()
            if next_offset == 0
        }
        waited[name] = waited.get(name, 1) - len(empty - places.keys())
    return Watermarks(seen=marks.seen, partitions=waited)


def _before(manifest: Manifest, done: Committed, timeout: timedelta | None) -> Watermarks | None:
    """Return the watermarks that there were when a timeout began that ends with an epoch."""
    if timeout is None:
        return None
    upper, step = Epoch(done.epoch - 1), _STEP
    while upper > 0:
        lower = Epoch(max(upper - step, 0))
        for each in reversed(manifest.between(lower, upper)):
            if each.at <= done.at - timeout:
                return _watermarks(each)
        upper, step = lower, step * 4
    return None


def _watermarks(done: Committed) -> Watermarks:
    return Progress.from_json(done.progress).watermarks
