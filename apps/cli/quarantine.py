"""`penstock quarantine …`: records that could not be used, and what is to become of them.

Decisions are written to the lake; the pipeline carries them out in its next epoch, or when it runs
again. Commands import what reads the lake when they run: it takes seconds, which `--help` should
not pay.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from apps.cli.commands import CommandCall, commands
from apps.cli.options import DoIt
from apps.cli.output import fields, table, written_whole
from apps.cli.query import plain, readable
from apps.settings import Settings
from kernel.errors import EXIT_PARTIAL, NotFound

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The records' topic, or a table as SOURCE.TABLE.")
]
Partition = Annotated[int | None, typer.Argument(help="Only of this partition.")]
Offset = Annotated[int | None, typer.Argument(help="Only the record at this offset.")]
Ended = Annotated[bool, typer.Option("--all", help="Also those that were released or waived.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the pipeline to have done it.")]

_COLUMNS = ["epoch", "topic", "partition", "offset", "stage", "reason", "ingested_at"]


def list_(
    call: CommandCall,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, help="At most so many, newest first.")
    ] = 50,
    ended: Ended = False,
) -> None:
    """List records that wait in quarantine: where they came from, at which stage, and why.

    With `--all` also those that have an end, with the outcome, its reason, and who decided.
    """
    from projections.serve.quarantined_records import listed_records

    rows = listed_records(call.made_lake, ended=ended)
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
    call.answer({"count": len(newest), "records": kept}, text=text)


def show(
    call: CommandCall,
    topic: Annotated[str, typer.Argument(help="The record's topic.")],
    partition: Annotated[int, typer.Argument(help="Its partition.")],
    offset: Annotated[int, typer.Argument(help="Its offset.")],
) -> None:
    """Show the record that could not be used, with its key, value and headers, and its outcomes.

    Where the topic was made again and had one at the same place before, that one follows.
    """
    from projections.serve.quarantined_records import known_records, outcomes, place, whole_records

    lake = call.made_lake
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
    call.answer(document, text=text)


def _shown(
    row: dict[str, Any], told: list[dict[str, Any]]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return a whole record for JSON, and for people."""
    from projections.serve.quarantined_records import headers_by_name, outcomes_of

    ends = outcomes_of(row, told)
    headers = headers_by_name(row, lambda value: None if value is None else readable(value))
    document = plain(row) | {"headers": headers}
    said = [f"{each['outcome']} at {each['decided_at']}: {each['reason']}" for each in ends]
    page = document | ({"outcomes": "; ".join(said)} if said else {})
    return document | {"outcomes": ends}, page


def retry(
    call: CommandCall,
    topic: Topic,
    partition: Partition = None,
    offset: Offset = None,
    timeout: Timeout = 30.0,
) -> None:
    """Decode records again, with the schemas that the registry has now.

    What can be read enters the log, and its table goes on with all that came meanwhile once no
    record of it waits. Exit code 6 when some still cannot be read.
    """
    from pipeline.installs.install_book import DECODE

    _decide(call, DECODE, topic, (partition, offset), None, timeout)


def waive(
    call: CommandCall,
    topic: Topic,
    partition: Partition = None,
    offset: Offset = None,
    reason: Annotated[str, typer.Option(help="Why they are given up. It is kept.")] = "",
    yes: DoIt = False,
    timeout: Timeout = 30.0,
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
        call.refuse_unconfirmed(text, needs=needs, waives=topic)
    _decide(call, WAIVE, topic, (partition, offset), reason, timeout)


def export(
    call: CommandCall,
    to: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write; - for the terminal.")],
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only of this topic, or table as SOURCE.TABLE.")
    ] = None,
    ended: Ended = False,
) -> None:
    """Write records with their raw bytes to a file, one JSON document a line.

    Key, value and headers are in base64. The records stay where they are.
    """
    from projections.serve import quarantined_records as records

    lake = call.made_lake
    known = records.listed_records(lake, ended=ended)
    rows = [row for row in known if topic is None or records.is_named(row, topic)]
    if str(to) == "-":
        for line in records.exported_lines(lake, rows):
            print(line)
        return
    with written_whole(to) as file:
        for line in records.exported_lines(lake, rows):
            file.write(f"{line}\n".encode())
    text = f"{len(rows)} records are in {to}"
    call.answer({"records": len(rows), "file": str(to)}, text=text)


def _decide(
    call: CommandCall,
    kind: str,
    topic: str,
    at: tuple[int | None, int | None],
    reason: str | None,
    timeout: float,
) -> None:
    """Write a decision down, wait until it is carried out, and say what became of the records."""
    from projections.serve.quarantine_decisions import awaited_outcomes, decide

    lake = call.made_lake
    partition, offset = at
    numbers, count = decide(
        lake, kind, topic, partition=partition, offset=offset, by=_user(), reason=reason
    )
    runs = partial(_runs, call.settings)
    ends = awaited_outcomes(lake, numbers, count, timeout_s=timeout, runs=runs)
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
    call.answer(document, text="\n".join(lines))
    if refused:
        raise typer.Exit(EXIT_PARTIAL)


def _runs(found: Settings) -> bool:
    from apps.accounts import account

    return account(found, "pipeline") is not None


def _user() -> str:
    """Return who decides: the user's name, or the number of one without an account here."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _listed(row: Mapping[str, Any], *, ended: bool) -> dict[str, Any]:
    names = [*_COLUMNS, "source", "table", *(("outcome", "by") if ended else ())]
    return {name: row.get(name) for name in names}


register = commands(quarantine=[list_, show, retry, waive, export])
