"""Nexmark's queries by PyFlink, in an environment of its own: one line of JSON for each.

`drive_flink.py LINES SINK QUERY…` reads the files of lines in the folder LINES as bounded streams,
by event time, with two slots and mini-batches. SINK is `nothing` (Flink's blackhole) or a folder:
JSON files, which take rows that are only added. `rows` is what the files have; the seconds are of
the job, the start of its small cluster among them. Without a query, the names of those are printed
that the sink can take.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

SETTINGS = {
    "table.local-time-zone": "UTC",
    "parallelism.default": "2",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "pipeline.object-reuse": "true",
    "taskmanager.memory.managed.size": "512m",
}
COLUMNS = {
    "person": "event BIGINT, id BIGINT, name STRING, email_address STRING, credit_card STRING, "
    "city STRING, state STRING, date_time TIMESTAMP_LTZ(3), extra STRING",
    "auction": "event BIGINT, id BIGINT, item_name STRING, description STRING, "
    "initial_bid BIGINT, reserve BIGINT, date_time TIMESTAMP_LTZ(3), expires TIMESTAMP_LTZ(3), "
    "seller BIGINT, category BIGINT, extra STRING",
    "bid": "event BIGINT, auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    "date_time TIMESTAMP_LTZ(3), extra STRING",
}
QUERIES_IN = Path(__file__).parents[1] / "nexmark" / "flink"
QUERIES = {file.stem: file.read_text() for file in sorted(QUERIES_IN.glob("*.sql"))}
ADDED_ALONE = (*("q0", "q1", "q2", "q3", "q5", "q7", "q8"), *("q10", "q11", "q14", "q20", "q22"))
"""Queries that only add rows: the others correct theirs, which Flink's files cannot take."""


def main(lines: str, sink: str, *queries: str) -> None:
    """Run each query to its end and print what it took."""
    if not queries:
        print(*(QUERIES if sink == "nothing" else ADDED_ALONE))
    own = os.getpid()
    for query in queries:
        if sink != "nothing":
            shutil.rmtree(sink, ignore_errors=True)
        tables = TableEnvironment.create(
            EnvironmentSettings.new_instance()
            .in_streaming_mode()
            .with_configuration(_configured())
            .build()
        )
        for name, columns in COLUMNS.items():
            tables.execute_sql(
                f"CREATE TABLE {name} ({columns}, WATERMARK FOR date_time AS date_time) WITH ("
                f"'connector' = 'filesystem', 'path' = 'file://{lines}/{name}.json', "
                "'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601')"
            )
        tables.execute_sql(f"CREATE VIEW found AS {QUERIES[query]}")
        with tables.execute_sql("DESCRIBE found").collect() as described:
            columns = ", ".join(f"`{row[0]}` {row[1].split(' *')[0]}" for row in described)
        where = (
            "'connector' = 'blackhole'"
            if sink == "nothing"
            else f"'connector' = 'filesystem', 'path' = 'file://{sink}', 'format' = 'json'"
        )
        tables.execute_sql(f"CREATE TABLE given ({columns}) WITH ({where})")
        before, began = _cpu(own), time.perf_counter()
        tables.execute_sql("INSERT INTO given SELECT * FROM found").wait()
        told: dict[str, object] = {
            "query": query,
            "s": time.perf_counter() - began,
            "cpu_s": _cpu(own) - before,
        }
        if sink != "nothing":
            told["rows"] = _lines_in(Path(sink))
        print(json.dumps(told), flush=True)


def _configured() -> Configuration:
    made = Configuration()
    for name, value in SETTINGS.items():
        made.set_string(name, value)
    return made


def _cpu(process: int) -> float:
    """Return the processor seconds of a process and of all that it started, as Linux counts."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return own + sum(_cpu(int(each)) for each in started)


def _lines_in(folder: Path) -> int:
    return sum(1 for file in folder.rglob("*") if file.is_file() for _ in file.open("rb"))


if __name__ == "__main__":
    main(*sys.argv[1:])
