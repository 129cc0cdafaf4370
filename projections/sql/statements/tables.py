"""`CREATE TABLE … WITH ('connector' = …)` as Flink spells it: what the table stands for.

Tables of the connectors `events`, `capture` and `kafka` are read, those of `projection` are
written by an insertion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot.tokens import Token

from projections.sql.statements.computed_columns import (
    ComputedColumn,
    ComputedTime,
    computed_column,
    computed_time,
)
from projections.sql.words.options import OptionValue, value_of
from projections.sql.words.places import Script, nearest
from projections.sql.words.tokens import TokenCursor
from schemas.identifiers import spark_name

TABLE_FORM = (
    "CREATE TABLE name (column TYPE, …, PRIMARY KEY (column) NOT ENFORCED, WATERMARK FOR column AS "
    "column - INTERVAL '5' SECOND) WITH ('connector' = '…', …);"
)
_LATENESS = ("lateness", "closed_after", "idle_timeout")
CONNECTORS: Mapping[str, tuple[str, ...]] = {
    "events": ("category", "type", *_LATENESS),
    "capture": ("table", "key", "event_time", *_LATENESS),
    "kafka": (
        "topic",
        "format",
        "key",
        "event_time",
        "sequence",
        "deleted",
        "identity",
        *_LATENESS,
    ),
    "projection": ("key", "freshness", "emit", "sink", "sink_partitions"),
}
"""Connectors and their options."""
_TIME_OF_EVENTS = "occurred_at"
_NEEDED = {"events": ("category",), "capture": ("table",), "kafka": ("topic", "format")}
_MOMENT = re.compile(r"TIMESTAMP(_LTZ)?\s*\(\s*\d\s*\)", re.IGNORECASE)
_DELAY = re.compile(r"\s*-\s*INTERVAL\s*'(\d+)'\s*(SECOND|MINUTE|HOUR|DAY)S?\s*", re.IGNORECASE)
_KEY_OF_COLUMN = re.compile(r"\s+PRIMARY\s+KEY(\s+NOT\s+ENFORCED)?", re.IGNORECASE)
_NOT_OF_TYPE = re.compile(r"\s+(NOT\s+NULL|NULL|COMMENT\s+'[^']*')", re.IGNORECASE)
_FORMATS = {"avro-confluent": "avro"}
"""Formats by the names that they have for Flink."""
_FIXES = {
    "avro-confluent": "Leave it out: the registry is that of the workspace (registry.url).",
    "properties": "Leave it out: the brokers are those of the workspace (kafka.bootstrap_servers).",
    "scan": "Leave it out: a topic is read from its beginning, once.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A declared table.

    `source` is the statement that it is in the dialect, empty where it needs none. `read` is what
    stands for it in FROM, None for one that is written; `alias` goes behind that where the query
    names none. `items` are its columns where some of them are computed.
    """

    written: str
    at: int
    options: Mapping[str, OptionValue]
    columns: tuple[str, ...] = ()
    read: str | None = None
    alias: str = ""
    source: str = ""
    items: str = ""

    def rows(self, read: str) -> str:
        """Return what has its rows, those in `read`, with computed columns."""
        return f"(SELECT {self.items} FROM {read})" if self.items else read

    @property
    def name(self) -> str:
        """The name of its source or projection."""
        return self.written.lower()


def read_table(script: Script, tokens: list[Token]) -> Table:
    """Read a `CREATE TABLE`. Raises `InvalidRequest` with its place."""
    cursor = TokenCursor(script, tokens, form=TABLE_FORM)
    cursor.expect("CREATE")
    cursor.expect("TABLE")
    at = cursor.at
    written = cursor.name("the name of a table")
    body = _Body(cursor=cursor)
    body.read()
    options = _options(cursor)
    connector = _connector(script, written, options, at)
    if connector == "kafka" and "format" in options:
        given = options["format"]
        options["format"] = replace(given, text=_FORMATS.get(given.text, given.text))
    known = CONNECTORS[connector]
    items = _computed(script, connector, body)
    time = body.found.get("event_time", _TIME_OF_EVENTS)
    if connector == "events" and time.lower() != _TIME_OF_EVENTS:
        raise script.refusal(
            f"events are late by {_TIME_OF_EVENTS}, not by {time}",
            at=body.watermark_at,
            fix=f"Write WATERMARK FOR {_TIME_OF_EVENTS} AS {_TIME_OF_EVENTS} - INTERVAL '5' "
            "SECOND.",
        )
    for name, found in body.found.items():
        if name in known:
            options.setdefault(name, OptionValue(text=found, at=at))
    for name, value in options.items():
        if name not in (*known, "connector"):
            raise script.refusal(
                f"connector {connector} has no option {name}{nearest(name, known)}",
                at=value.at,
                fix=_FIXES.get(name.partition(".")[0]) or f"Options of it: {', '.join(known)}.",
            )
    for name in _NEEDED.get(connector, ()):
        if name not in options:
            raise script.refusal(
                f"table {written}: connector {connector} needs the option {name}",
                at=at,
                fix=f"Write '{name}' = '…'.",
            )
    made = _standing_for(Table(written=written, at=at, options=options), connector, body)
    return replace(made, items=items, alias=f" {written}") if items else made


