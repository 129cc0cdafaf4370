"""All errors of SQL files at once: each with its place, what is meant, and nothing that follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from apps.cli import projection
from kernel.errors import EXIT_USAGE, InvalidRequest
from projections.sql.statements.parse import parse_script

CATALOG = {
    "streams": {
        "events.flight": {
            "columns": {
                "flight": "STRING",
                "origin": "STRING",
                "delay": "INT",
                "occurred_at": "TIMESTAMP",
            }
        }
    },
    "latests": {
        "demo.public.weather": {
            "columns": {"origin": "STRING", "hour": "TIMESTAMP", "wind": "INT"},
            "key": ["origin", "hour"],
        }
    },
}
HEAD = "CREATE PROJECTION p WITH (key = flight) AS SELECT "
GOOD = f"{HEAD}flight, origin FROM STREAM events.flight"
TWO = "CREATE PROJECTION p WITH (key = flight) AS SELECT flight FROM q;\n"
MANY = """\
CREATE SOURCE weather ON demo.public.weather WITH (key = origin, event_tme = hour, lateness = 'x');
CREATE PROJECTION delays WITH (kye = 'origin', freshness = 'soon', emit = 'finl') AS
SELECT e.orign AS origin, SUMM(e.delay) AS total, conct_ws('-', flght) AS x
FROM STREAM events.flight e WHERE e.delai > 3 GROUP BY e.orign;
CREATE PROJEKTION x AS SELECT 1;
CREATE PROJECTION y WITH (key = a) AS SELECT a FROM STREAM events.flihgt WHERE;
CREATE PROJECTION z WITH (key = flight) AS SELECT flight FROM STREAM events.flihgt
"""


def found(tmp_path: Path, text: str | bytes, *more: str) -> tuple[int, dict[str, list[str]]]:
    """Validate a text; return the exit code and the errors by statement, without the file."""
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG))
    file = tmp_path / "a.sql"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    app = typer.Typer()
    projection.register(app)
    words = ["validate", str(file), *more, "--catalog", str(tmp_path / "catalog.json"), "--json"]
    result = CliRunner().invoke(
        app, ["projection", *words, "--workspace", str(tmp_path)], catch_exceptions=False
    )
    told = {
        each["name"]: [
            error["error"].removeprefix(f"{file}:") + f" | {error['remedy']}"
            for error in each.get("errors", [])
        ]
        for each in json.loads(result.stdout)["projections"]
    }
    return result.exit_code, told


def test_every_error_of_a_file_is_told_with_its_place_and_what_is_meant(tmp_path: Path) -> None:
    code, told = found(tmp_path, MANY)
    assert code == EXIT_USAGE
    begins = {
        name: [each.partition(" | ")[0].partition("; there is")[0] for each in errors]
        for name, errors in told.items()
    }
    assert begins == {
        "weather": [
            "1:66: a source on a table has no option event_tme; did you mean event_time?",
            "1:95: lateness = 'x' is no duration",
        ],
        "delays": [
            "2:32: a projection has no option kye; did you mean key?",
            "2:60: freshness = 'soon' is no duration",
            "2:75: emit = 'finl' is no policy; did you mean 'final'?",
            "3:8: events.flight has no column orign; did you mean origin?",
            "3:27: SUMM(…) is not in the dialect; did you mean sum?",
            "3:51: CONCT_WS(…) is not in the dialect; did you mean concat_ws?",
            "3:65: no input has a column flght; did you mean flight?",
            "4:35: events.flight has no column delai; did you mean delay?",
            "4:56: events.flight has no column orign; did you mean origin?",
        ],
        "x": ["5:8: expected SOURCE or PROJECTION, found 'PROJEKTION'"],
        "y": ["6:74: the query cannot be read: WHERE is incomplete"],
        "z": ["7:70: there is no log named events.flihgt; did you mean events.flight?"],
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # What follows from an error alone is no error of its own.
        (f"{HEAD}flght, origin FROM STREAM events.flight", ["1:51: no input has a column flght"]),
        (
            f"{HEAD}flight, a + b AS c FROM STREAM events.flight",
            ["1:59: no input has a column a", "1:63: no input has a column b"],
        ),
        (
            f"{HEAD}a.flight FROM STREAM x.far a JOIN y.far b ON a.k = b.k",
            ["1:72: there is no log named x.far", "1:85: there is no table named y.far"],
        ),
        (
            f"{HEAD}flight, (SELECT 1 FROM b WHERE c) > 1 AS d, upp(x) AS e "
            "FROM STREAM events.flight GROUP BY flight",
            None,
        ),
        (
            "CREATE PROJECTION p AS SELECT nope FROM STREAM events.flight",
            ["1:1: projection p names no key", "1:31: no input has a column nope"],
        ),
        (
            f"{HEAD}flight, delay + 1, orign FROM STREAM events.flight",
            ["1:59: an expression without a name", "1:70: no input has a column orign"],
        ),
        (
            f"{HEAD}flight FROM events.flight WHERE dely > 1",
            ["1:63: events.flight is a log, not a table", "1:83: no input has a column dely"],
        ),
        # Windows' line ends, a mark of the byte order and tabs.
        (
            "\ufeff-- a\r\n" + GOOD.replace(" SELECT", "\r\n\tSELECT").replace("origin", "orign"),
            ["3:17: no input has a column orign"],
        ),
        (
            f"{HEAD}flight, origin AS o, 'äöü😀' AS x, orign FROM STREAM events.flight",
            ["1:85: no input has a column orign"],
        ),
        (
            f"{GOOD};\nCREATE PROJECTION q WITH (key = 'a) AS SELECT 1",
            ["2:33: what begins with ' here is not closed: the rest cannot be read"],
        ),
        (f"{GOOD}\n{GOOD}", ["2:1: the query cannot be read: 'CREATE' is not expected here"]),
        (
            f"{HEAD}flight, {'+'.join(['delay'] * 1500)} AS d FROM STREAM events.flight",
            ["1:1: an express"],
        ),
    ],
    ids=[
        "follows from another",
        "several in one expression",
        "several inputs",
        "a subquery",
        "no key",
        "no name",
        "a log",
        "odd line ends",
        "beyond ASCII",
        "not closed",
        "no semicolon",
        "too deep",
    ],
)
def test_errors_that_are_told(tmp_path: Path, text: str, told: list[str] | None) -> None:
    code, errors = found(tmp_path, text)
    assert code == EXIT_USAGE
    every = [each for several in errors.values() for each in several]
    if told is not None:
        assert [each[: len(wanted)] for each, wanted in zip(every, told, strict=True)] == told
    assert all(" | " in each and each.partition(" | ")[2] for each in every)


def test_who_reads_a_refused_projection_is_told_so(tmp_path: Path) -> None:
    text = f"{TWO}CREATE PROJECTION q WITH (key = a) AS SELECT FROM;\n"
    assert found(tmp_path, text)[1]["p"][0].startswith("1:1: p reads q, which is refused")
    circle = f"{TWO}{TWO.replace('FROM q', 'FROM p').replace('JECTION p', 'JECTION q')}"
    told = found(tmp_path, circle)[1]
    assert told["p"][0].startswith("1:63: projections read each other in a circle: p -> q -> p")
    assert told["q"][0].startswith("2:1: q reads p, which is refused")


def test_a_file_that_declares_nothing_is_said_to(tmp_path: Path) -> None:
    assert found(tmp_path, "-- nothing\n/* here */\n;;\n") == (0, {})


def test_elsewhere_the_first_error_is_raised() -> None:
    with pytest.raises(InvalidRequest, match="<sql>:1:66: a source on a table has no option"):
        parse_script(MANY)
