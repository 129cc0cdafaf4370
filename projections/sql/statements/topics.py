"""Sources on external topics: what their statements may say, and what they say of a record."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kernel.errors import InvalidRequest
from projections.sql.statements.ending import ending_text
from projections.sql.words.catalog import PLACE, Column, Relation
from projections.sql.words.collected_refusals import raising
from projections.sql.words.options import FORMATS, StatementOptions
from projections.sql.words.places import Script
from schemas.topic_records import AVRO, TopicShape
from schemas.topic_values import TYPES, value_type

if TYPE_CHECKING:
    from projections.sql.statements.declarations import SourceDecl

TOPICS = "topics"
"""Begins the names of the streams of external topics: `topics.pings`."""
_ORDERED = ("INT", "BIGINT", "DATE", "TIMESTAMP")
_NAMES = ("key", "event_time", "sequence", "identity")


def log_of(source: SourceDecl) -> str | None:
    """Return the name of the stream that an external topic is; None for any other source."""
    return None if source.topic is None else f"{TOPICS}.{source.name}"


def shape_of(source: SourceDecl) -> TopicShape | None:
    """Return what a source says of the records of its topic; None where it reads none."""
    if source.topic is None or source.format is None:
        return None
    return TopicShape(
        source=source.name,
        topic=source.topic,
        format=source.format,
        columns=source.columns,
        key=source.key,
        event_time=source.event_time,
        sequence=next(iter(source.sequence), None),
        identity=source.identity,
        deleted=source.deleted,
    )


def declared_stream(source: SourceDecl) -> Relation | None:
    """Return the stream of a topic as it is declared; None where the schemas name its columns."""
    if not source.columns:
        return None
    kinds = {**dict(source.columns), **PLACE}
    return Relation(
        name=f"{TOPICS}.{source.name}",
        columns=tuple(Column(name=name, type=kind) for name, kind in kinds.items()),
        key=(),
        event_time=source.event_time or "kafka_timestamp",
    )


def declared_history(source: SourceDecl) -> Relation | None:
    """Return the versions of a topic's keys as they are declared; None without a key."""
    stream = declared_stream(source)
    if stream is None or not source.key:
        return None
    return replace(stream, name=source.name, key=source.key, event_time="valid_from")


def check_topic(
    script: Script, given: StatementOptions, columns: tuple[tuple[str, str], ...], at: int
) -> None:
    """Check the options and columns of a source on a topic. Raises `InvalidRequest`."""
    if given.text("topic") is None or given.text("format") is None:
        raise script.refusal(
            "a source on a topic needs the options topic and format",
            at=at,
            fix=f"Write WITH (topic = '…', format = '{FORMATS[0]}').",
        )
    if given.text("format") not in FORMATS:
        raise script.refusal(
            f"format = '{given.text('format')}' is not known",
            at=given.place("format", at),
            fix=f"Formats: {', '.join(FORMATS)}.",
        )
    if not columns and given.text("format") != AVRO:
        raise script.refusal(
            f"a topic in {given.text('format')} needs columns",
            at=at,
            fix="Declare them: CREATE SOURCE name (device BIGINT, at TIMESTAMP) WITH (…).",
        )
    _check_columns(script, columns, at)
    if columns:
        _check_names(script, given, dict(columns), at)
    deleted = given.text("deleted")
    if deleted is not None:
        try:
            with raising():
                ending_text(deleted, columns)
        except InvalidRequest as error:
            raise script.refusal(
                f"deleted = '{deleted}': {error.message}",
                at=given.place("deleted", at),
                fix="Write a condition over declared columns, as deleted = 'state = 2'.",
            ) from error


def _check_columns(script: Script, columns: tuple[tuple[str, str], ...], at: int) -> None:
    for name, kind in columns:
        if value_type(kind) is None:
            raise script.refusal(
                f"column {name}: {kind} is no type of a topic's column",
                at=at,
                fix=f"Types: {TYPES}. What is nested can be read as STRING, which is its JSON.",
            )
        if name.lower() in PLACE or name.startswith("_"):
            raise script.refusal(
                f"column {name}: the name is one of Penstock's own",
                at=at,
                fix=f"Every record has the columns {', '.join(PLACE)}.",
            )


def _check_names(script: Script, given: StatementOptions, kinds: dict[str, str], at: int) -> None:
    known = {name.lower(): kind for name, kind in kinds.items()}
    for option in _NAMES:
        for column in given.columns(option):
            if column.lower() not in known:
                raise script.refusal(
                    f"{option} = {column}: the source declares no such column",
                    at=given.place(option, at),
                    fix=f"Declared columns: {', '.join(sorted(known))}.",
                )
    time, order = given.column("event_time"), given.column("sequence")
    if time is not None and known[time.lower()] != "TIMESTAMP":
        raise script.refusal(
            f"event_time = {time}: it is {known[time.lower()]}, not a time",
            at=given.place("event_time", at),
            fix=f"Declare {time} TIMESTAMP: it takes ISO texts and milliseconds since 1970.",
        )
    if order is not None and known[order.lower()] not in _ORDERED:
        raise script.refusal(
            f"sequence = {order}: {known[order.lower()]} has no order to go by",
            at=given.place("sequence", at),
            fix=f"Name one column of {', '.join(_ORDERED)}.",
        )
