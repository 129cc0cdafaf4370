"""Records in quarantine for pages about them.

It reads the same rows as `pipeline.commit.quarantine`, without what loads slowly.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from lake.layout import Lake
from lake.outcomes import COPIED, RELEASED, WAIVED
from lake.rows import SmallTables
from schemas.header_text import headers_of
from schemas.identifiers import text_literal, topic_part

MOST_AT_ONCE = 10_000
"""Records that one decision names at most: an epoch decodes them in its process."""

_EXPORTED_AT_ONCE = 200

Place = tuple[str, int, int]
"""Topic, partition and offset of a record. A topic that was made again has another one there."""

_KNOWN = "SELECT * EXCLUDE (key, value, headers) FROM rows"
_AT = """SELECT * FROM rows
WHERE topic IN ({topics}) AND "offset" IN ({offsets}) AND epoch IN ({epochs}) ORDER BY epoch"""
_OUTCOMES = "SELECT * FROM rows ORDER BY epoch"


def place(row: dict[str, Any]) -> Place:
    """Return where a record came from."""
    return row["topic"], row["partition"], row["offset"]


def outcomes(lake: Lake) -> list[dict[str, Any]]:
    """Return what became of records, oldest first."""
    return SmallTables().select(lake.outcomes, _OUTCOMES)


def known_records(lake: Lake) -> list[dict[str, Any]]:
    """Return all records that were ever in quarantine, without their bytes, by their places."""
    found: list[dict[str, Any]] = SmallTables().select(lake.quarantine, _KNOWN)
    # Tables of before sources and tables were noted lack these columns until the next record.
    rows = [{"source": None, "table": None} | row for row in found]
    return sorted(rows, key=place)


def waiting_records(lake: Lake) -> list[dict[str, Any]]:
    """Return the records that no outcome has ended, without their bytes, by their places."""
    rows = known_records(lake)
    told = outcomes(lake) if rows else []
    # In a topic that was made again another record came to the place of one that was decided about.
    over = {place(each): each["epoch"] for each in told if each["outcome"] in (RELEASED, WAIVED)}
    copies = [each for each in told if each["outcome"] == COPIED]
    waiting = [row for row in rows if row["epoch"] >= over.get(place(row), -1)]
    return [row for row in waiting if not _copied(row, copies)]


def listed_records(lake: Lake, *, ended: bool) -> list[dict[str, Any]]:
    """Return the records that wait, or all of them, without their bytes.

    Those that are `ended` have the outcome, who decided, and why.
    """
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


def is_named(row: Mapping[str, Any], name: str) -> bool:
    """Say whether a record is of a topic, or of a table that is named with its source."""
    return name == row["topic"] or topic_part(name) == f"{row.get('source')}.{row.get('table')}"


def exported_lines(lake: Lake, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield records with their bytes in base64, one JSON document each."""
    for first in range(0, len(rows), _EXPORTED_AT_ONCE):
        for row in whole_records(lake, rows[first : first + _EXPORTED_AT_ONCE]):
            headers = headers_by_name(row, _base64)
            raw = {"key": _base64(row["key"]), "value": _base64(row["value"]), "headers": headers}
            yield json.dumps({**row, **raw}, default=str)


def headers_by_name(row: Mapping[str, Any], shown: Callable[[bytes | None], Any]) -> dict[str, Any]:
    """Return headers by name: of one that occurs several times a list."""
    found: dict[str, list[Any]] = {}
    for name, value in headers_of(row["headers"]):
        found.setdefault(name, []).append(shown(value))
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def places_of(rows: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the offsets of records of one topic, by partition, as a decision names them."""
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(str(row["partition"]), []).append(row["offset"])
    return found


def whole_records(lake: Lake, records: Collection[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return known records with their bytes, oldest first."""
    if not records:
        return []
    wanted = {(*place(row), row["epoch"]) for row in records}
    topics = ", ".join(map(text_literal, {w[0] for w in wanted}))
    offsets, epochs = (", ".join(map(str, {w[n] for w in wanted})) for n in (2, 3))
    text = _AT.format(topics=topics, offsets=offsets, epochs=epochs)
    found = SmallTables().select(lake.quarantine, text)
    return [row for row in found if (*place(row), row["epoch"]) in wanted]


def outcomes_of(row: dict[str, Any], told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of all outcomes that are a record's own, up to the one that ended it.

    What was decided at its place before it came is about another record, and so is what was
    decided after its end: the topic was made again.
    """
    own: list[dict[str, Any]] = []
    end: int | None = None
    for each in told:
        if place(each) != place(row) or each["epoch"] <= row["epoch"]:
            continue
        if end is not None and each["epoch"] > end:
            break
        own.append(each)
        if each["outcome"] in (RELEASED, WAIVED):
            end = each["epoch"]
    return own


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _copied(row: dict[str, Any], copies: list[dict[str, Any]]) -> bool:
    """Say whether a later copy of its table has what the record said."""
    return row["source"] is not None and any(
        (copy["source"], copy["table"]) == (row["source"], row["table"])
        and row["ingested_at"] < copy["decided_at"]
        for copy in copies
    )
