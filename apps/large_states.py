"""Executors for commands that compare tables: a session of the command's own, once it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apps.executor_choice import executor_choice
from apps.settings import Settings
from apps.shipment import is_elsewhere
from lake.executor_rows import SparkRows
from pipeline.verification.large_states import LargeStates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def large_states(found: Settings, *, also: str | None = None) -> LargeStates | None:
    """Return who hashes tables that are too large for a command; None where it does it itself.

    `also`: the root of another lake that is read.
    """
    master = found.text("replay.spark_master")
    choice = executor_choice(found, master)

    def start() -> SparkSession:
        from apps.spark_session import session_of_command

        return session_of_command(found, "replay-spark", master=master, also=also)

    return choice.large_states(SparkRows(start), elsewhere=is_elsewhere(master))
