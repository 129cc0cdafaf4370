"""What a source's copies have come to, read from the book: what goes on, what is missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cdc.copies.copy_plan import CopyPlan, plan_of
from pipeline.installs.install_book import (
    ALL,
    DONE,
    INSTALL,
    JOIN,
    RUN,
    STRAND,
    WANT,
    InstallEntry,
    install_of,
)
from pipeline.position.progress import Progress
from projections.run.captured_tables import CapturedTable


def open_run(entries: list[InstallEntry]) -> CopyPlan | None:
    """Return the copy that was begun and neither announced nor given up, as planned last."""
    ended = {entry.id for entry in entries if entry.kind == DONE}
    ended |= {install_of(entry).run for entry in entries if entry.kind == INSTALL}
    runs = [entry for entry in entries if entry.kind == RUN and entry.id not in ended]
    return plan_of(runs[-1]) if runs else None


def wanted(
    entries: list[InstallEntry],
    captured: Mapping[str, CapturedTable],
    slots: int,
    *,
    whole: bool,
    declined: frozenset[int],
) -> list[str]:
    """Return the captured tables that are to be copied, in their order."""
    there = {
        install.table: install
        for install in map(install_of, (e for e in entries if e.kind == INSTALL))
        if install.kind == ALL and install.slots == slots
    }
    asked = _asked(entries)
    return [
        table
        for table in captured
        if table in asked
        or (whole and table not in there)
        or (table in there and there[table].number in declined)
    ]


def stranded(
    source: str,
    entries: list[InstallEntry],
    captured: Collection[str],
    progress: Progress,
    *,
    copied: Collection[str],
) -> list[str]:
    """Return the captured tables that the cut does not fold, and that would stay so.

    Not those that are `copied`, join, or wait for ingest: of these it is known what goes on.
    """
    cut, awaited = progress.cut(source), {*copied, *progress.held.get(source, {})}
    awaited |= joining_tables(entries)
    for entry in entries:
        if entry.number in progress.installs:
            continue
        if entry.kind == INSTALL:
            awaited.add(install_of(entry).table)
        elif entry.kind == STRAND:
            awaited |= {*entry.detail["tables"]}
    if cut.held:
        return []
    return [table for table in captured if table not in awaited and not cut.folds(table)]


def joining_tables(entries: list[InstallEntry]) -> set[str]:
    """Return the tables that are about to come into the stream, and are not asked for yet."""
    found: set[str] = set()
    for entry in entries:
        if entry.kind == JOIN:
            found |= set(entry.detail["tables"])
        elif entry.kind == WANT and entry.detail.get("joined"):
            found -= set(entry.detail["tables"])
    return found


def wants_beside(plan: CopyPlan, entries: list[InstallEntry]) -> list[int]:
    """Return the requests that no copy has taken up, for tables that an open one does not have."""
    planned = {each.table for each in plan.tables}
    return [e.number for e in _open(entries) if planned.isdisjoint(e.detail["tables"])]


def _asked(entries: list[InstallEntry]) -> set[str]:
    """Return the tables of requests that no copy has taken up."""
    return {table for entry in _open(entries) for table in entry.detail["tables"]}


def _open(entries: list[InstallEntry]) -> list[InstallEntry]:
    """Return the requests that no copy has taken up."""
    answered = {number for e in entries if e.kind == RUN for number in e.detail["wants"]}
    return [e for e in entries if e.kind == WANT and e.number not in answered]


def released(entries: list[InstallEntry], slots: int, declined: frozenset[int]) -> bool:
    """Say whether the cut of a source was released by a copy since its slot was made."""
    installs = [install_of(entry) for entry in entries if entry.kind == INSTALL]
    return any(
        install.releases and install.slots == slots and install.number not in declined
        for install in installs
    )


def unreleased(source: str, entries: list[InstallEntry], progress: Progress, slots: int) -> bool:
    """Say whether a source's cut stands still, and no copy that waits for ingest releases it."""
    waiting = [
        install_of(entry)
        for entry in entries
        if entry.kind == INSTALL and entry.number not in progress.installs
    ]
    return progress.cut(source).held and not any(
        install.releases and install.slots == slots for install in waiting
    )
