"""Whether Spark works still is asked of Spark each time: an answer from before its end is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASKS = """
import sys
import psutil
from pyspark.sql import SparkSession
from lake.sessions import answers

begun = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "512m")
)
session = begun.getOrCreate()
before = [answers(session), answers(session)]
java = [each for each in psutil.Process().children(recursive=True) if each.name() == "java"]
if sys.argv[1] == "killed":
    for process in java:
        process.kill()
    psutil.wait_procs(java, timeout=30)
else:
    session.sparkContext._jsc.sc().stop()
print(before, answers(session))
for process in java:
    if process.is_running():
        process.kill()
"""


@pytest.mark.parametrize("how", ["killed", pytest.param("stopped", marks=pytest.mark.matrix)])
def test_p11_spark_that_answered_once_is_asked_again(how: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ASKS, how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.stdout.strip() == "[True, True] False", run.stderr[-3000:]
