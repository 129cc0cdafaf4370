"""What the options of `penstock replay events` say: where to, which events, when, at which pace.

Nothing here opens the lake before it must: what is malformed is refused at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from eventstore.service_client import is_loopback
from kernel.clock import moment_of
from kernel.errors import InvalidRequest, NotFound
from kernel.positions import position_of
from replay.elsewhere.pace import AtOnce, AtRate, Gaps, InProportion, Pace
from replay.elsewhere.times import Shift, rate_of, span_of, speed_of
from schemas.text_files import text_of

if TYPE_CHECKING:
    from eventstore.recovery.events import LakeEvents
    from lake.layout import Lake
    from replay.elsewhere.selection import Selection, Survey

_TO = "As --to topic:replayed-orders, --to store:http://127.0.0.1:7170 or --to lake:/data/sandbox"
_SAVEPOINT = "savepoint:"
_GAPS = "As --speed 10x --max-gap 5s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A topic, by its name, another store, by the address of its service, or another lake."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRange:
    """Where events begin and end, as it was written: positions, times, names of savepoints."""

    since: int | str | datetime | None
    until: int | str | datetime | None
    categories: tuple[str, ...]
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How times move: by a span, or so that the first event was recorded at `starting`."""

    shift: Shift
    starting: datetime | None

    def shift_of(self, whole: Survey) -> Shift:
        """Return the span. Raises `InvalidRequest` where a time would leave the calendar."""
        moved = self.shift
        if self.starting is not None:
            moved = Shift(self.starting - whole.recorded[0])
        bounds = (*whole.recorded, *whole.occurred)
        moved.refuse_beyond(min(bounds), max(bounds))
        return moved


def elsewhere_of(to: str, *, partitions: int | None = None, token_file: object = None) -> Elsewhere:
    """Read `--to`, and whether the options beside it are about that. Raises `InvalidRequest`."""
    kind, _, name = to.partition(":")
    if kind not in ("topic", "store", "lake") or not name:
        # An address without store: before it may have a password in it.
        told = repr(kind if "@" in to else to)
        raise InvalidRequest(f"--to {told} is no topic, store or lake", remedy=_TO)
    if kind == "store" and not name.startswith(("http://", "https://")):
        raise InvalidRequest(
            "--to store: wants the address of the store's service, which checks what comes in",
            remedy=_TO,
        )
    if partitions is not None and kind != "topic":
        raise InvalidRequest("--partitions is about a topic", remedy=_TO)
    if token_file is not None and kind != "store":
        raise InvalidRequest("--token-file is about another store", remedy=_TO)
    if kind == "store":
        _refuse_address(name, has_token=token_file is not None)
    return Elsewhere(kind=kind, name=name)


def _refuse_address(url: str, *, has_token: bool) -> None:
    """Raise `InvalidRequest` for no address, for one with a password, and for one without a token.

    The workspace's own token, wherever it is from, is for services of this machine: another one
    could use it here.
    """
    try:
        place = urlsplit(url)
        # A port beyond all ports is told when it is read.
        host = place.hostname if place.port != 0 else None
    except ValueError:
        place, host = urlsplit(""), None
    if "@" in place.netloc:
        raise InvalidRequest(
            "--to store: names a user or a password in its address, which lists of processes show",
            remedy="Give the address alone, and the token by --token-file FILE",
        )
    if host is None:
        raise InvalidRequest("what --to store: names is no address of a service", remedy=_TO)
    if not has_token and not is_loopback(host):
        raise InvalidRequest(
            f"the store at {host} is on another machine, which is not told this workspace's token",
            remedy="Give the other store's own token: --token-file FILE",
        )


def token_of(file: Path) -> str:
    """Read a token from its file. Raises `InvalidRequest` for what no header can carry."""
    token = text_of(file, "a token").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidRequest(
            f"{file} holds no token", remedy="Name a file as the other store's .penstock/token."
        )
    return token


def range_of(
    since: str | None,
    until: str | None,
    categories: list[str] | None,
    streams: list[str] | None,
) -> EventRange:
    """Read which events are asked for. Raises `InvalidRequest`."""
    for name in (*(categories or ()), *(streams or ())):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{name!a} is not UTF-8, as all names are", remedy="penstock stream categories"
            ) from None
    return EventRange(
        since=_place(since, "--from"),
        until=_place(until, "--until"),
        categories=tuple(categories or ()),
        streams=tuple(streams or ()),
    )


