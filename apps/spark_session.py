"""The Spark session of a workspace: with the jars of the local stack, and its own settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from apps.settings import Settings
from kernel.errors import Misconfigured, first_line
from lake.spark_session import start_session
from lake.storage import spark_settings
from stack.jars import resolve
from stack.java import find_java
from stack.lock import STORES

_STDERR = 2


def session_of_command(
    found: Settings, scratch: str, *, master: str, also: str | None = None
) -> SparkSession:
    """Start Spark for a command as `session_for` does, without its words between those of ours.

    They go to the end of a log of the workspace, `penstock logs spark`, as long as Spark runs.
    Raises `Misconfigured` with the last of them where Spark does not start.
    """
    log = found.state_dir / "logs" / "spark.log"
    print(f"starting Spark, which writes to {log}", file=sys.stderr, flush=True)
    return _quietly(lambda: session_for(found, scratch, master=master, also=also), log)


def session_for(
    found: Settings, scratch: str, *, master: str, also: str | None = None
) -> SparkSession:
    """Start Spark for a workspace's lake; `scratch` names a folder of its state.

    `also`: the root of another lake that is written.
    """
    roots = [found.lake] if also is None else [found.lake, also]
    stores = [name for name in STORES if any(root.startswith(f"{name}://") for root in roots)]
    return start_session(
        resolve("spark", *stores).spark_jars(),
        scratch=found.state_dir / scratch,
        memory=found.text("pipeline.driver_memory"),
        java_home=find_java().home,
        master=master,
        further={name: each for root in roots for name, each in spark_settings(root).items()},
        asked=found.spark(),
    )


def _quietly(start: Callable[[], SparkSession], log: Path) -> SparkSession:
    """Start Spark with a file for its standard error, which it keeps; ours is as before."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    terminal = os.dup(_STDERR)
    try:
        with log.open("ab") as file:
            begun = file.tell()
            os.dup2(file.fileno(), _STDERR)
        return start()
    except PySparkRuntimeError as error:
        with log.open("rb") as file:
            file.seek(begun)
            said = file.read().decode(errors="replace").strip().splitlines()
        raise Misconfigured(
            f"Spark did not start: {said[-1] if said else first_line(error)}",
            remedy=f"Mend what it says, or read all of it in {log}.",
        ) from error
    finally:
        os.dup2(terminal, _STDERR)
        os.close(terminal)
