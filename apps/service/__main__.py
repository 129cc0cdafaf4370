"""Run the HTTP service: `python -m apps.service`. Settings come from `apps.settings`."""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import sys
from pathlib import Path

from apps.service.config import service_config
from apps.service.runtime import Runtime
from apps.service.serving import server_of
from apps.settings import load
from kernel import failpoints
from kernel.errors import PenstockError, exit_code
from schemas.registry import ConfluentRegistry


def main() -> None:
    """Serve until SIGTERM or SIGINT; what is queued by then is committed and answered."""
    parser = argparse.ArgumentParser(prog="python -m apps.service", description=__doc__)
    parser.add_argument("--workspace", type=Path, default=None)
    arguments = parser.parse_args()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    # The readers' pool says each second that PostgreSQL is away; readiness says it too.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        failpoints.arm_from_environment()
        config = service_config(load(arguments.workspace))
        runtime = Runtime(config, ConfluentRegistry(config.registry_url))
    except PenstockError as error:
        print(f"error: {error.message}\n  fix: {error.remedy}", file=sys.stderr)
        raise SystemExit(exit_code(error)) from error
    server = server_of(runtime)
    # uvicorn raises the signal again once it has stopped: a stop that was asked for is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # Requests leave no cycles behind: walking through all live objects every 700 is for nothing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    server.run()
    if not server.started:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
