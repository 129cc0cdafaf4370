"""`penstock replay events`: events once more, into another topic, store or lake.

What is asked for is read before the lake is opened, which takes a second.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli.event_ranges import (
    Elsewhere,
    elsewhere_of,
    pace_of,
    range_of,
    selection_of,
    times_of,
    token_of,
)
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit
from apps.cli.query import lake_of
from eventstore.lifecycle import METADATA_SUFFIX
from kernel import failpoints
from replay.elsewhere.pace import Gaps

if TYPE_CHECKING:
    from apps.elsewhere.store import StoreTarget
    from apps.elsewhere.topic import TopicTarget
    from eventstore.recovery.events import LakeEvents
    from lake.layout import Lake
    from replay.elsewhere.lake_target import LakeTarget
    from replay.elsewhere.passage import Passage, PassageProgress
    from replay.elsewhere.selection import SelectedEvents, Survey
    from replay.elsewhere.times import Shift

_PART = 5_000
"""Events of a part: their data are in memory together, however large each of them is."""
To = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="topic:NAME, store:URL of another one's service, or lake:PLACE, a folder or "
        "s3://BUCKET/PREFIX.",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHERE",
        help="The first: a position, a time of recording (UTC), or savepoint:NAME for what came "
        "since (default: the first of all).",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="The last position, a time before which they were recorded, or savepoint:NAME for "
        "what it has (default: the last of the log).",
    ),
]
Category = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Only those of it (repeatable).")
]
Stream = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Only those of it (repeatable).")
]
FromStore = Annotated[
    list[str] | None,
    typer.Option(metavar="ID", help="Whose log; its ids, oldest first (repeatable)."),
]
ShiftBy = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Move all times, as +3d, -90m, 1.5h.")
]
Starting = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Move all times so that the first was recorded then (UTC)."),
]
Rate = Annotated[str | None, typer.Option(metavar="N/s", help="So many events a second.")]
Speed = Annotated[
    str | None,
    typer.Option(metavar="Nx", help="With the gaps that there were, N times as quick."),
]
GapsOf = Annotated[Gaps, typer.Option(help="Between which times --speed takes the gaps.")]
MaxGap = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Wait for no gap longer than this.")
]
Effects = Annotated[
    bool, typer.Option("--effects", help="Let webhooks and mail of the other store send them.")
]
Partitions = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, help="Of a topic that is made (default: kafka.partitions)."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The other store's token, as its .penstock/token; must be given for another machine.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would be sent; send nothing.")]


def events(
    to: To,
    from_: From = None,
    until: Until = None,
    category: Category = None,
    stream: Stream = None,
    from_store: FromStore = None,
    shift: ShiftBy = None,
    starting: Starting = None,
    rate: Rate = None,
    speed: Speed = None,
    gaps: GapsOf = Gaps.RECORDED,
    max_gap: MaxGap = None,
    effects: Effects = False,
    partitions: Partitions = None,
    token_file: TokenFile = None,
    dry_run: DryRun = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send events of the lake's log again, to another topic, store or lake, by position.

    All times move by one span; data stay as they are. Given again after a crash it goes on where
    it was, and nothing is there twice.
    """
    place = elsewhere_of(to, partitions=partitions, token_file=token_file)
    pace, times = pace_of(rate, speed, max_gap, gaps), times_of(shift, starting)
    asked = range_of(from_, until, category, stream)
    token = None if token_file is None else token_of(token_file)
    found = settings.load(workspace)
    failpoints.arm_from_environment()
    lake = lake_of(found)
    from eventstore.recovery.events import LakeEvents
    from replay.elsewhere.passage import Passage
    from replay.elsewhere.selection import SelectedEvents

    log = LakeEvents(lake, from_store or (), part=_PART)
    # What streams show is not appended by clients.
    ending = METADATA_SUFFIX if place.kind == "store" else None
    selected = SelectedEvents(log, selection_of(asked, log, lake, but_ending=ending))
    whole = selected.survey(pace if dry_run else None)
    moved = times.shift_of(whole)
    if dry_run:
        emit(_document(whole, moved), as_json=as_json, text=_planned(whole, moved, to))
        return
    read = selected, log, moved
    with closing(_target(found, place, lake, *read, partitions, effects, token)) as target:
        passage = Passage(
            events=selected, whole=whole, target=target, shift=moved, pace=pace, report=_show
        )
        passage.run()
    _emit_done(passage, to, as_json=as_json)


