"""Flows as Databricks spells them become projections; what contradicts itself is refused."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.statements.parse import parse_script
from tests.support.oracles.sql_world import planned

HEAD = "CREATE FLOW f AS AUTO CDC INTO people\nFROM STREAM(shop.public.people) KEYS (id) "
TAIL = "SEQUENCE BY _lsn COLUMNS (id, name)"


def read(text: str) -> ProjectionDecl:
    (projection,) = parse_script(text, origin="flow.sql").projections
    return projection


def test_the_newest_row_of_a_key_and_options() -> None:
    made = read(
        f"{HEAD}APPLY AS DELETE WHEN _operation = 'd' {TAIL} WITH (freshness = '9 seconds')"
    )
    assert (made.name, made.key, made.freshness.seconds) == ("people", ("id",), 9)
    assert "FROM STREAM shop.public.people" in made.text
    assert "COALESCE((_operation = 'd'), FALSE)" in made.text


def test_versions_are_told_apart_by_where_they_begin() -> None:
    assert read(f"{HEAD}{TAIL} STORED AS SCD TYPE 2").key == ("id", "start_at")
    assert read(f"{HEAD}STORED AS SCD TYPE 1 {TAIL}").key == ("id",)


def test_both_names_of_the_statement_and_any_order_of_its_clauses_say_the_same() -> None:
    other = (
        "APPLY CHANGES INTO people FROM shop.public.people SEQUENCE BY _lsn COLUMNS (id, name) "
        "KEYS (id)"
    )
    other_words = HEAD.replace("AUTO CDC", "APPLY CHANGES")
    prints = {read(each).fingerprint for each in (HEAD + TAIL, other, other_words + TAIL)}
    assert len(prints) == 1


def test_a_table_of_the_script_is_read_and_a_flow_is_read_by_others() -> None:
    script = parse_script(
        "CREATE TABLE Said (id BIGINT, name STRING, n INT) WITH ('connector' = 'kafka', "
        "'topic' = 'said', 'format' = 'json');"
        "CREATE FLOW f AS AUTO CDC INTO People FROM STREAM Said KEYS (id) SEQUENCE BY n "
        "COLUMNS (id, name);"
        "INSERT INTO counted SELECT name, COUNT(*) AS n FROM people GROUP BY name;"
    )
    assert [each.name for each in script.projections] == ["people", "counted"]
    assert "FROM STREAM said" in script.projections[0].text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{HEAD}COLUMNS (id)", "1:32: a flow has no SEQUENCE BY"),
        (HEAD + TAIL.replace("COLUMNS (id, name)", ""), "1:32: the columns of the table are not"),
        (HEAD + TAIL.replace("(id, name)", "* EXCEPT (x)"), "2:60: the columns of the table are"),
        (HEAD + TAIL.replace("id, name", "name"), "2:39: id is a key of the table"),
        (f"{HEAD}{TAIL} STORED AS SCD TYPE 3", "stored as SCD TYPE 3?"),
        (f"{HEAD}{TAIL} TRACK HISTORY ON (name)", "SCD type 1 has no history"),
        (f"{HEAD}{TAIL} KEYS (id)", "2:79: KEYS stands there twice"),
        (f"{HEAD}{TAIL} IGNORE NULL UPDATES ON (nme)", "did you mean name?"),
        (f"{HEAD}{TAIL} WITH (key = 'id')", "no option key"),
        (f"{HEAD}{TAIL} WITH freshness", "options stand in brackets"),
        (f"{HEAD}{TAIL} APPLY AS DELETE WHEN", "nothing stands behind"),
        (f"{HEAD}{TAIL} APPLY AS DELETE WHEN (", "2:100: a bracket is not closed"),
        (HEAD + TAIL.replace("_lsn", "STRUCT(a, b)") + " STORED AS SCD TYPE 2", "no one value for"),
        (HEAD + TAIL.replace("_lsn", "STRUCT(a,)"), "an empty part"),
        (f"{HEAD}{TAIL} STORED AS SCD TYPE 2 APPLY AS TRUNCATE WHEN TRUE", "versions for ever"),
        (f"APPLY CHANGES INTO p FROM (SELECT 1) KEYS (id) {TAIL}", "1:22: a flow reads one stream"),
        (f"APPLY CHANGES INTO p KEYS (id) {TAIL}", "a flow has no FROM"),
        ("CREATE FLOW f AS SELECT 1", "1:18: expected APPLY"),
        (HEAD + TAIL.replace("name", "start_at") + " STORED AS SCD TYPE 2", "start_at is a name"),
        (HEAD + TAIL.replace("name", "Flow_Gone"), "2:73: Flow_Gone is a name"),
        (HEAD + TAIL.replace("name", "name, NAME"), "2:79: NAME stands there twice"),
        (f"{HEAD}WHERE id = 1) OR (id = 2 {TAIL}", "2:55: a bracket is closed that"),
        (f"{HEAD}{TAIL} WITH (emit = 'changes') AS (SELECT 1)", "options stand in brackets"),
        (f"{HEAD}{TAIL} TRACK HISTORY ON (id)", "SCD type 1 has no history"),
        (HEAD.replace("people\n", "`a b`\n") + TAIL, "1:32: 'a b' cannot name a projection"),
        (
            HEAD.replace("(shop.public.people)", " a JOIN b ON x = y") + TAIL,
            "2:1: a flow reads one",
        ),
    ],
)
def test_what_is_missing_or_contradicts_itself_is_refused_at_its_place(
    text: str, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(text)
    assert refused.value.message.startswith("flow.sql:")
    assert said in refused.value.message
    assert refused.value.remedy


@pytest.mark.parametrize(
    "condition",
    [
        "name = '('",
        "name = ')'",
        "name = 'keys'",
        "name IS NOT DISTINCT FROM 'x'",
        "`columns` = 1",
        "people.keys = 1",
    ],
)
def test_texts_and_names_begin_no_clause(condition: str) -> None:
    assert f"({condition})" in read(f"{HEAD}WHERE {condition} {TAIL}").text


def test_a_sequence_of_conditions_and_named_parts() -> None:
    parts = "STRUCT(n > 1, concat(a, ',') AS b)"
    text = read(HEAD + TAIL.replace("_lsn", parts)).text
    assert "n > 1 AS flow_sequence_0, concat(a, ',') AS flow_sequence_1" in text


def test_names_are_the_same_in_any_case() -> None:
    made = read(f"{HEAD.replace('(id)', '(Id)')}{TAIL} IGNORE NULL UPDATES ON (NAME)")
    assert (made.key, "NAME" in made.text) == (("id",), False)


def test_a_flow_reads_a_view() -> None:
    views = (
        "CREATE VIEW v AS SELECT id, start_at AS since FROM STREAM shop.public.people;\n"
        "CREATE VIEW w AS SELECT * FROM v WHERE id > 1;\n"
    )
    flow = (
        "APPLY CHANGES INTO p FROM STREAM(W) x KEYS (id) SEQUENCE BY x.since COLUMNS (id, since) "
        "STORED AS SCD TYPE 2"
    )
    text = read(views + flow).text
    assert "WITH v AS (SELECT" in text
    assert "FROM w x" in text
    with pytest.raises(InvalidRequest, match="3:20: said, which a view is called or reads"):
        read(views.replace(" v ", " said ") + flow)


def test_a_column_that_there_is_not_is_refused_at_its_place() -> None:
    text = (
        "CREATE FLOW f AS AUTO CDC INTO flown FROM STREAM events.flight.departed KEYS (flight)\n"
        "SEQUENCE BY delay COLUMNS (flight, nme)"
    )
    with pytest.raises(InvalidRequest, match=r"^<sql>:5:36: no input has a column nme"):
        planned(text)
