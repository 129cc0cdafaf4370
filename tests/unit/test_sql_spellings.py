"""Statements as Flink spells them become those of the dialect, with places of their own text."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from projections.sql.statements.declarations import DeclaredScript
from projections.sql.statements.parse import parse_script

CLICKS = "CREATE TABLE Clicks (u STRING, at TIMESTAMP(3)) WITH ('connector' = 'events', "
EVENTS = CLICKS + "'category' = 'click');\n"
USERS = (
    "CREATE TABLE Users (id BIGINT NOT NULL COMMENT 'it', PRIMARY KEY (id) NOT ENFORCED)\n"
    "WITH ('connector' = 'capture', 'table' = 'shop.public.users');\n"
)
TOPIC = "CREATE TABLE t ({}) WITH ('connector' = 'kafka', 'topic' = 'x', 'format' = 'json');\n"
COUNTED = "INSERT INTO Counted SELECT u, COUNT(*) AS n FROM Clicks GROUP BY u;"


def read(text: str) -> DeclaredScript:
    return parse_script(text, origin="job.sql")


def texts(text: str) -> list[str]:
    script = read(text)
    return [each.text for each in (*script.sources, *script.projections)]


def test_a_log_is_read_as_a_stream_and_the_groups_are_the_key() -> None:
    assert texts(EVENTS + COUNTED) == [
        "CREATE PROJECTION counted WITH (key = 'u') AS\n"
        "SELECT u, COUNT(*) AS n FROM STREAM events.click Clicks GROUP BY u"
    ]


def test_a_watermark_and_a_key_become_options() -> None:
    topic = (
        "CREATE TABLE Rides (`ride` BIGINT, at TIMESTAMP_LTZ(3), WATERMARK FOR at AS at - INTERVAL "
        "'5' MINUTES, PRIMARY KEY (ride) NOT ENFORCED) WITH ('connector' = 'kafka', "
        "'topic' = 'rides', 'format' = 'csv');"
    )
    (source,) = read(topic).sources
    assert source.columns == (("ride", "BIGINT"), ("at", "TIMESTAMP"))
    assert (source.name, source.topic, source.format) == ("rides", "rides", "csv")
    assert (source.key, source.event_time) == (("ride",), "at")
    assert source.lateness is not None
    assert source.lateness.total_seconds() == 300
    assert texts(EVENTS.replace("(3))", "(3), WATERMARK FOR occurred_at AS occurred_at)"))[0] == (
        "CREATE SOURCE clicks ON events.click WITH (lateness = '0 seconds')"
    )
    assert texts(USERS) == ["CREATE SOURCE users ON shop.public.users WITH (key = 'id')"]


def test_views_become_queries_of_with() -> None:
    views = (
        "CREATE VIEW loud AS SELECT u FROM Clicks WHERE u <> 'it''s';"
        "CREATE TEMPORARY VIEW louder AS SELECT u FROM loud; CREATE VIEW unread AS SELECT 1 AS x;"
    )
    inserted = "INSERT INTO counted SELECT u, COUNT(*) AS n FROM louder GROUP BY u"
    assert texts(EVENTS + views + inserted)[0].split("\n")[1] == (
        "WITH loud AS (SELECT u FROM STREAM events.click Clicks WHERE u <> 'it''s'), "
        "louder AS (SELECT u FROM loud) SELECT u, COUNT(*) AS n FROM louder GROUP BY u"
    )
    own = inserted.replace("SELECT", "WITH x AS (SELECT u FROM loud) SELECT").replace("louder", "x")
    assert texts(EVENTS + views + own)[0].split("\n")[1].startswith("WITH loud AS (")
    assert "),  x AS (SELECT u FROM loud) SELECT" in texts(EVENTS + views + own)[0]


@pytest.mark.parametrize(
    ("columns", "declared", "items"),
    [
        (
            "a INT, b AS a * 2 COMMENT 'twice', seen AS PROCTIME()",
            (("a", "INT"),),
            "*, a * 2 AS `b`, ingested_at AS `seen`",
        ),
        (
            "a BIGINT, at AS TO_TIMESTAMP_LTZ(a, 3), WATERMARK FOR at AS at - INTERVAL '5' SECOND",
            (("a", "TIMESTAMP"),),
            "* REPLACE (unix_millis(`a`) AS `a`), `a` AS `at`",
        ),
        (
            "a STRING NOT NULL, at AS CAST(a AS TIMESTAMP(3)), WATERMARK FOR at AS at",
            (("a", "TIMESTAMP"),),
            "* EXCEPT (`a`), `a` AS `at`",
        ),
        (
            "a INT, at TIMESTAMP(3) METADATA FROM 'timestamp', `offset` STRING METADATA VIRTUAL, "
            "WATERMARK FOR at AS at - INTERVAL '5' SECOND",
            (("a", "INT"),),
            "*, kafka_timestamp AS `at`, CAST(kafka_offset AS STRING) AS `offset`",
        ),
    ],
)
def test_computed_columns_are_those_of_a_query(
    columns: str, declared: tuple[tuple[str, str], ...], items: str
) -> None:
    script = read(TOPIC.format(columns) + "INSERT INTO x SELECT a FROM t GROUP BY a")
    assert script.sources[0].columns == declared
    assert script.sources[0].event_time == ("a" if declared[0][1] == "TIMESTAMP" else None)
    text = script.projections[0].text.split("\n")[1]
    assert text == f"SELECT a FROM (SELECT {items} FROM STREAM t) t GROUP BY a"
    joined = read(TOPIC.format(columns) + "INSERT INTO x SELECT a FROM t AS u GROUP BY a")
    assert ") AS u GROUP BY" in joined.projections[0].text


def test_a_table_that_is_written_says_its_key_and_how_often() -> None:
    sink = (
        "CREATE TABLE Counted (u STRING, n BIGINT) WITH ('connector' = 'projection', 'key' = 'u', "
        "'emit' = 'every 1 minute', 'freshness' = '5 seconds');"
    )
    (made,) = read(EVENTS + sink + COUNTED).projections
    assert (made.name, made.key, made.emit) == ("counted", ("u",), "every 1 minute")
    chained = "INSERT INTO Best SELECT u, MAX(n) AS n FROM Counted GROUP BY u"
    assert "FROM counted GROUP BY" in texts(EVENTS + sink + COUNTED + chained)[1]


def test_the_key_of_a_column_is_the_key() -> None:
    keyed = "CREATE TABLE Users (id BIGINT PRIMARY KEY NOT ENFORCED, n INT NOT NULL)"
    with_ = "WITH ('connector' = 'capture', 'table' = 'shop.public.users');"
    assert texts(keyed + with_) == ["CREATE SOURCE users ON shop.public.users WITH (key = 'id')"]
    sink = "CREATE TABLE Best (u STRING PRIMARY KEY, n BIGINT) WITH ('connector' = 'projection');"
    (made,) = read(EVENTS + sink + COUNTED.replace("Counted", "Best")).projections
    assert made.key == ("u",)


def test_words_that_make_no_difference_in_a_script_are_left_out() -> None:
    declared = EVENTS.replace("TABLE", "TEMPORARY TABLE IF NOT EXISTS")
    view = "CREATE OR REPLACE {} VIEW IF NOT EXISTS loud AS SELECT u FROM Clicks;"
    inserted = "INSERT INTO counted SELECT u, COUNT(*) AS n FROM loud GROUP BY u"
    for word in ("", "TEMPORARY", "TEMP"):
        assert texts(declared + view.format(word) + inserted) == texts(
            EVENTS + "CREATE VIEW loud AS SELECT u FROM Clicks;" + inserted
        )


def test_avro_of_a_registry_is_called_as_flink_calls_it() -> None:
    topic = "CREATE TABLE Rides (a INT) WITH ('connector' = 'kafka', 'topic' = 'rides', {})"
    (source,) = read(topic.format("'format' = 'avro-confluent'")).sources
    assert source.format == "avro"
    with pytest.raises(InvalidRequest) as refused:
        read(topic.format("'format' = 'avro-confluent', 'avro-confluent.url' = 'http://r:8081'"))
    assert "the registry is that of the workspace" in (refused.value.remedy or "")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (f"EXECUTE STATEMENT SET BEGIN {COUNTED} END", "read one by one"),
        ("BEGIN STATEMENT SET; END", "read one by one"),
        ("SET 'table.exec.mini-batch.enabled' = 'true'", "nothing of what is computed"),
    ],
)
def test_statements_of_a_session_are_refused_with_what_to_do(statement: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        read(EVENTS + statement)
    assert refused.value.message.startswith("job.sql:2:1: ")
    assert "Leave it out" in refused.value.remedy or "Leave out" in refused.value.remedy


LOUD = (
    "CREATE VIEW loud AS SELECT id FROM Users;\nINSERT INTO x WITH {} SELECT id FROM {} GROUP BY id"
)
LATE = EVENTS.replace("(3))", "(3), WATERMARK FOR {0} AS {0} - INTERVAL '{1}' HOUR)")


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        (CLICKS.replace("events", "kinesis") + "'a' = 'b')", (1, 69), "'kinesis' is not known"),
        ("CREATE TABLE t (a INT) WITH ()", (1, 14), "names no connector"),
        (CLICKS + "'categories' = 'x')", (1, 94), "no option categories; did you mean category"),
        (CLICKS.rstrip(", ") + ")", (1, 14), "needs the option category"),
        (
            "CREATE TABLE t (a AS b) WITH ('connector' = 'projection')",
            (1, 17),
            "column a is computed, and an insertion gives all columns",
        ),
        (
            CLICKS.replace("at T", "n INT METADATA FROM 'offset', at T") + "'category' = 'x')",
            (1, 32),
            "METADATA is of records of a topic",
        ),
        (
            "CREATE TABLE t (a INT METADATA FROM 'headers') WITH ('connector' = 'kafka')",
            (1, 17),
            "headers of a record is not known",
        ),
        (
            TOPIC.format("a DOUBLE, b AS a + 1, WATERMARK FOR b AS b"),
            (1, 27),
            "rows are late by a column that they have, and b is computed",
        ),
        (
            TOPIC.format(
                "a BIGINT, b AS CAST(A AS STRING), c AS TO_TIMESTAMP_LTZ(a, 3), "
                "WATERMARK FOR c AS c"
            ),
            (1, 27),
            "column b is computed of a, which is read as a moment for c",
        ),
        (
            USERS.replace("(id B", "(b AS id + 1, id B") + "INSERT INTO x SELECT b FROM Users FOR "
            "SYSTEM_TIME AS OF at GROUP BY b",
            (3, 29),
            "Users as of a time, with columns that are computed",
        ),
        ("CREATE TABLE t (a INT, WATERMARK FOR a AS b) WITH ()", (1, 43), "watermark b is none"),
        (EVENTS + EVENTS, (2, 14), "Clicks is declared twice"),
        (EVENTS + "INSERT INTO Clicks SELECT 1 AS x", (2, 13), "is read, and cannot be written"),
        (EVENTS + "INSERT INTO x SELECT u FROM Clicks", (2, 13), "which columns identify a row"),
        (EVENTS + "INSERT INTO x\nSELECT u, n + FROM Clicks GROUP BY u", (3, 15), "cannot be read"),
        (
            USERS + LOUD.format("loud AS (SELECT id FROM Users)", "loud"),
            (4, 20),
            "names loud, which a view is called or reads",
        ),
        (
            USERS + LOUD.format("users AS (SELECT 1 AS id)", "loud"),
            (4, 20),
            "names users, which a view is called or reads",
        ),
        (
            USERS + LOUD.format("a AS (SELECT 1 AS id), A AS (SELECT 2 AS id)", "a"),
            (4, 43),
            "WITH names A twice",
        ),
        (LATE.format("at", 5), (1, 63), "events are late by occurred_at, not by at"),
        (
            LATE.format("occurred_at", 5) + LATE.replace("Clicks", "c").format("occurred_at", 6),
            (2, 14),
            "say otherwise when its rows are late",
        ),
        (
            "CREATE TABLE t (a INT PRIMARY KEY, PRIMARY KEY (b)) WITH ()",
            (1, 48),
            "a table has one PRIMARY KEY",
        ),
        (
            EVENTS + "CREATE VIEW v AS SELECT u FROM Clicks;\n" + COUNTED.replace("Counted", "v"),
            (3, 13),
            "v is a view, and cannot be written",
        ),
        (EVENTS + "INSERT INTO É SELECT u FROM Clicks GROUP BY u", (2, 13), "cannot name"),
    ],
)
def test_what_is_refused_is_refused_at_its_place(
    text: str, place: tuple[int, int], said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(text)
    assert said in refused.value.message
    assert refused.value.message.startswith(f"job.sql:{place[0]}:{place[1]}: ")
    assert refused.value.remedy


def test_options_of_other_engines_are_refused_with_what_to_do() -> None:
    text = CLICKS.replace("events", "kafka") + "'properties.bootstrap.servers' = 'x:9092')"
    with pytest.raises(InvalidRequest) as refused:
        read(text)
    assert "the brokers are those of the workspace" in refused.value.remedy


@pytest.mark.parametrize(
    ("items", "group", "key"),
    [
        ("u, window_start AS s, window_end", "u, TUMBLE(occurred_at, INTERVAL '1' HOUR)", "u, s"),
        ("u, window_end AS e", "u, HOP(occurred_at, '1 minute', '1 hour')", "u, e"),
        ("u, window_start, window_end AS e", "u, CUMULATE(occurred_at, '1 s', '1 h')", "u, e"),
        ("u AS v, window_start", "1, SESSION(occurred_at, INTERVAL '5' MINUTE)", "v, window_start"),
        ("upper(u) AS v, 1 AS one", "upper(u), 2", "v, one"),
    ],
)
def test_a_window_and_a_place_of_group_by_are_the_key(items: str, group: str, key: str) -> None:
    inserted = f"INSERT INTO Counted SELECT {items}, COUNT(*) AS n FROM Clicks GROUP BY {group}"
    (made,) = read(EVENTS + inserted).projections
    assert ", ".join(made.key) == key


@pytest.mark.parametrize(
    ("items", "group"),
    [
        ("u", "u, TUMBLE(occurred_at, '1 hour')"),
        ("u, window_start", "u, CUMULATE(occurred_at, '1 s', '1 h')"),
        ("u", "2"),
    ],
)
def test_a_group_that_is_not_selected_is_no_key(items: str, group: str) -> None:
    with pytest.raises(InvalidRequest, match="which columns identify a row"):
        read(f"{EVENTS}INSERT INTO x SELECT {items} FROM Clicks GROUP BY {group}")


def test_a_window_of_a_table_is_read_as_one_of_its_groups() -> None:
    of_table = (
        "INSERT INTO Counted SELECT u, window_start, window_end, COUNT(*) AS n FROM TABLE(TUMBLE("
        "TABLE Clicks, DESCRIPTOR(occurred_at), INTERVAL '10' MINUTES)) GROUP BY u, window_start, "
        "window_end"
    )
    (made,) = read(EVENTS + of_table).projections
    (meant,) = read(
        f"{EVENTS}INSERT INTO Counted SELECT u, window_start, window_end, COUNT(*) AS n "
        "FROM Clicks GROUP BY u, TUMBLE(occurred_at, INTERVAL '10' MINUTES)"
    ).projections
    assert (made.query, made.key) == (meant.query, meant.key)
