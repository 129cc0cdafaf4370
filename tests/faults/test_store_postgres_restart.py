"""PostgreSQL goes down under load and comes back; the service never does, and heals by itself."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.store.killing import kill_postgres
from tests.support.store.postgres import Cluster
from tests.torture import progress
from tests.torture.__main__ import summary
from tests.torture.options import Options
from tests.torture.run import torture


def shut_down(cluster: Cluster) -> None:
    """Stop it as an operator does, without waiting for clients."""
    cluster.stop(signal.SIGINT)


@dataclass(frozen=True, kw_only=True)
class Restarted:
    """A database that goes down in one of several ways, and comes back."""

    cluster: Cluster
    down: Callable[[Cluster], None]

    @property
    def dsn(self) -> str:
        return self.cluster.dsn("postgres")

    def kill(self) -> None:
        self.down(self.cluster)
        self.cluster.start()


@pytest.mark.matrix
@pytest.mark.parametrize("down", [shut_down, kill_postgres], ids=["restarted", "killed"])
def test_p1_p11_postgres_comes_back_under_load(
    own_cluster: Cluster, tmp_path: Path, down: Callable[[Cluster], None]
) -> None:
    options = Options(
        events=1_000,
        writers=8,
        readers=2,
        services=1,
        kills=("postgres",),
        kill_every_s=0.5,
        least_kills=2,
        streams_read=10,
        folder=tmp_path,
    )
    database = Restarted(cluster=own_cluster, down=down)
    verdict = asyncio.run(torture(options, database, say=progress.silent))
    print(summary(verdict))
    assert verdict.clean, json.dumps(verdict.document(), indent=2)
    healed = [kill.healed_s for kill in verdict.board.kills if kill.healed_s is not None]
    print("healed, PostgreSQL's own start included, in s:", healed)
    assert verdict.starts == 1, "nobody started the service again"
