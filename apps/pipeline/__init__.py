"""The Spark pipeline: Kafka to log, state and projections, as one Spark application.

Upstream: Kafka, registry, PostgreSQL (for lag). Downstream: the lake; health and metrics over HTTP.
Entry points: `python -m apps.pipeline`, `apps.pipeline.pipeline.Pipeline`.
"""
