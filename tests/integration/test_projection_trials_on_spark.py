"""`projection test` of what only Spark computes: the whole at once, patterns among it."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from pyspark.sql import SparkSession

from projections.sql.statements.parse import parse_script
from projections.trial.places import computed_on
from projections.trial.playback import ONE_BATCH, played
from projections.trial.statements import parse_tests

SQL = """
CREATE PROJECTION doubled WITH (key = 'name, at') AS
SELECT upper(lower(name)) AS name, at, total, mean
FROM STREAM events.thing.seen MATCH_RECOGNIZE (
  PARTITION BY name ORDER BY occurred_at
  MEASURES LAST(b.occurred_at) AS at, SUM(size) AS total, AVG(size) AS mean
  PATTERN (a b) DEFINE a AS upper(lower(a.name)) = 'X', b AS b.size = 2 * a.size) found;
"""
TESTS = """
INPUT events.thing.seen (name STRING, size DOUBLE);
TEST 'a thing twice as large as the one before';
GIVEN events.thing.seen (name, size, occurred_at) VALUES
  ('x', 4, '2026-03-02 10:01:00'), ('x', 2, '2026-03-02 10:00:00'),
  ('y', 1, '2026-03-02 10:00:00'), ('y', 2, '2026-03-02 10:01:00'), (NULL, 1, '2026-03-02');
EXPECT doubled (name, at, total, mean) VALUES ('X', '2026-03-02 10:01:00', 6, 3);
"""


def test_what_only_spark_computes_is_tested_as_one_batch(spark: SparkSession) -> None:
    script, tests = parse_script(SQL), parse_tests(TESTS, origin="doubled.test")
    (verdict,) = played(
        tests,
        script.sources,
        script.projections,
        lateness=timedelta(minutes=10),
        on_spark=partial(computed_on, spark.newSession()),
    )
    assert verdict.ok, verdict
    assert verdict.ways == (ONE_BATCH,)