def _computed(script: Script, connector: str, body: _Body) -> str:
    """Return the columns of a table that has computed ones, and declare what its time is made of.

    Raises `InvalidRequest`.
    """
    if not body.computed:
        return ""
    first = body.computed[0]
    if connector == "projection":
        raise script.refusal(
            f"column {first.name} is computed, and an insertion gives all columns",
            at=first.at,
            fix="Leave it out, or select it in the insertion.",
        )
    of_records = next((each for each in body.computed if each.metadata), None)
    if of_records is not None and connector != "kafka":
        raise script.refusal(
            f"column {of_records.name}: METADATA is of records of a topic",
            at=of_records.at,
            fix="Declare what rows have by its name, as occurred_at, recorded_at and stream of "
            "events.",
        )
    named = {each.name.lower(): each for each in body.computed}
    time = named.get(body.found.get("event_time", "").lower())
    items, made = "*", [*named.values()]
    if time is not None and time.text == "kafka_timestamp":
        del body.found["event_time"]  # It is what a topic's rows go by.
    elif time is not None:
        kinds = {name.lower(): kind for name, kind in body.columns}
        kinds |= {_TIME_OF_EVENTS: "TIMESTAMP"} if connector == "events" else {}
        known = computed_time(time, kinds)
        if known is None or (connector == "capture" and known.items != "*"):
            raise script.refusal(
                f"rows are late by a column that they have, and {time.name} is computed",
                at=time.at,
                fix="Declare the column as TIMESTAMP, which takes ISO texts and milliseconds since "
                "1970, and name it in WATERMARK. A moment may be CAST(x AS TIMESTAMP(3)), "
                "TO_TIMESTAMP(x) of a STRING, or TO_TIMESTAMP_LTZ(x, 3) of a BIGINT.",
            )
        items = known.items
        _refuse_further(script, time, known, made)
        body.found["event_time"] = known.column
        body.declare(known.column, "TIMESTAMP")
        moment = replace(time, text=spark_name(known.column))
        made = [moment if each is time else each for each in made]
    return ", ".join([items, *(each.result for each in made)])


def _refuse_further(
    script: Script, time: ComputedColumn, of: ComputedTime, computed: Sequence[ComputedColumn]
) -> None:
    """Refuse columns computed of one that is declared as the moment that it tells.

    They would be computed of the moment.
    """
    for each in computed:
        if each is not time and of.items != "*" and each.reads(of.column):
            raise script.refusal(
                f"column {each.name} is computed of {of.column}, which is read as a moment for "
                f"{time.name}",
                at=each.at,
                fix=f"Compute it in SELECT, of {time.name} or of a number of milliseconds, or "
                f"declare {of.column} as TIMESTAMP.",
            )


def _connector(script: Script, written: str, options: Mapping[str, OptionValue], at: int) -> str:
    given, known = options.get("connector"), ", ".join(CONNECTORS)
    if given is None:
        raise script.refusal(
            f"table {written} names no connector",
            at=at,
            fix=f"Write WITH ('connector' = '…', …); connectors: {known}.",
        )
    if given.text not in CONNECTORS:
        raise script.refusal(
            f"connector = '{given.text}' is not known",
            at=given.at,
            fix=f"Connectors: {known}. Events that are appended to Penstock are 'events', tables "
            "of a captured database 'capture', records of a Kafka topic 'kafka'; what is written "
            "is a 'projection'.",
        )
    return given.text


