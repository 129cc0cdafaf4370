"""From a range that differs to its keys, and from the keys that are shown to their columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from cdc.database import Connection
from cdc.row_policies import heed_policies
from cdc.verification.reports import (
    DIFFERS,
    DOUBLED,
    EXTRA,
    MISSING,
    NO_DIFFERENCES,
    Differences,
    KeyDifference,
    readable,
)
from cdc.verification.source_rows import (
    SEVERAL,
    SourceTable,
    Split,
    by_key,
    column_hashes,
    row_hashes,
)
from pipeline.verification.book import MOST_KEYS
from pipeline.verification.hashing import LakeRows
from schemas.key_ranges import WHOLE, KeyRange

_ROWS = 100_000
"""Keys of a differing range that are compared at a time."""


class Narrowing:
    """Finds the keys that differ in a range, a bounded number at a time."""

    def __init__(self, connection: Connection, table: SourceTable, rows: LakeRows) -> None:
        # Other tables were looked at in this transaction since this one was.
        heed_policies(connection, table.name)
        self._connection = connection
        self._table = table
        self._rows = rows
        self._named: dict[str, str] = {}

    def narrow(self, area: KeyRange, group: tuple[Split, int] | None, rows: int) -> Differences:
        """Compare key by key; `rows` is about how many there are."""
        if group is not None:
            return self._compare(area, group)
        parts = -(-rows // _ROWS)
        if parts <= 1:
            return self._compare(area, None)
        split = Split(buckets=parts)
        found = NO_DIFFERENCES
        for number in range(parts):
            found += self._compare(area, (split, number))
        return found

    def with_columns(self, found: Differences) -> Differences:
        """Name the columns in which the shown keys differ."""
        wanted = [key for key, what in self._named.items() if what == DIFFERS]
        if not wanted:
            return found
        ours = column_hashes(self._connection, self._table, within=WHOLE, keys=wanted)
        theirs = self._rows.column_hashes(within=WHOLE, keys=wanted)
        columns = {
            key: tuple(
                name
                for name, one, other in zip(
                    self._table.names, ours.get(key, ()), theirs.get(key, ()), strict=False
                )
                if one != other
            )
            for key in wanted
        }
        shown = tuple(
            replace(one, columns=columns.get(key, ()))
            for key, one in zip(self._named, found.keys, strict=False)
        )
        return replace(found, keys=shown)

    def _compare(self, area: KeyRange, group: tuple[Split, int] | None) -> Differences:
        ours = by_key(row_hashes(self._connection, self._table, within=area, group=group))
        lake_group = None if group is None else (group[0].bounds, group[0].buckets, group[1])
        found = [
            (key, DOUBLED if ours.get(key) == SEVERAL else what)
            for key, what in differing_keys(
                ours, self._rows.row_hashes(within=area, group=lake_group)
            )
        ]
        counts = Counter(what for _, what in found)
        room = MOST_KEYS - len(self._named)
        shown = [(key, what) for key, what in found if key not in self._named][:room]
        self._named.update(shown)
        return Differences(
            missing=counts[MISSING],
            extra=counts[EXTRA],
            differing=counts[DIFFERS] + counts[DOUBLED],
            doubled=counts[DOUBLED],
            keys=tuple(
                KeyDifference(key=readable(key, self._table.key), what=what) for key, what in shown
            ),
        )


def differing_keys(
    ours: dict[str, str], theirs: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Compare rows by key and hash; return (key, what differs), sorted.

    A key that the lake has twice is extra once.
    """
    missing = set(ours)
    seen: set[str] = set()
    found: list[tuple[str, str]] = []
    for key, digest in theirs:
        if key not in ours or key in seen:
            found.append((key, EXTRA))
        elif ours[key] != digest:
            found.append((key, DIFFERS))
        seen.add(key)
        missing.discard(key)
    return sorted([*found, *((key, MISSING) for key in missing)])
