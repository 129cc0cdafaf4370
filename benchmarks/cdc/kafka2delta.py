"""kafka2delta beside Penstock: the same tables through a connector of the shape that it reads.

It wants rows unwrapped by Debezium's own transformation, with the LSN and a mark of deletion.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from benchmarks.cdc.beside import Rival
from benchmarks.cdc.world import SOURCE, World
from benchmarks.peers.install import HERE, default_cache
from cdc.connect import ConnectClient
from cdc.removal import retire_connector
from kernel.errors import Misconfigured

PREFIX = "flat"
_PINS = HERE / "kafka2delta.txt"
_KEPT = (
    "connector.class",
    "tasks.max",
    "database.",
    "plugin.name",
    "publication.",
    "table.include.list",
    "topic.creation.",
    "poll.interval.ms",
    "max.",
    "exactly.once.support",
    "transaction.boundary",
    "key.converter",
    "value.converter",
)


@contextmanager
def unwrapped(world: World) -> Iterator[None]:
    """Run a second connector over the captured tables: rows only, the LSN beside them."""
    name = f"{world.settings.name}-{PREFIX}"
    with ConnectClient(world.settings.required("connect.url")) as connect:
        ours = connect.config(f"{world.settings.name}-{SOURCE}")
        assert ours is not None, "the tables are captured"
        config = {key: value for key, value in ours.items() if key.startswith(_KEPT)}
        config |= {
            "slot.name": "kafka2delta",
            "topic.prefix": PREFIX,
            "snapshot.mode": "no_data",
            "tombstones.on.delete": "false",
            "decimal.handling.mode": "precise",
            "transforms": "unwrap",
            "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
            "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
            "transforms.unwrap.add.fields": "lsn:log_sequence_number,source.ts_us:committed_us",
        }
        connect.apply(name, config)
        connect.await_running(name, timeout_s=60)
        try:
            yield
        finally:
            retire_connector(name, connect)
            with psycopg.connect(world.dsn, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                    " WHERE slot_name = 'kafka2delta' AND active"
                )
                connection.execute("SELECT pg_drop_replication_slot('kafka2delta')")


def start(path: str, rows: pa.Table) -> None:
    """Write the first rows with the columns that it adds; no change is older than they are."""
    columns = ["id", "customer_id", "status", "amount", "note", "updated_at"]
    rows = rows.select(columns)
    for name in ("__log_sequence_number", "__committed_us"):
        rows = rows.append_column(name, pa.array([0] * rows.num_rows, pa.int64()))
    amount = rows["amount"]
    if not pa.types.is_decimal(amount.type):
        rows = rows.set_column(3, "amount", pc.cast(amount, pa.decimal128(12, 2)))
    write_deltalake(path, rows)


def environment(world: World) -> Mapping[str, str]:
    """Return where its package is, installed at the pinned version."""
    folder = default_cache() / "kafka2delta"
    if not (folder / "installed").exists():
        world.progress(f"  installing kafka2delta into {folder}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        ended = subprocess.run(
            [*pip, folder, "-r", _PINS], capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            said = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
            raise Misconfigured(
                f"kafka2delta cannot be installed: {said}",
                remedy="Measure without it: --cdc-products penstock,naive_merge,debezium",
            )
        (folder / "installed").touch()
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


RIVAL = Rival(
    module="benchmarks.cdc.kafka2delta_merge",
    prefix=PREFIX,
    capture=unwrapped,
    start=start,
    environment=environment,
)
