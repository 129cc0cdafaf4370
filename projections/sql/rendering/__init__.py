"""The batch query of every operator, once for both engines, and the words of each engine.

Upstream: a plan tree. Downstream: text for DuckDB and Spark.
Entry points: `batch.whole`, `spark_text.SparkText`, `duckdb_text`, `certified.uncertified`.
"""
