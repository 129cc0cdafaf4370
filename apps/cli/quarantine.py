"""`penstock quarantine …`: records that could not be used, and what is to become of them.

Decisions are written to the lake; the pipeline carries them out in its next epoch, or when it runs
again. Commands import what reads the lake when they run: it takes seconds, which `--help` should
not pay.
"""

from __future__ import annotations

import base64
import getpass
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apps import settings
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import call_with, emit, fields, table, written_whole
from apps.cli.query import lake_of, plain, readable
from kernel.errors import EXIT_NEEDS_CONFIRMATION, EXIT_PARTIAL, NotFound

if TYPE_CHECKING:
    from lake.layout import Lake

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The records' topic, or a table as SOURCE.TABLE.")
]
Partition = Annotated[int | None, typer.Argument(help="Only of this partition.")]
Offset = Annotated[int | None, typer.Argument(help="Only the record at this offset.")]
Ended = Annotated[bool, typer.Option("--all", help="Also those that were released or waived.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the pipeline to have done it.")]

_POLL_S = 0.2
_EXPORTED_AT_ONCE = 200
_COLUMNS = ["epoch", "topic", "partition", "offset", "stage", "reason", "ingested_at"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(cls=Group, help="Records that could not be used, with their bytes.")
    group.command("list")(list_)
    group.command("show")(show)
    group.command("retry")(retry)
    group.command("waive")(waive)
    group.command("export")(export)
    app.add_typer(group, name="quarantine")


def list_(
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, help="At most so many, newest first.")
    ] = 50,
    ended: Ended = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List records that wait in quarantine: where they came from, at which stage, and why.

    With `--all` also those that have an end, with the outcome, its reason, and who decided.
    """
    lake = lake_of(settings.load(workspace))
    rows = _known(lake, ended=ended)
    newest = sorted(rows, key=lambda row: str(row["ingested_at"]), reverse=True)
    kept = [_listed(row, ended=ended) for row in newest[:limit]]
    headings = [*_COLUMNS, *(("outcome", "by") if ended else ())]
    text = table(
        headings,
        [[row[name] for name in headings] for row in kept],
        nothing="nothing is in quarantine",
    )
    if kept and not ended:
        text += (
            "\nfix: mend the cause, then penstock quarantine retry TOPIC; or give them up:"
            " penstock quarantine waive TOPIC --reason TEXT --yes"
        )
    emit({"count": len(newest), "records": kept}, as_json=as_json, text=text)


def show(
    topic: Annotated[str, typer.Argument(help="The record's topic.")],
    partition: Annotated[int, typer.Argument(help="Its partition.")],
    offset: Annotated[int, typer.Argument(help="Its offset.")],
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the record that could not be used, with its key, value and headers, and its outcomes.

    Where the topic was made again and had one at the same place before, that one follows.
    """
    from projections.serve.quarantined_records import known_records, outcomes, place, whole_records

    lake = lake_of(settings.load(workspace))
    at = (topic, partition, offset)
    found = whole_records(lake, [row for row in known_records(lake) if place(row) == at])
    if not found:
        raise NotFound(
            f"no record {topic} {partition} {offset} in quarantine",
            remedy="penstock quarantine list",
        )
    told = outcomes(lake)
    newest, *earlier = [_shown(row, told) for row in reversed(found)]
    text = "\n\n".join(fields(page) for _, page in (newest, *earlier))
    document = newest[0] | {"earlier": [each for each, _ in earlier]}
    emit(document, as_json=as_json, text=text)