def _target(
    found: settings.Settings,
    place: Elsewhere,
    lake: Lake,
    selected: SelectedEvents,
    log: LakeEvents,
    moved: Shift,
    partitions: int | None,
    effects: bool,
    token: str | None,
) -> TopicTarget | StoreTarget | LakeTarget:
    match place.kind:
        case "topic":
            return _topic(found, place.name, selected, log, moved, effects, partitions)
        case "lake":
            return _lake(lake, place.name, selected, log, moved)
        case _:
            return _store(found, place.name, selected, log, moved, effects=effects, token=token)


def _topic(
    found: settings.Settings,
    name: str,
    selected: SelectedEvents,
    log: LakeEvents,
    shift: Shift,
    effects: bool,
    partitions: int | None,
) -> TopicTarget:
    from apps.elsewhere.topic import TopicTarget, refuse_name

    refuse_name(name, found, log.sources)
    told = {**_told(selected, log, shift), "effects": effects}
    return TopicTarget(found, name, told, partitions=partitions)


def _store(
    found: settings.Settings,
    url: str,
    selected: SelectedEvents,
    log: LakeEvents,
    shift: Shift,
    *,
    effects: bool,
    token: str | None,
) -> StoreTarget:
    from apps.elsewhere.store import StoreTarget
    from apps.service_client import ServiceClient

    others = {"service.url": settings.Setting(value=url, origin="flag")}
    if token is not None:
        others["service.token"] = settings.Setting(value=token, origin="flag")
    client = ServiceClient(settings.Settings(found.workspace, {**found.values, **others}))
    return StoreTarget(client, selected, log.contents.schemas, shift=shift.by, effects=effects)


def _lake(
    origin: Lake,
    place: str,
    selected: SelectedEvents,
    log: LakeEvents,
    shift: Shift,
) -> LakeTarget:
    from lake.layout import Lake
    from replay.copies import refuse_place
    from replay.elsewhere.lake_target import LakeTarget

    into = Lake.named(place)
    refuse_place(origin, into)
    return LakeTarget(into, _told(selected, log, shift), log.contents.schemas)


def _told(selected: SelectedEvents, log: LakeEvents, shift: Shift) -> dict[str, object]:
    """Return what makes a replay the same one."""
    return {
        **selected.selection.told,
        # A store that got a new id goes on as the same one.
        "store": log.store_ids[0],
        "shift_s": shift.by.total_seconds(),
    }


def _show(progress: PassageProgress) -> None:
    print(progress.line, file=sys.stderr, flush=True)


def _emit_done(passage: Passage, to: str, *, as_json: bool) -> None:
    whole, sent = passage.whole, passage.sent
    there = whole.events - sent
    done = {
        "to": to,
        "sent": sent,
        "there_before": there,
        "seconds": round(passage.seconds, 3),
    }
    rate = sent / max(passage.seconds, 1e-3)
    told = f"{sent:,} events sent to {to}, {rate:,.0f}/s" if sent else f"nothing is left for {to}"
    if there:
        told += f"; {there:,} were there"
    if whole.left_out:
        told += f"; left out are {whole.left_out:,} that say what streams show"
    emit(_document(whole, passage.shift) | done, as_json=as_json, text=told)


def _document(found: Survey, shift: Shift) -> dict[str, object]:
    return {
        **asdict(found),
        "shift_s": shift.by.total_seconds(),
        "moved": {
            "recorded": [shift.moved(each) for each in found.recorded],
            "occurred": [shift.moved(each) for each in found.occurred],
        },
    }


def _planned(found: Survey, shift: Shift, to: str) -> str:
    first, last = (shift.moved(each).isoformat() for each in found.recorded)
    lasts = f"within {found.seconds:,.0f} s" if found.seconds else "as quickly as it takes them"
    return (
        f"{found.events:,} events, positions {found.first} to {found.last}, would go to {to} "
        f"{lasts}, recorded from {first} to {last}"
    )
