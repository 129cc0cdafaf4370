"""Killing a PostgreSQL as a crash would, and services that write while it happens."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass

import psutil

from eventstore.postgres.schema_cache import PostgresSchemaCache
from eventstore.postgres.store import PostgresEventStore
from tests.support.store.postgres import Cluster
from tests.torture.transacting import SCHEMA_ID, schema
from tests.torture.workload import SAMPLE, SUBJECT

BODY = SAMPLE


def kill_postgres(cluster: Cluster) -> None:
    """Kill the postmaster with SIGKILL, and wait until its last child has noticed."""
    children = psutil.Process(cluster.pid).children(recursive=True)
    cluster.stop(signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive, "PostgreSQL's processes outlive their postmaster"


@dataclass(frozen=True, kw_only=True)
class MortalDatabase:
    """A cluster as `tests.torture` wants it: killed, it comes back."""

    cluster: Cluster

    @property
    def dsn(self) -> str:
        return self.cluster.dsn("postgres")

    def kill(self) -> None:
        kill_postgres(self.cluster)
        self.cluster.start()


def known_type(dsn: str) -> None:
    """Keep the schema of `order.happened`: services need no registry for it."""

    async def keep() -> None:
        async with PostgresEventStore(dsn) as store:
            cache = PostgresSchemaCache(store)
            await cache.keep(SUBJECT, SCHEMA_ID, schema())

    asyncio.run(keep())
