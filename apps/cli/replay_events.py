"""`penstock replay events`: events once more, into another topic, store or lake.

What is asked for is read before the lake is opened, which takes a second.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps.cli.commands import CommandCall
from apps.cli.output import tell
from apps.settings import Setting, Settings
from delivery.event_ranges import (
    Elsewhere,
    elsewhere_of,
    pace_of,
    range_of,
    selection_of,
    times_of,
    token_of,
)
from eventstore.lifecycle import METADATA_SUFFIX
from kernel import failpoints
from replay.elsewhere.pace import Gaps

if TYPE_CHECKING:
    from delivery.store_target import StoreTarget
    from delivery.topic_target import TopicTarget
    from eventstore.recovery.events import LakeEvents
    from eventstore.service_client import ServiceClient
    from replay.elsewhere.lake_target import LakeTarget
    from replay.elsewhere.passage import Passage
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
    call: CommandCall,
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
) -> None:
    """Send events of the lake's log again, to another topic, store or lake, by position.

    All times move by one span; data stay as they are. Given again after a crash it goes on where
    it was, and nothing is there twice.
    """
    place = elsewhere_of(to, partitions=partitions, token_file=token_file)
    pace, times = pace_of(rate, speed, max_gap, gaps), times_of(shift, starting)
    asked = range_of(from_, until, category, stream)
    token = None if token_file is None else token_of(token_file)
    failpoints.arm_from_environment()
    lake = call.made_lake
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
        call.answer(_document(whole, moved), text=_planned(whole, moved, to))
        return
    target = _target(
        call, place, log, selected, moved, partitions=partitions, effects=effects, token=token
    )
    with closing(target):
        passage = Passage(
            events=selected,
            whole=whole,
            target=target,
            shift=moved,
            pace=pace,
            report=lambda progress: tell(progress.line),
        )
        passage.run()
    _answer_done(call, passage, to)


def _target(
    call: CommandCall,
    place: Elsewhere,
    log: LakeEvents,
    selected: SelectedEvents,
    shift: Shift,
    *,
    partitions: int | None,
    effects: bool,
    token: str | None,
) -> TopicTarget | StoreTarget | LakeTarget:
    """Return where events go; it says what makes a replay the same one."""
    found, schemas = call.settings, log.contents.schemas
    told: dict[str, object] = {
        **selected.selection.told,
        # A store that got a new id goes on as the same one.
        "store": log.store_ids[0],
        "shift_s": shift.by.total_seconds(),
    }
    match place.kind:
        case "topic":
            from delivery.topic_target import TopicTarget, refuse_name
            from pipeline.read.kafka_topics import KafkaTopics

            refuse_name(place.name, found.text("kafka.topic_prefix"), log.sources)
            return TopicTarget(
                KafkaTopics(found.required("kafka.bootstrap")),
                place.name,
                {**told, "effects": effects},
                workspace=found.name,
                max_record_bytes=found.number("kafka.max_record_bytes"),
                usually=found.number("kafka.partitions"),
                partitions=partitions,
            )
        case "lake":
            from lake.layout import Lake
            from replay.copies import refuse_place
            from replay.elsewhere.lake_target import LakeTarget

            into = Lake.named(place.name)
            refuse_place(call.made_lake, into)
            return LakeTarget(into, told, schemas)
        case _:
            from delivery.store_target import StoreTarget

            client = _service_at(found, place.name, token)
            return StoreTarget(client, selected, schemas, shift=shift.by, effects=effects)


def _service_at(found: Settings, url: str, token: str | None) -> ServiceClient:
    """Return a client of another store's service, with its own token where one is given."""
    from apps.calls import service_client

    others = {"service.url": Setting(value=url, origin="flag")}
    if token is not None:
        others["service.token"] = Setting(value=token, origin="flag")
    return service_client(Settings(found.workspace, {**found.values, **others}))


def _answer_done(call: CommandCall, passage: Passage, to: str) -> None:
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
    call.answer(_document(whole, passage.shift) | done, text=told)


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