def _shown(
    row: dict[str, Any], told: list[dict[str, Any]]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return a whole record for JSON, and for people."""
    from projections.serve.quarantined_records import outcomes_of

    ends = outcomes_of(row, told)
    headers = _headers(row, lambda value: None if value is None else readable(value))
    document = plain(row) | {"headers": headers}
    said = [f"{each['outcome']} at {each['decided_at']}: {each['reason']}" for each in ends]
    page = document | ({"outcomes": "; ".join(said)} if said else {})
    return document | {"outcomes": ends}, page


def retry(
    topic: Topic,
    partition: Partition = None,
    offset: Offset = None,
    timeout: Timeout = 30.0,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decode records again, with the schemas that the registry has now.

    What can be read enters the log, and its table goes on with all that came meanwhile once no
    record of it waits. Exit code 6 when some still cannot be read.
    """
    from pipeline.installs.install_book import DECODE

    found = settings.load(workspace)
    numbers, count = _decide(found, DECODE, topic, partition, offset, reason=None)
    _report(found, numbers, count, timeout, as_json=as_json)


def waive(
    topic: Topic,
    partition: Partition = None,
    offset: Offset = None,
    reason: Annotated[str, typer.Option(help="Why they are given up. It is kept.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    timeout: Timeout = 30.0,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give records up: their transactions are complete without them, and their table goes on.

    The bytes stay in quarantine, with the reason, your name and the time. What a record said is
    missing in the table until `penstock source verify SOURCE --heal` or a copy brings it. Waiving
    the END of a transaction leaves all its rows in the log alone.
    """
    from pipeline.installs.install_book import WAIVE

    if not reason or not yes:
        needs = "--reason TEXT --yes" if not reason else "--yes"
        text = f"This gives up what the records of {topic} say."
        emit({"needs": needs, "waives": topic}, as_json=as_json, text=text)
        if not as_json:
            print(f"  fix: {call_with(*needs.split())}", file=sys.stderr)
        raise typer.Exit(EXIT_NEEDS_CONFIRMATION)
    found = settings.load(workspace)
    numbers, count = _decide(found, WAIVE, topic, partition, offset, reason=reason)
    _report(found, numbers, count, timeout, as_json=as_json)


def export(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write; - for the terminal.")],
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only of this topic, or table as SOURCE.TABLE.")
    ] = None,
    ended: Ended = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write records with their raw bytes to a file, one JSON document a line.

    Key, value and headers are in base64. The records stay where they are.
    """
    lake = lake_of(settings.load(workspace))
    rows = [r for r in _known(lake, ended=ended) if topic is None or _named(r, topic)]
    if str(to) == "-":
        for line in _lines(lake, rows):
            print(line)
        return
    with written_whole(to) as file:
        for line in _lines(lake, rows):
            file.write(f"{line}\n".encode())
    text = f"{len(rows)} records are in {to}"
    emit({"records": len(rows), "file": str(to)}, as_json=as_json, text=text)


def _decide(
    found: settings.Settings,
    kind: str,
    topic: str,
    partition: int | None,
    offset: int | None,
    *,
    reason: str | None,
) -> tuple[tuple[int, ...], int]:
    """Write down what is to become of records; return the decisions' numbers, and how many."""
    from lake.rows import SmallTables
    from pipeline.installs.install_book import InstallEntry, announce
    from projections.serve.quarantined_records import MOST_AT_ONCE, places_of, waiting_records

    lake = lake_of(found)
    of_topic: dict[str, list[dict[str, Any]]] = {}
    for row in waiting_records(lake):
        chosen = partition in (None, row["partition"]) and offset in (None, row["offset"])
        if chosen and _named(row, topic):
            of_topic.setdefault(row["topic"], []).append(row)
    entries = []
    for name, rows in of_topic.items():
        for first in range(0, len(rows), MOST_AT_ONCE):
            places = places_of(rows[first : first + MOST_AT_ONCE])
            detail = {"places": places, "by": _user(), "reason": reason}
            source = rows[first]["source"] or ""
            entries.append(InstallEntry(kind=kind, id=name, source=source, detail=detail))
    if not entries:
        raise NotFound(
            f"no record of {topic} waits in quarantine", remedy="penstock quarantine list"
        )
    count = sum(map(len, of_topic.values()))
    return announce(lake, SmallTables(), entries), count


def _user() -> str:
    """Return who decides: the user's name, or the number of one without an account here."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _report(
    found: settings.Settings, numbers: tuple[int, ...], count: int, timeout: float, *, as_json: bool
) -> None:
    """Wait until the pipeline has carried decisions out, and say what became of the records."""
    from apps.accounts import account
    from projections.serve.quarantined_records import outcomes

    lake, deadline = lake_of(found), time.monotonic() + timeout
    ends: list[dict[str, Any]] = []
    while account(found, "pipeline") is not None:
        ends = [each for each in outcomes(lake) if each["decision"] in numbers]
        if len(ends) >= count or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    counts: dict[str, int] = {}
    for each in ends:
        counts[each["outcome"]] = counts.get(each["outcome"], 0) + 1
    waits = count - len(ends)
    lines = [f"{n} {outcome}" for outcome, n in counts.items()]
    if waits:
        lines.append(f"{waits} wait for the pipeline: penstock status")
    refused = [each for each in ends if each["outcome"] == "refused"]
    if refused:
        lines.append(f"still: {refused[0]['reason']}")
    document = {"decisions": numbers, "records": count, "outcomes": counts, "waiting": waits}
    emit(document, as_json=as_json, text="\n".join(lines))
    if refused:
        raise typer.Exit(EXIT_PARTIAL)


def _known(lake: Lake, *, ended: bool) -> list[dict[str, Any]]:
    """Return the records that wait, or all of them, without their bytes."""
    from projections.serve.quarantined_records import (
        known_records,
        outcomes,
        outcomes_of,
        place,
        waiting_records,
    )

    if not ended:
        return waiting_records(lake)
    rows, at_place = known_records(lake), defaultdict(list)
    for each in outcomes(lake):
        at_place[place(each)].append(each)
    for row in rows:
        outcome: dict[str, Any] = next(reversed(outcomes_of(row, at_place[place(row)])), {})
        row |= {"outcome": outcome.get("outcome"), "by": outcome.get("by")}
        row["reason"] = outcome.get("reason") or row["reason"]
    return rows


def _lines(lake: Lake, rows: list[dict[str, Any]]) -> Iterator[str]:
    from projections.serve.quarantined_records import whole_records

    for first in range(0, len(rows), _EXPORTED_AT_ONCE):
        for row in whole_records(lake, rows[first : first + _EXPORTED_AT_ONCE]):
            headers = _headers(row, _base64)
            raw = {"key": _base64(row["key"]), "value": _base64(row["value"]), "headers": headers}
            yield json.dumps({**row, **raw}, default=str)


def _listed(row: Mapping[str, Any], *, ended: bool) -> dict[str, Any]:
    names = [*_COLUMNS, "source", "table", *(("outcome", "by") if ended else ())]
    return {name: row.get(name) for name in names}


def _named(row: Mapping[str, Any], name: str) -> bool:
    """Say whether a record is of a topic, or of a table that is named with its source."""
    from schemas.identifiers import topic_part

    return name == row["topic"] or topic_part(name) == f"{row.get('source')}.{row.get('table')}"


def _headers(row: Mapping[str, Any], shown: Callable[[bytes | None], Any]) -> dict[str, Any]:
    """Return headers by name: of one that occurs several times a list."""
    from schemas.header_text import headers_of

    found: dict[str, list[Any]] = {}
    for name, value in headers_of(row["headers"]):
        found.setdefault(name, []).append(shown(value))
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