def pace_of(rate: str | None, speed: str | None, max_gap: str | None, gaps: Gaps) -> Pace:
    """Read the pace. Raises `InvalidRequest`."""
    if rate is not None and speed is not None:
        raise InvalidRequest("--rate and --speed exclude each other", remedy="Give one of them.")
    if speed is None and (max_gap is not None or gaps is not Gaps.RECORDED):
        raise InvalidRequest(
            "--max-gap and --gaps are about the gaps that --speed keeps",
            remedy=_GAPS,
        )
    if rate is not None:
        return AtRate(per_second=rate_of(rate))
    if speed is None:
        return AtOnce()
    longest = None if max_gap is None else span_of(max_gap, "--max-gap")
    if longest is not None and longest.total_seconds() < 0:
        raise InvalidRequest("--max-gap is below zero", remedy=_GAPS)
    return InProportion(speed=speed_of(speed), gaps=gaps, longest=longest)


def times_of(shift: str | None, starting: str | None) -> Times:
    """Read how times move. Raises `InvalidRequest`."""
    if shift is not None and starting is not None:
        raise InvalidRequest("--shift and --starting exclude each other", remedy="Give one.")
    moved = Shift() if shift is None else Shift(span_of(shift, "--shift"))
    return Times(shift=moved, starting=moment_of(starting))


def selection_of(
    asked: EventRange, log: LakeEvents, lake: Lake, *, but_ending: str | None
) -> Selection:
    """Return which events these are. Raises `InvalidRequest` for a range beyond the log."""
    from replay.elsewhere.selection import Selection

    head = log.contents.head
    chosen = Selection(
        up_to=head,
        categories=asked.categories,
        streams=asked.streams,
        but_ending=but_ending,
    )
    match asked.since:
        case None:
            pass
        case int(position):
            chosen = replace(chosen, after=position - 1)
        case str(name):
            chosen = replace(chosen, after=_kept_head(name, log, lake))
        case moment:
            chosen = replace(chosen, since=moment)
    match asked.until:
        case None:
            pass
        case int(position):
            chosen = replace(chosen, up_to=position)
        case str(name):
            chosen = replace(chosen, up_to=_kept_head(name, log, lake))
        case moment:
            chosen = replace(chosen, until=moment)
    if max(chosen.after + 1, chosen.up_to) > head:
        raise InvalidRequest(
            f"position {max(chosen.after + 1, chosen.up_to)} is beyond the log, which ends at "
            f"{head}",
            remedy="Wait until it is there: penstock wait --caught-up; or give a smaller one.",
        )
    if chosen.after >= chosen.up_to:
        raise InvalidRequest(
            f"the range ends at {chosen.up_to}, before it begins at {chosen.after + 1}",
            remedy="Give --from and --until the other way round.",
        )
    return chosen


def _kept_head(name: str, log: LakeEvents, lake: Lake) -> int:
    """Return the store's last position as of a savepoint. Raises `NotFound`.

    Also where the savepoint knows none: all that there is would go out as what came since.
    """
    from lake.savepoint_states import kept_as
    from lake.tables import Tables
    from pipeline.commit.manifest import Manifest

    kept = kept_as(lake, name)
    heads = kept.heads
    if heads is None:
        try:
            heads = Manifest(lake, Tables()).at(kept.epoch).heads
        except NotFound as error:
            raise NotFound(
                f"the savepoint {name} was taken by a version that did not keep positions, and "
                f"epoch {kept.epoch}, which has them, is not kept any more (lake.retention_days)",
                remedy="Give a position or a time in place of the savepoint.",
            ) from error
    found = log.last_of(heads)
    if found is None:
        raise NotFound(
            f"the savepoint {name} knows no position of this store, {', '.join(log.store_ids)}",
            remedy="Name the ids that the store had then, too, the oldest first: --from-store ID; "
            "or give a position.",
        )
    return found


def _place(text: str | None, option: str) -> int | str | datetime | None:
    if text is None:
        return None
    if text.startswith(_SAVEPOINT):
        return text.removeprefix(_SAVEPOINT)
    position = position_of(text, option)
    if position is None:
        return moment_of(text)
    if position < 1:
        raise InvalidRequest(f"{option} {text}: positions begin with 1", remedy=f"As {option} 1")
    return position
