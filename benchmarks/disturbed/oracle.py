"""What the three queries answer, computed in plain Python, and how rows are compared with it.

Rows are told by their key. `totals`: (item,) -> (n, amount). `windows`: (item, the window's start
in milliseconds since 1970) -> (n, amount). `newest`: (item,) -> (number, amount, at).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.disturbed.disorder import Record

WINDOW_MS = 10_000
QUERIES = ("totals", "windows", "newest")
Key = tuple[str | int, ...]
Row = tuple[int, ...]
Rows = Mapping[Key, Row]
Seen = Mapping[int, float]
"""When the effect of each record could be read, seconds since 1970, by its number."""


def answers(sent: Iterable[Record]) -> dict[str, Rows]:
    """Return the rows of each query over the records, each of which counts once."""
    totals: dict[Key, Row] = {}
    windows: dict[Key, Row] = {}
    newest: dict[Key, Row] = {}
    for record in {each.number: each for each in sent}.values():
        for found, key in ((totals, total_key(record)), (windows, window_key(record))):
            n, amount = found.get(key, (0, 0))
            found[key] = (n + 1, amount + record.amount)
        key = total_key(record)
        if key not in newest or newest[key][2] < record.at:
            newest[key] = (record.number, record.amount, record.at)
    return {"totals": totals, "windows": windows, "newest": newest}


def total_key(record: Record) -> Key:
    """Return the key of a record's row in `totals` and `newest`."""
    return (record.item,)


def window_key(record: Record) -> Key:
    """Return the key of a record's row in `windows`."""
    return (record.item, record.at // WINDOW_MS * WINDOW_MS)


def compared(found: Rows, expected: Rows) -> dict[str, float]:
    """Return how many rows are equal, missing, extra (no such key), and different."""
    both = found.keys() & expected.keys()
    equal = sum(found[key] == expected[key] for key in both)
    return {
        "rows_equal": float(equal),
        "rows_missing": float(len(expected.keys() - both)),
        "rows_extra": float(len(found.keys() - both)),
        "rows_different": float(len(both) - equal),
    }


def needed(sent: Sequence[Record]) -> dict[str, dict[int, tuple[Key, int]]]:
    """Return which row shows the effect of each record first: its key, and the least value in it.

    By query and number. Value 0 of a row of `totals` and `windows` counts records: one that is the
    fifth of its key is shown by the first row with five. In `newest` a record is shown by the
    first row with its event time or a later one; one that was not the newest when it came has no
    effect and is left out.
    """
    counts: dict[Key, int] = {}
    latest: dict[Key, int] = {}
    found: dict[str, dict[int, tuple[Key, int]]] = {query: {} for query in QUERIES}
    for record in {each.number: each for each in sent}.values():
        for query, key in (("totals", total_key(record)), ("windows", window_key(record))):
            counts[key] = counts.get(key, 0) + 1
            found[query][record.number] = (key, counts[key])
        key = total_key(record)
        if latest.get(key, 0) < record.at:
            latest[key] = record.at
            found["newest"][record.number] = (key, record.at)
    return found
