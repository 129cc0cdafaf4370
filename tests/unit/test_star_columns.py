"""`*` in a query over the lake: columns of projections, without what they are kept by."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel.errors import InvalidRequest
from lake.layout import Lake
from projections.serve.query import ask
from tests.support.lake.handmade import HandMade, words

CURRENT = "current/shop.public.orders"
SHOWN = ["id", "word"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A projection with hidden columns, another one, and a table of the capture."""
    made = HandMade(Lake.at(tmp_path))
    for name in ("report", "other"):
        made.deploy(name)
    epoch = made.epoch(logs={CURRENT: words((1, "a"), epoch=1)}, head=1)
    kept = words((1, "a"), epoch=1, _partial_0=[7], _seq_hi=[3])
    made.run("report", kept, epoch)
    made.run("other", words((1, "b"), epoch=1), epoch)
    return made.lake


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT * FROM report", SHOWN),
        ("FROM report", SHOWN),
        ("SELECT report.* FROM report", SHOWN),
        ("SELECT r.*, o.word AS theirs FROM report r JOIN other o USING (id)", [*SHOWN, "theirs"]),
        ("SELECT * FROM report r JOIN other o USING (id)", [*SHOWN, "word"]),
        ("SELECT * FROM (SELECT * FROM report) q", SHOWN),
        ("WITH q AS (SELECT * FROM report) SELECT * FROM q", SHOWN),
        ("SELECT * EXCLUDE (word) FROM report", ["id"]),
        ("SELECT * REPLACE (id + 1 AS id) FROM report", SHOWN),
        ("SELECT * RENAME (word AS text) FROM report", ["id", "text"]),
        ("SELECT * EXCLUDE (_PARTIAL_0) FROM report", SHOWN),
        ("SELECT * FROM report UNION ALL SELECT * FROM other", SHOWN),
        ('SELECT * FROM "projection/report"', SHOWN),
        ("SELECT * FROM other o SEMI JOIN report r USING (id)", SHOWN),
        ("SELECT * FROM other o ANTI JOIN report r USING (id)", SHOWN),
        ("SELECT * FROM report r SEMI JOIN other o USING (id)", SHOWN),
    ],
)
def test_a_star_gives_what_the_query_of_a_projection_gives(
    lake: Lake, sql: str, columns: list[str]
) -> None:
    assert [name.rpartition("_1")[0] or name for name in ask(lake, sql).rows.schema.names] == (
        columns
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT _partial_0 FROM report",
        "SELECT r._partial_0 FROM report r ORDER BY _seq_hi",
        "SELECT * FROM (SELECT _partial_0 FROM report) q",
        "SELECT * EXCLUDE (word, id), _partial_0 FROM report",
    ],
)
def test_a_hidden_column_is_read_by_its_name(lake: Lake, sql: str) -> None:
    assert ask(lake, sql).rows.to_pylist() == [{"_partial_0": 7}]


def test_tables_that_are_no_projections_show_all_their_columns(lake: Lake) -> None:
    assert "_epoch" in ask(lake, "SELECT * FROM current.shop.public.orders").rows.schema.names
    assert ask(lake, "SELECT count(*) AS n FROM report").rows.to_pylist() == [{"n": 1}]


def test_a_wrong_name_is_answered_with_the_columns_that_readers_see(lake: Lake) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(lake, "SELECT wrod FROM report")
    assert refused.value.remedy == "Did you mean word? There are: id, word"


def test_a_natural_join_is_by_what_both_show(tmp_path: Path) -> None:
    """It was by what they are kept by, too: no row of one met one of the other."""
    made = HandMade(Lake.at(tmp_path))
    for name in ("report", "other"):
        made.deploy(name)
    epoch = made.epoch(logs={CURRENT: words((1, "a"), epoch=1)}, head=1)
    made.run("report", words((1, "a"), epoch=1, _partial_0=[7], _seq_hi=[3]), epoch)
    made.run("other", words((1, "a"), epoch=1, _partial_0=[8], _seq_hi=[4]), epoch)
    for sql in (
        "SELECT * FROM report NATURAL JOIN other o",
        "FROM report r NATURAL LEFT JOIN other",
    ):
        assert ask(made.lake, sql).rows.to_pylist() == [{"id": 1, "word": "a"}], sql
    with pytest.raises(InvalidRequest, match="kept by"):
        ask(made.lake, "SELECT * FROM report a JOIN other b USING (id) NATURAL JOIN other c")