def _standing_for(table: Table, connector: str, body: _Body) -> Table:
    options, name = table.options, table.name
    rest = [each for each in CONNECTORS[connector] if each in options]
    made = replace(table, columns=tuple(column for column, _ in body.columns))
    match connector:
        case "events":
            log = f"events.{options['category'].text}"
            kind = f".{options['type'].text}" if "type" in options else ""
            rest = [each for each in rest if each in _LATENESS]
            source = f"CREATE SOURCE {name} ON {log}{with_options(options, rest)}" if rest else ""
            read = f"STREAM {log}{kind}"
            return replace(made, read=read, alias=f" {table.written}", source=source)
        case "capture":
            rest.remove("table")
            head = f"CREATE SOURCE {name} ON {options['table'].text}"
            return replace(made, read=name, source=f"{head}{with_options(options, rest)}")
        case "kafka":
            columns = ", ".join(f"{spark_name(column)} {kind}" for column, kind in body.columns)
            source = f"CREATE SOURCE {name} ({columns}){with_options(options, rest)}"
            return replace(made, read=name if "key" in options else f"STREAM {name}", source=source)
        case _:
            return made


@dataclass(slots=True, kw_only=True)
class _Body:
    """What stands in the brackets of CREATE TABLE. `found` are options that follow from it."""

    cursor: TokenCursor
    columns: list[tuple[str, str]] = field(default_factory=list)
    computed: list[ComputedColumn] = field(default_factory=list)
    found: dict[str, str] = field(default_factory=dict)
    watermark_at: int = 0

    def read(self) -> None:
        """Pass the brackets. Raises `InvalidRequest`."""
        cursor = self.cursor
        cursor.expect("(")
        while True:
            if cursor.take("WATERMARK"):
                self._watermark()
            elif cursor.take("PRIMARY KEY"):
                self._key()
            else:
                self._column()
            if not cursor.take(","):
                break
        cursor.expect(")")

    def _column(self) -> None:
        cursor, at = self.cursor, self.cursor.at
        name = cursor.name("a column's name")
        written = cursor.until_comma()
        without_key, keys = _KEY_OF_COLUMN.subn("", written)
        if keys:
            self._keyed([name], at)
        computed = computed_column(cursor.script, name, _MOMENT.sub("TIMESTAMP", written), at)
        if computed is not None:
            self.computed.append(computed)
            return
        kind = _MOMENT.sub("TIMESTAMP", _NOT_OF_TYPE.sub("", without_key)).strip()
        self.columns.append((name, kind))

    def declare(self, name: str, kind: str) -> None:
        """Give a column another type."""
        self.columns = [
            (each, kind if each.lower() == name.lower() else own) for each, own in self.columns
        ]

    def _key(self) -> None:
        cursor, at = self.cursor, self.cursor.at
        cursor.expect("(")
        names = [cursor.name("a column's name")]
        while cursor.take(","):
            names.append(cursor.name("a column's name"))
        cursor.expect(")")
        if cursor.take("NOT"):
            cursor.expect("ENFORCED")
        self._keyed(names, at)

    def _keyed(self, names: list[str], at: int) -> None:
        if "key" in self.found:
            raise self.cursor.script.refusal(
                "a table has one PRIMARY KEY",
                at=at,
                fix="Name all of its columns in one: PRIMARY KEY (a, b) NOT ENFORCED.",
            )
        self.found["key"] = ", ".join(names)

    def _watermark(self) -> None:
        cursor = self.cursor
        cursor.expect("FOR")
        self.watermark_at = cursor.at
        name = cursor.name("a column's name")
        cursor.expect("AS")
        at = cursor.at
        written = cursor.until_comma()
        delay = written.replace("`", "").strip()[len(name) :]
        found = _DELAY.fullmatch(delay)
        if not written.replace("`", "").strip().startswith(name) or (delay and not found):
            raise cursor.script.refusal(
                f"the watermark {written} is none",
                at=at,
                fix=f"Write WATERMARK FOR {name} AS {name} - INTERVAL '5' SECOND.",
            )
        self.found["event_time"] = name
        self.found["lateness"] = f"{found[1]} {found[2].lower()}s" if found else "0 seconds"


def _options(cursor: TokenCursor) -> dict[str, OptionValue]:
    cursor.expect("WITH")
    cursor.expect("(")
    found: dict[str, OptionValue] = {}
    while not cursor.take(")"):
        at = cursor.at
        name = cursor.string() or cursor.dotted("an option's name")
        found[name] = value_of(cursor, name, at, found, form="a quoted string")
        if not cursor.take(","):
            cursor.expect(")")
            break
    if cursor.rest:
        raise cursor.refusal(f"expected the end of the statement, found {cursor.found()}")
    return found


def with_options(options: Mapping[str, OptionValue], names: Iterable[str]) -> str:
    """Write some options as the dialect does."""
    parts = [f"{name} = '{_quoted(options[name].text)}'" for name in names]
    return f" WITH ({', '.join(parts)})" if parts else ""


def _quoted(text: str) -> str:
    return text.replace("'", "''")
