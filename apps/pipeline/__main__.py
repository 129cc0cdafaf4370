"""Run the pipeline of the workspace that `PENSTOCK_WORKSPACE` names."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from functools import partial

from apps.access import access_of
from apps.capture import capture_site
from apps.pipeline.metrics import PipelineMetrics
from apps.pipeline.pipeline import Pipeline
from apps.settings import load
from apps.spark_session import session_for
from cdc.upkeep.source_documents import source_documents
from eventstore.postgres.heads import PostgresHeads
from kernel import failpoints
from kernel.errors import PenstockError, exit_code
from lake.layout import Lake
from lake.shipment import is_elsewhere
from lake.spark_session import warm
from pipeline.process.lease_keeper import LeaseKeeper, holding, lease_keeper
from service.pipeline_endpoint import serve

_DELTA_THREADS = 8


def main() -> None:
    """Start Spark, stand by for the lake's lease, then ingest and project; end on SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    failpoints.arm_from_environment()
    # deltalake's threads, one for each core by default: more of them, so that a few that wait for
    # the interpreter, to free what came from it, never are all.
    os.environ.setdefault("TOKIO_WORKER_THREADS", str(_DELTA_THREADS))
    settings = load()
    access = access_of(settings, "pipeline")
    master = settings.text("spark.master")
    spark = session_for(settings, "spark", master=master)
    if is_elsewhere(master):
        # A cluster that gives no executors is seen now. On this machine whoever needs them first
        # starts them: small epochs and small projections never do.
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
        lambda: source_documents(capture_site(settings)),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: pipeline.stopping.set())
    # What was loaded stays: to walk through all of it stops every thread for a tenth of a second,
    # and would be done again and again while epochs and rounds are made.
    gc.collect()
    gc.freeze()
    with holding(settings.state_dir) as holder:
        ttl_s = float(settings.number("pipeline.lease_seconds"))
        _run(pipeline, lease_keeper(Lake.at(settings.lake), holder, ttl_s=ttl_s))
    server.shutdown()
    spark.stop()


def _run(pipeline: Pipeline, lease: LeaseKeeper) -> None:
    """Stand by until the lake is ours; work until the end is asked for."""
    if not lease.wait(pipeline.stopping, pipeline.wait):
        return
    work = partial(lease.run, pipeline.stopping)
    renewing = threading.Thread(target=work, name="lease", daemon=True)
    renewing.start()
    pipeline.run()
    renewing.join()
    lease.release()


if __name__ == "__main__":
    try:
        main()
    except PenstockError as error:
        print(f"error: {error.message}\n  fix: {error.remedy}", file=sys.stderr)
        raise SystemExit(exit_code(error)) from error
