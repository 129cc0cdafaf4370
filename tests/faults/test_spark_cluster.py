"""The whole way on a standalone cluster, whose workers have no checkout, while executors die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from apps.settings import Settings
from tests.architecture.tree import ROOT
from tests.support.services.port_blocks import PortBlock
from tests.support.services.spark_cluster import SparkCluster
from tests.support.services.waiting import until
from tests.support.services.whole_stack import SOURCE, Teller, WholeStack, captured_bank

pytestmark = pytest.mark.matrix
KILLS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    made = SparkCluster(tmp_path_factory.mktemp("spark") / "a cluster")
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_p1_p4_executors_are_killed_amid_the_whole_way_and_nothing_is_lost(
    cluster: SparkCluster, stack: Settings, tmp_path: Path
) -> None:
    workspace = written(tmp_path / "a workspace", stack, cluster)
    with running(workspace, cluster.folder / "pipeline.log") as pipeline:
        bank = captured_bank(workspace)
        bank.await_equal()
        assert pipeline.poll() is None
        teller = Teller(bank.dsn)
        teller.start()
        for number in range(KILLS):
            done = teller.done
            until(lambda: bool(cluster.executors()), "there is an executor", deadline_s=60)
            until(lambda least=done + 50: teller.done > least, "money moves", deadline_s=60)
            if number == KILLS // 2:
                cluster.kill_worker()
                cluster.add_worker()
            else:
                assert cluster.kill_executor()
        teller.finish()
        bank.await_equal()
        assert bank.doubled() == 0
        assert bank.accounts() == 40_000
        assert by_executors(bank), "executors wrote the log"
        assert pipeline.poll() is None, "the pipeline is the same process as before"
        bank.command("source", "remove", SOURCE, "--yes")
    with psycopg.connect(stack.required("postgres.dsn"), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {SOURCE} WITH (FORCE)".encode())


def by_executors(bank: WholeStack) -> bool:
    """Whether files of the log have names as executors give them."""
    folder = Path(bank.lake.path(f"log/changes/{SOURCE}"))
    return any("-e" in path.name for path in folder.rglob("part-*-e*.parquet"))


def written(workspace: Path, stack: Settings, cluster: SparkCluster) -> Path:
    """Write the settings of a workspace whose pipeline works on the cluster."""
    workspace.mkdir()
    name = f"c{uuid.uuid4().hex[:8]}"
    keys = ("postgres.dsn", "kafka.bootstrap", "registry.url", "connect.url")
    found: dict[str, object] = {key: stack.required(key) for key in keys}
    found |= {
        "workspace.name": name,
        "kafka.topic_prefix": f"{name}.",
        "pipeline.executor": "spark",
        "pipeline.port": int(PortBlock.WARM) + 430,
        "pipeline.url": f"http://127.0.0.1:{int(PortBlock.WARM) + 430}",
        "pipeline.driver_memory": "768m",
        "service.auth": "none",
        "spark.master": cluster.url,
        **cluster.settings,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in found.items()]
    (workspace / "penstock.toml").write_text("\n".join(lines))
    return workspace


@contextmanager
def running(workspace: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the pipeline of a workspace as a process of its own."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "apps.pipeline"],
            cwd=ROOT,
            env={**os.environ, "PENSTOCK_WORKSPACE": str(workspace)},
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    except BaseException as error:
        error.add_note(log.read_text(errors="replace")[-6_000:])
        raise
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
