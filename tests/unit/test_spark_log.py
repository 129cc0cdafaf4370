"""What Spark says of itself stands in a log of the workspace, not between a command's lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger

from apps import settings
from apps import spark_session as session
from kernel.errors import Misconfigured
from lake.spark_session import silence_errors

CHATTER = "WARNING: Using incubator modules"


def jvm() -> None:
    """Say something as Spark's JVM does: on the standard error that a child takes over."""
    subprocess.run([sys.executable, "-c", f"import sys; print({CHATTER!r}, file=sys.stderr)"])


def started(monkeypatch: pytest.MonkeyPatch, folder: Path, start: Any) -> Any:
    monkeypatch.setattr(session, "session_for", start)
    return session.session_of_command(settings.load(folder), "scratch", master="local[1]")


def test_what_spark_says_goes_to_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(*_: object, **__: object) -> str:
        jvm()
        return "session"

    assert started(monkeypatch, tmp_path, start) == "session"
    print("ours", file=sys.stderr, flush=True)
    jvm()
    log = tmp_path / ".penstock/logs/spark.log"
    assert log.read_text() == f"{CHATTER}\n"
    shown = capfd.readouterr().err
    assert shown == f"starting Spark, which writes to {log}\nours\n{CHATTER}\n"


def test_why_spark_did_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(*_: object, **__: object) -> None:
        jvm()
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    with pytest.raises(Misconfigured, match=f"Spark did not start: {CHATTER}") as refused:
        started(monkeypatch, tmp_path, start)
    assert "spark.log" in refused.value.remedy
    print("ours", file=sys.stderr, flush=True)
    assert capfd.readouterr().err.endswith("\nours\n")


@pytest.mark.parametrize("kind", ["SQL", "DataFrame"])
def test_an_error_that_is_raised_is_not_written_besides(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """As PySpark does with the error of each query that fails, before it raises it."""
    silence_errors()
    logger = PySparkLogger.getLogger(f"{kind}QueryContextLogger")
    logger.exception("a row cannot be computed", errorClass="DIVIDE_BY_ZERO")
    assert capfd.readouterr() == ("", "")
