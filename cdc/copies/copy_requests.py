"""Rows that were there before the stream: when a copy of them is asked for.

The pipeline takes the copies (`cdc.copies.table_copier`); what is asked for here waits in the book
of installs. Of a source with `snapshot = "copy"`, and of any with another than its first slot, it
copies every captured table once per incarnation without being asked.

A table that comes into a running stream is noted (`join`) before the publication is altered, and
asked for after that: a copy that was read before would lack what was written in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdc.copies.copy_wanted import joining_tables, released
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest import Manifest, first_progress
from pipeline.installs.install_book import JOIN, WANT, InstallBook, InstallEntry, hold, request


def awaited(lake: Lake, source: str, slots: int) -> None:
    """Hold the cut of a source that is about to start with a slot, until its tables are copied."""
    hold(lake, Tables(), source, slots=slots)


def brought(lake: Lake, source: str, slots: int) -> bool:
    """Say whether a copy that releases the cut of a source was announced behind this slot.

    One that waits for it is as good: until then the cut stands still.
    """
    tables = Tables()
    entries = [entry for entry in InstallBook(lake, tables).entries() if entry.source == source]
    declined = first_progress(Manifest(lake, tables).last()).declined
    return released(entries, slots, frozenset(map(int, declined)))


def again(lake: Lake, source: str, tables: Sequence[str], *, reason: str) -> None:
    """Copy tables while they are streamed; readers see the old rows until the new are whole."""
    request(lake, Tables(), source, tables, reason=reason)


def joining(lake: Lake, source: str, tables: Iterable[str], *, known: Iterable[str]) -> None:
    """Note that tables are about to come into the stream, and need a copy then.

    One that is not `known` is copied without being asked.
    """
    late = set(tables) & set(known)
    if not late:
        return
    book = InstallBook(lake, Tables())
    if fresh := sorted(late - _joining(book, source)):
        book.put([InstallEntry(kind=JOIN, id=source, source=source, detail={"tables": fresh})])


def joined(lake: Lake, source: str, captured: Iterable[str]) -> None:
    """Ask for a copy of the captured tables that were noted, by whatever process."""
    book = InstallBook(lake, Tables())
    late = sorted(_joining(book, source) & set(captured))
    if late:
        reason = "they came into the stream while it ran"
        detail = {"tables": late, "reason": reason, "joined": True}
        book.put([InstallEntry(kind=WANT, id=source, source=source, detail=detail)])


def _joining(book: InstallBook, source: str) -> set[str]:
    return joining_tables([entry for entry in book.entries() if entry.source == source])
