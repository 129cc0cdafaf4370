"""Functions of a workspace on Spark: the rows of the small executor, and failures by line."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from projections.run.matchers import register_functions
from tests.support.oracles.region_world import plain
from tests.unit.test_workspace_functions import computed, planned, read_rows

QUERY = """
SELECT id, count_letters(s, 'a') AS letters, shown(n, at) AS words, halved(x) AS half,
  halved(n) AS half_n, a_second_later(at) AS later
FROM STREAM r WHERE share(n, 2) < 2
"""
ROWS: list[dict[str, object]] = [
    {"id": 1, "s": "banana", "n": 1, "x": 3.0},
    {"id": 2, "s": None, "n": 2, "x": None},
    {"id": 3, "s": "a", "n": 9, "x": 1.0},
    {"id": 4, "s": "", "n": None, "x": float("nan")},
]


def test_functions_give_the_same_rows_on_spark(spark: SparkSession) -> None:
    made, session = planned(QUERY), spark.newSession()
    session.createDataFrame(read_rows(ROWS)).createOrReplaceTempView("in_0")
    register_functions(session, made.tree)
    theirs = session.sql(f"SELECT * FROM ({made.rows_sql}) ORDER BY id").toArrow()
    names = [each.name for each in made.columns]
    found = [{n: plain(row[n]) for n in names} for row in theirs.to_pylist()]
    ours = [{n: plain(row[n]) for n in names} for row in computed(QUERY, ROWS)]
    assert len(found) == 2
    assert found == ours
    failing = planned("SELECT id, share(x, n - 1) AS v FROM STREAM r")
    register_functions(session, failing.tree)
    with pytest.raises(PySparkException, match=r"functions/texts\.py:21: ZeroDivisionError"):
        session.sql(failing.rows_sql).toArrow()
