"""Spark's Python daemon with the decoders already imported.

Spark forks a Python worker per task slot and ends it after a minute without work. Importing
pyarrow, fastavro and the decoders takes seconds on a small machine; a fork of a daemon that has
them takes milliseconds, so that the first batch after a quiet time is as fresh as any other.
Named by the setting `spark.python.daemon.module`.
"""

from __future__ import annotations

from pyspark.daemon import manager

import cdc.decode
import eventstore.decode
import pipeline.decode.records

PRELOADED = (cdc.decode, eventstore.decode, pipeline.decode.records)

if __name__ == "__main__":
    manager()
