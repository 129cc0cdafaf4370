"""Spark for commands that build and compare tables: a session of their own, once it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from apps.executor_choice import executor_choice
from apps.settings import Settings
from lake.executor_rows import SparkRows
from lake.shipment import is_elsewhere
from pipeline.verification.large_states import LargeStates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def replay_session(found: Settings, *, also: str | None = None) -> Callable[[], SparkSession]:
    """Return what starts Spark. `also`: the root of another lake, that is read or written."""

    def start() -> SparkSession:
        from apps.spark_session import session_of_command

        master = found.text("replay.spark_master")
        return session_of_command(found, "replay-spark", master=master, also=also)

    return start


def large_states(found: Settings, *, also: str | None = None) -> LargeStates | None:
    """Return who hashes tables that are too large for a command; None where it does it itself."""
    master = found.text("replay.spark_master")
    rows = SparkRows(replay_session(found, also=also))
    return executor_choice(found, master).large_states(rows, elsewhere=is_elsewhere(master))
