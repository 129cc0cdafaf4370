"""Run the pipeline of the workspace that `PENSTOCK_WORKSPACE` names."""

from __future__ import annotations

import logging
import signal
import sys

from apps.access import access_of
from apps.pipeline.endpoint import serve
from apps.pipeline.metrics import PipelineMetrics
from apps.pipeline.pipeline import Pipeline
from apps.settings import load
from apps.source_documents import source_documents
from apps.spark_session import session_for, warm
from eventstore.postgres.heads import PostgresHeads
from kernel import failpoints
from kernel.errors import PenstockError, exit_code


def main() -> None:
    """Start Spark, then ingest and projections; end in order on SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    failpoints.arm_from_environment()
    settings = load()
    access = access_of(settings, "pipeline")
    spark = session_for(settings, "spark", master=settings.text("spark.master"))
    warm(spark)
    metrics = PipelineMetrics()
    heads = PostgresHeads(settings.required("postgres.dsn"))
    pipeline = Pipeline(spark, settings, metrics, heads)
    server = serve(
        settings.text("pipeline.host"),
        settings.number("pipeline.port"),
        access,
        metrics,
        pipeline.health,
        lambda: source_documents(settings),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: pipeline.stop())
    pipeline.run()
    server.shutdown()
    spark.stop()


if __name__ == "__main__":
    try:
        main()
    except PenstockError as error:
        print(f"error: {error.message}\n  fix: {error.remedy}", file=sys.stderr)
        raise SystemExit(exit_code(error)) from error
