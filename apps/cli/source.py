"""`penstock source …`: databases whose tables are captured.

Commands import the drivers and the lake when they run: it takes seconds, which `--help` should not
pay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apps import settings
from apps.accounts import standing_still
from apps.calls import asked
from apps.capture import capture_site
from apps.cli import source_add, source_topics, verification
from apps.cli.commands import CommandCall, commands
from apps.cli.options import DoIt, SourceName
from apps.cli.output import Columns, listing, table
from cdc import declarations
from kernel.errors import EXIT_PARTIAL, EXIT_UNHEALTHY
from lake.layout import Lake
from schemas.identifiers import OUTBOX
from service import standstills

if TYPE_CHECKING:
    from cdc.copies.copy_progress import TableCopy

_NOTHING = "no table is captured yet"


def list_(call: CommandCall) -> None:
    """List the declared sources, what each does, and what of it stands still."""
    found = call.settings
    told = _documents(found)
    external = [each for each in told if "topic" in each]
    documents = [each for each in told if "topic" not in each]
    standing = standing_still(found) if told else []
    still = {each["source"]: standstills.of_source(standing, each["source"]) for each in told}
    for each in told:
        each["standing_still"] = [one.document() for one in still[each["source"]]]
    nothing = "no database is captured; capture one: penstock source add NAME --dsn DSN --tables …"
    rows = [(*_row(each), source_topics.still_cell(still[each["source"]])) for each in documents]
    text = table((*_HEADINGS, "stands still"), rows, nothing=nothing)
    text += f"\n{source_topics.page(external, still)}" if external else ""
    call.answer({"sources": documents, "topics": external}, text=text)


def _documents(found: settings.Settings) -> list[dict[str, Any]]:
    """Ask the pipeline, which has all at hand; where none runs, look oneself."""
    answer = asked(found, "pipeline", "/sources", timeout_s=30.0)
    if answer is not None and answer[0] == 200:
        documents: list[dict[str, Any]] = answer[1]["sources"]
        return documents
    if not found.text("connect.url"):
        root = found.workspace
        return [*declarations.stopped_documents(root), *declarations.leaving_documents(root)]
    # It takes seconds to load, which only a stack without its pipeline pays.
    from cdc.upkeep.source_documents import source_documents

    return source_documents(capture_site(found))


def status(call: CommandCall, name: SourceName) -> None:
    """Show state, connector, slot, snapshot, what stands still. Exit code 5 when it does not run.

    States: runs, paused, failed, alarm (the slot keeps too much WAL), slot-lost (changes are
    missing until `source resnapshot`), away (the database does not answer). Exit code 6 when it
    runs and a table stands still because of DDL: the reason, the difference and the command follow.
    """
    found = call.settings
    if source_topics.shown(call, name):
        return
    declarations.refuse_unknown(found.workspace, name)
    connect_url = found.required("connect.url")
    # What follows takes seconds to load, which a wrong name or a stopped stack does not pay for.
    from cdc import sources
    from cdc.connect import ConnectClient
    from cdc.copies.copy_progress import copies_of
    from cdc.upkeep import lifecycle
    from cdc.upkeep.source_documents import source_document
    from cdc.verification.verification_status import verifications_of
    from pipeline.read import gaps

    source = sources.load(found.workspace, name)
    site, lake = capture_site(found), Lake.at(found.lake)
    with ConnectClient(connect_url) as connect:
        state = lifecycle.status(site, source, connect)
    captured = lifecycle.captured_tables(lake, name)
    snapshot = lifecycle.progress(site, source)
    held = {} if state.away else lifecycle.held(site, source)
    copied, still = copies_of(lake, name), lifecycle.standing_still(site, source)
    also = _besides(found, name, still)
    gone = lifecycle.missing(site, name)
    verified = verifications_of(lake, found.state_dir, name)
    shown = source_document(state)
    document = {
        **shown,
        "still": still,
        "standing_still": [each.document() for each in also],
        "gone": [asdict(gap) for gap in gone],
        "snapshot": asdict(snapshot),
        "copies": [asdict(each) for each in copied],
        "tables": tuple(captured) or source.tables,
        "held": held,
        "verification": [asdict(each) for each in verified],
    }
    lines = [
        table(_HEADINGS, [_row(shown)]),
        f"snapshot {snapshot.state}, attempts {snapshot.attempts}"
        + (f", reading {snapshot.current}" if snapshot.current else ""),
        _copy_lines(copied) if copied else _snapshot_lines(captured, snapshot.tables),
        *_standing_lines(held, still, also),
        *verification.verification_lines(verified),
    ]
    said = [("cause: ", state.reason), ("  fix: ", state.remedy)]
    said += [("cause: ", gaps.reason(gone)), ("  fix: ", gaps.remedy(name))] if gone else []
    lines += [label + text for label, text in said if text is not None]
    call.answer(document, text="\n".join(lines))
    runs = state.healthy and not gone and all(each.component != "source" for each in also)
    if code := EXIT_UNHEALTHY if not runs else EXIT_PARTIAL if still else 0:
        raise typer.Exit(code)


def _besides(
    found: settings.Settings, name: str, still: Collection[str]
) -> list[standstills.Standstill]:
    """Return what stands still of a source beside those of its tables."""
    of_source = standstills.of_source(standing_still(found), name)
    return [each for each in of_source if each.name.removeprefix(f"{name}.") not in still]


def _snapshot_lines(captured: Iterable[str], rows: Mapping[str, object]) -> str:
    told = [(each, rows.get(each, "not yet")) for each in captured]
    return table(("table", "rows"), told, nothing=_NOTHING)


def _standing_lines(
    held: Mapping[str, str],
    still: Mapping[str, Mapping[str, object]],
    also: Sequence[standstills.Standstill],
) -> Iterator[str]:
    yield from (f"held back: {each}: {reason}" for each, reason in held.items())
    yield from (_still_lines(each, told) for each, told in still.items())
    yield from source_topics.still_lines(also)


def _still_lines(name: str, told: Mapping[str, object]) -> str:
    diff = "".join(f"\n  {line}" for line in _texts(told["diff"]))
    since, reason = told["from_epoch"], told["reason"]
    return f"stands still: {name} since epoch {since}: {reason}{diff}\n  fix: {told['command']}"


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def pause(call: CommandCall, name: SourceName) -> None:
    """Stop reading. The slot stays, and the database keeps its WAL until you resume."""
    found = call.settings
    declarations.refuse_unknown(found.workspace, name)
    connect_url = found.required("connect.url")
    from cdc.connect import ConnectClient

    connector = f"{found.name}-{name}"
    with ConnectClient(connect_url) as connect:
        connect.pause(connector)
        state = connect.await_status(
            connector, lambda s: s.connector == s.task == "PAUSED", timeout_s=30.0
        )
    call.answer(asdict(state), text=f"{name} is paused")


def resume(call: CommandCall, name: SourceName) -> None:
    """Go on after a pause, or restart what failed. A source that is slot-lost is refused."""
    found = call.settings
    declarations.refuse_unknown(found.workspace, name)
    connect_url = found.required("connect.url")
    from cdc import sources
    from cdc.connect import ConnectClient
    from cdc.upkeep import lifecycle

    source = sources.load(found.workspace, name)
    with ConnectClient(connect_url) as connect:
        state = lifecycle.resume(capture_site(found), source, connect)
    call.answer(asdict(state), text=f"{name} runs")


def resnapshot(
    call: CommandCall,
    name: SourceName,
    tables: Annotated[
        str | None, typer.Option("--tables", help="Only these, with commas; default: all.")
    ] = None,
    yes: DoIt = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it runs.")] = 90.0,
) -> None:
    """Copy tables anew; a source that is slot-lost gets a new slot first and runs again.

    Readers see the old rows until the new ones replace them in one commit. The log keeps what it
    has. What happened to the source between two slots is in no log: the copy shows its result.
    `outbox` stands for the event store's own: all its events are sent again, and those that the
    log has are dropped. Of a source on an external topic, reading goes on at the first record that
    Kafka has: those that it lost are in no log.
    """
    found = call.settings
    topic = source_topics.topic_state(call, name)
    if topic is not None:
        source_topics.pass_over(call, topic, yes=yes)
        return
    chosen = [each.strip() for each in (tables or "").split(",") if each.strip()]
    if name != OUTBOX:
        declarations.refuse_unknown(found.workspace, name)
    from cdc import sources

    source = None if name == OUTBOX else sources.load(found.workspace, name)
    if not yes:
        which = ", ".join(chosen) or f"every table of {name}"
        call.refuse_unconfirmed(f"This copies {which}.", copies=which)
    from cdc.upkeep import lifecycle

    if source is None:
        done = lifecycle.resnapshot_outbox(capture_site(found))
    else:
        done = lifecycle.resnapshot(capture_site(found), source, tables=chosen, timeout_s=timeout)
    again = "" if done.renewed is None else f" after a new slot ({done.renewed})"
    call.answer(
        asdict(done),
        text=f"{name}: {len(done.tables)} tables are copied anew{again}",
    )


def remove(call: CommandCall, name: SourceName, yes: DoIt = False) -> None:
    """Stop capturing: drop connector, slot, publication, event triggers. Topics and tables stay.

    What cannot be reached is named (exit code 6); the same command again takes it away. What
    belongs to another role stays, and is named with the statement that drops it. A source on an
    external topic is not read any more; while a projection reads it, that is refused.
    """
    found = call.settings
    if source_topics.is_declared(call, name) or source_topics.is_held(call, name):
        source_topics.drop(call, name, yes=yes)
        return
    declarations.refuse_unknown(found.workspace, name, leaving=True)
    from cdc.upkeep import lifecycle

    source = lifecycle.removable(capture_site(found), name)
    if not yes:
        what = f"This drops connector, slot and publication of {name}: later changes are lost."
        call.refuse_unconfirmed(what, removes=name)
    removal = lifecycle.remove(capture_site(found), source)
    lines = [f"{name} is removed" if removal.whole else f"{name} is removed in part"]
    lines += [f"left: {part}: {reason}" for part, reason in removal.left.items()]
    lines += [f"stays: {part}: {reason}" for part, reason in removal.stays.items()]
    if not removal.whole:
        lines.append(f"  fix: penstock source remove {name} --yes, when they can be reached")
    call.answer(
        {"removed": name, **asdict(removal), "whole": removal.whole},
        text="\n".join(lines),
    )
    if not removal.whole:
        raise typer.Exit(EXIT_PARTIAL)


_HEADINGS = ("source", "state", "connector", "task", "slot", "lag bytes", "retained bytes", "limit")


def _row(document: Mapping[str, Any]) -> tuple[object, ...]:
    connector, slot = document.get("connector") or {}, document.get("slot") or {}
    return (
        document["source"],
        document["state"],
        connector.get("connector", "none"),
        connector.get("task"),
        slot.get("wal_status", "none"),
        slot.get("lag_bytes"),
        slot.get("retained_bytes"),
        document.get("limit_bytes"),
    )


def _copy_lines(copies: Sequence[TableCopy]) -> str:
    """Return the copies of a source as a table for people."""
    columns: Columns = {
        "table": "table",
        "copy": "state",
        "rows": lambda copy: f"{copy.rows:,}",
        "of": lambda copy: f"~{copy.estimate:,}",
        "rate": lambda copy: "" if copy.rate is None else f"{copy.rate:,.0f}/s",
        "left": lambda copy: "" if copy.eta_s is None else f"{copy.eta_s:,.0f} s",
    }
    return listing(copies, columns)


register = commands(
    source=[
        source_add.add,
        source_add.check,
        list_,
        status,
        verification.verify,
        pause,
        resume,
        resnapshot,
        remove,
    ]
)
