"""Columns of CREATE TABLE that Flink computes of others, or takes from what holds a record.

A table that has some is read as a query of its log that has them too: `a AS x + 1` is a result of
it, and `at TIMESTAMP(3) METADATA FROM 'timestamp'` the time of the record in its topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from projections.sql.words.catalog import PLACE
from projections.sql.words.places import Script, nearest
from schemas.identifiers import spark_name

_METADATA = re.compile(
    r"(?P<kind>.+?)\s+METADATA(\s+FROM\s+'(?P<of>[^']*)')?(\s+VIRTUAL)?", re.IGNORECASE | re.DOTALL
)
_COMMENT = re.compile(r"\s+COMMENT\s+'[^']*'\s*$", re.IGNORECASE)
_READ_AT = re.compile(r"\bPROCTIME\s*\(\s*\)", re.IGNORECASE)
_TEXTS = re.compile(r"'[^']*'")
_OF_RECORDS = {
    "timestamp": "kafka_timestamp",
    "partition": "kafka_partition",
    "offset": "kafka_offset",
}
_NAME = r"`?(?P<of>\w+)`?"
_TIMES = (
    re.compile(_NAME),
    re.compile(rf"CAST\s*\(\s*{_NAME}\s+AS\s+TIMESTAMP\s*\)", re.IGNORECASE),
    re.compile(rf"TO_TIMESTAMP\s*\(\s*{_NAME}\s*\)", re.IGNORECASE),
    re.compile(rf"(?P<millis>TO_TIMESTAMP_LTZ)\s*\(\s*{_NAME}\s*,\s*3\s*\)", re.IGNORECASE),
)
"""How a moment is computed of one column, which may be declared as that moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedColumn:
    """A column that an expression gives; `metadata`: it belongs to a record of a topic."""

    name: str
    text: str
    at: int
    metadata: bool = False

    @property
    def result(self) -> str:
        """The column as a query has it."""
        return f"{self.text} AS {spark_name(self.name)}"

    def reads(self, column: str) -> bool:
        """Say whether its expression has a word like a column's name, outside of texts."""
        words = re.findall(r"\w+", _TEXTS.sub("''", self.text))
        return column.lower() in (word.lower() for word in words)


def computed_column(script: Script, name: str, written: str, at: int) -> ComputedColumn | None:
    """Return what is written behind a column's name as a computed column; None for a type."""
    plain = _COMMENT.sub("", written).strip()
    if plain.upper().startswith("AS "):
        return ComputedColumn(name=name, text=_READ_AT.sub("ingested_at", plain[3:].strip()), at=at)
    found = _METADATA.fullmatch(plain)
    if found is None:
        return None
    of = (found["of"] or name).lower()
    column = _OF_RECORDS.get(of)
    if column is None:
        raise script.refusal(
            f"column {name}: {of} of a record is not known{nearest(of, _OF_RECORDS)}",
            at=at,
            fix=f"Known are {', '.join(_OF_RECORDS)}. What a record's value has is declared as a "
            "column, and its key's columns by 'key'.",
        )
    same = found["kind"].upper() == PLACE[column]
    text = column if same else f"CAST({column} AS {found['kind']})"
    return ComputedColumn(name=name, text=text, at=at, metadata=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedTime:
    """The column that an event time is computed of.

    `items` are the columns of a log in which that column is the moment itself, declared so.
    """

    column: str
    items: str


def computed_time(computed: ComputedColumn, kinds: Mapping[str, str]) -> ComputedTime | None:
    """Return of which column of these types a moment is made; None where it cannot be declared."""
    found = next((f for each in _TIMES if (f := each.fullmatch(computed.text))), None)
    if found is None:
        return None
    column = found["of"]
    millis = "millis" in found.groupdict()
    match kinds.get(column.lower(), "").upper():
        case "TIMESTAMP" if not millis:
            return ComputedTime(column=column, items="*")
        case "BIGINT" if millis:
            own = spark_name(column)
            return ComputedTime(column=column, items=f"* REPLACE (unix_millis({own}) AS {own})")
        case "STRING" if not millis:
            # Its text is not kept: what it was is known no more than which moment it is.
            return ComputedTime(column=column, items=f"* EXCEPT ({spark_name(column)})")
        case _:
            return None
