"""Statements are read whole or refused at their place."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kernel.errors import InvalidRequest
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.statements.parse import parse_script
from projections.sql.words.durations import in_words, parse_duration
from projections.sql.words.sinks import TopicSink

PROJECTION = "CREATE PROJECTION p WITH (key = k) AS SELECT k FROM STREAM events.a"


def refusal(text: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_script(text, origin="a.sql")
    return caught.value


def projection(text: str) -> ProjectionDecl:
    return parse_script(text).projections[0]


def test_a_topic_is_read_with_all_its_options() -> None:
    source = parse_script(
        """-- ships
        CREATE SOURCE ship_event (
          tracking_number BIGINT, occurred_at TIMESTAMP, at DECIMAL(10, 2)
        ) WITH (topic = 'ship-events', format = csv, event_time = occurred_at,
          KEY = 'tracking_number', lateness = '10 minutes', idle_timeout = '30 seconds',
          sequence = occurred_at, deleted = 'at IS NULL',
          identity = 'tracking_number, occurred_at');"""
    ).sources[0]
    assert source.name == "ship_event"
    assert source.on is None
    assert source.columns == (
        ("tracking_number", "BIGINT"),
        ("occurred_at", "TIMESTAMP"),
        ("at", "DECIMAL(10, 2)"),
    )
    assert (source.topic, source.format) == ("ship-events", "csv")
    assert (source.key, source.event_time) == (("tracking_number",), "occurred_at")
    assert (source.lateness, source.idle_timeout) == (timedelta(minutes=10), timedelta(seconds=30))
    assert (source.sequence, source.deleted) == (("occurred_at",), "at IS NULL")
    assert source.identity == ("tracking_number", "occurred_at")


def test_a_source_refines_a_table_or_a_category() -> None:
    table, category = parse_script(
        "CREATE SOURCE weather ON demo.public.weather WITH (key = origin, event_time = hour);"
        "CREATE SOURCE flights ON events.flight WITH (lateness = '1 hour')"
    ).sources
    assert (table.on, table.key, table.event_time) == ("demo.public.weather", ("origin",), "hour")
    assert (table.lateness, table.on_events) == (None, False)
    assert (category.on, category.lateness) == ("events.flight", timedelta(hours=1))
    assert category.on_events


def test_a_projection_has_defaults() -> None:
    decl = projection(PROJECTION + ";")
    assert (decl.key, decl.freshness) == (("k",), timedelta(seconds=1))
    assert (decl.emit, decl.sink) == ("changes", None)
    assert decl.text == PROJECTION


def test_a_projection_has_options() -> None:
    decl = projection(
        "CREATE PROJECTION p WITH (key = 'a, b', freshness = '2 minutes',"
        " emit = 'Every 5  seconds', sink = 'topic:x', sink_partitions = '3') AS SELECT a, b FROM t"
    )
    assert (decl.key, decl.freshness) == (("a", "b"), timedelta(minutes=2))
    assert (decl.emit, decl.sink) == ("every 5 seconds", TopicSink(topic="x", partitions=3))


def test_the_fingerprint_names_what_the_rows_depend_on() -> None:
    same = [
        PROJECTION,
        f"-- a comment\n{PROJECTION}",
        "create projection p with (KEY='k', freshness='1 hour')\n as select k -- x\n from stream"
        "\n events.a",
    ]
    other = [
        PROJECTION.replace("key = k", "key = 'k, k2'"),
        PROJECTION.replace("SELECT k", "SELECT K"),
        PROJECTION.replace("events.a", "events.b"),
        PROJECTION.replace("PROJECTION p", "PROJECTION q"),
        PROJECTION + " WHERE k = 'a'",
        PROJECTION + " WHERE k = 'A'",
    ]
    assert len({projection(text).fingerprint for text in same}) == 1
    assert len({projection(text).fingerprint for text in [PROJECTION, *other]}) == 1 + len(other)


def test_a_doubled_quote_is_a_quote() -> None:
    where = projection(PROJECTION + " WHERE k = 'it''s'").query.args["where"]
    assert where.this.expression.this == "it's"
    source = parse_script("CREATE SOURCE s (a INT) WITH (topic = 'it''s', format = json)").sources[
        0
    ]
    assert source.topic == "it's"


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("10 minutes", timedelta(minutes=10)),
        ("1 hour 30 minutes", timedelta(minutes=90)),
        ("500ms", timedelta(milliseconds=500)),
        ("2 days", timedelta(days=2)),
        ("0 seconds", timedelta()),
        ("1 month", None),
        ("ten minutes", None),
        ("10", None),
        ("", None),
        ("-1 hour", None),
        ("99999999999 weeks", None),
    ],
)
def test_durations_have_a_fixed_length(text: str, length: timedelta | None) -> None:
    assert parse_duration(text) == length


def test_durations_read_as_they_are_written() -> None:
    for length in (timedelta(minutes=90), timedelta(days=1, microseconds=7), timedelta()):
        assert parse_duration(in_words(length)) == length


REFUSED = [
    ("DROP PROJECTION p", (1, 1), "expected CREATE, found 'DROP'"),
    ("CREATE INDEX t", (1, 8), "expected SOURCE or PROJECTION, found 'INDEX'"),
    ("CREATE SOURCE s ON weather", (1, 20), "ON weather names no captured table"),
    ("CREATE SOURCE s ON events.a.b", (1, 20), "lateness belongs to a whole category"),
    ("CREATE SOURCE s ON events.a WITH (key = x)", (1, 35), "a source on events has no option key"),
    ("CREATE SOURCE s (a INT) WITH (topic = t)", (1, 1), "needs the options topic and format"),
    (
        "CREATE SOURCE s (a INT)\n WITH (topic = t, format = xml)",
        (2, 28),
        "format = 'xml' is not known",
    ),
    ("CREATE SOURCE s (a FOO) WITH (topic = t, format = csv)", (1, 20), "'FOO' is no type"),
    (
        "CREATE SOURCE s (a ARRAY<INT>) WITH (topic = t, format = json)",
        (1, 1),
        "a: ARRAY<INT> is no type of a topic's column",
    ),
    ("CREATE SOURCE s WITH (topic = t, format = json)", (1, 1), "a topic in json needs columns"),
    (
        "CREATE SOURCE s (kafka_offset INT) WITH (topic = t, format = json)",
        (1, 1),
        "one of Penstock's own",
    ),
    (
        "CREATE SOURCE s (a INT) WITH (topic = t, format = json,\n event_time = a)",
        (2, 15),
        "it is INT, not a time",
    ),
    (
        "CREATE SOURCE s (a STRING) WITH (topic = t, format = json,\n sequence = a)",
        (2, 13),
        "STRING has no order",
    ),
    (
        "CREATE SOURCE s (a INT) WITH (topic = t, format = json,\n deleted = 'b = 1')",
        (2, 12),
        "the source declares no column b",
    ),
    (
        "CREATE SOURCE s (a INT) WITH (topic = t, format = json,\n deleted = 'a + 1')",
        (2, 12),
        "neither true nor false",
    ),
    (
        "CREATE SOURCE s (a INT, A INT) WITH (topic = t, format = csv)",
        (1, 25),
        "column A is declared twice",
    ),
    (
        "CREATE SOURCE s (a INT) WITH (topic = t, format = csv, key = b)",
        (1, 62),
        "the source declares no such column",
    ),
    ("CREATE SOURCE s ON a.b.c WITH (key = 'x, x')", (1, 38), "names a column twice"),
    ("CREATE SOURCE s ON a.b.c WITH (event_time = 'x, y')", (1, 45), "takes one column, found 2"),
    ("CREATE SOURCE s ON a.b.c WITH (lateness = '1 month')", (1, 43), "is no duration"),
    ("CREATE SOURCE s ON a.b.c garbage", (1, 26), "expected the end of the statement"),
    ("CREATE SOURCE events ON a.b.c", (1, 15), "'events' cannot name a source"),
    ("CREATE PROJECTION P WITH (key = k) AS SELECT k", (1, 19), "'P' cannot name a projection"),
    ("CREATE PROJECTION a.b WITH (key = k) AS SELECT k", (1, 19), "cannot name a projection"),
    ("CREATE PROJECTION p AS SELECT 1", (1, 1), "names no key"),
    (
        "CREATE PROJECTION p WITH (key = k, frehsness = '1 s') AS SELECT k",
        (1, 36),
        "no option frehsness; did you mean freshness?",
    ),
    ("CREATE PROJECTION p WITH (key = k, key = k) AS SELECT k", (1, 36), "key is given twice"),
    ("CREATE PROJECTION p WITH (key = 'a b') AS SELECT k", (1, 33), "'a b' is no column name"),
    ("CREATE PROJECTION p WITH (key = k, emit = 'often') AS SELECT k", (1, 43), "is no policy"),
    ("CREATE PROJECTION p WITH (key = 'a' 'b') AS SELECT k", (1, 37), "two strings in a row"),
    ("CREATE PROJECTION p WITH (key = k) SELECT k", (1, 36), "expected AS, found 'SELECT'"),
    ("CREATE PROJECTION p WITH (key = k) AS", (1, 38), "expected a SELECT after AS"),
    ("CREATE PROJECTION p WITH (key = k) AS SHOW TABLES", (1, 39), "expected SELECT, found 'SHOW'"),
    ("CREATE PROJECTION p WITH (key = k) AS\nSELECT a b\n c d", (3, 2), "the query cannot be read"),
    ("CREATE PROJECTION p WITH (key = 'k) AS SELECT k", (1, 33), "what begins with ' here"),
    (f"{PROJECTION};\n{PROJECTION}", (2, 8), "p is declared twice"),
]


@pytest.mark.parametrize(("text", "place", "reason"), REFUSED)
def test_what_cannot_be_read_is_refused_at_its_place(
    text: str, place: tuple[int, int], reason: str
) -> None:
    error = refusal(text)
    assert reason in error.message
    assert error.message.startswith(f"a.sql:{place[0]}:{place[1]}: ")
    assert (error.fields["line"], error.fields["column"]) == place
    assert error.remedy


def test_stream_stays_a_name_where_it_is_one() -> None:
    query = projection(
        "CREATE PROJECTION p WITH (key = stream) AS SELECT e.stream, stream AS s FROM stream x e"
    ).query
    assert [output.sql() for output in query.expressions] == ["e.stream", "stream AS s"]
    assert type(query.args["from_"].this).__name__ == "Stream"
