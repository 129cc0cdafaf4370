"""The warm stack: real PostgreSQL, Kafka, registry and Connect, and one Spark session, per run.

A pytest plugin module. Tests keep apart by names: each takes a fresh topic prefix, lake, database
or source. A part that does not come up fails the tests that ask for it.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings, load
from lake.layout import Lake
from lake.spark_session import start_session, warm
from lake.storage import spark_settings
from stack import parts as definitions
from stack.control import UpOptions, down, up
from stack.jars import resolve
from stack.java import find_java
from stack.plan import Restarts
from tests.support.services.object_store import BUCKET, announce
from tests.support.services.port_blocks import PortBlock

PARTS = ("postgres", "kafka", "registry", "connect")
# Tests kill parts, several in a minute: that is no reason to give one up for all that follow.
_RESTARTS = Restarts(cap=1_000, most_s=2.0)


@pytest.fixture(scope="session")
def stack() -> Iterator[Settings]:
    """Settings of a running stack without service and pipeline, shared by the whole run."""
    workspace = Path(tempfile.mkdtemp(prefix="penstock-tests-"))
    # PostgreSQL refuses root and runs as a user that must be able to pass this folder.
    workspace.chmod(0o711)
    try:
        with pytest.MonkeyPatch.context() as patched:
            # As for Spark: what a worker of Connect compiles well, it runs too seldom here.
            patched.setattr(definitions, "_JVM", definitions._SMALL_JVM)
            up(workspace, UpOptions(port_base=PortBlock.WARM, parts=PARTS, restarts=_RESTARTS))
        settings = load(workspace)
        with psycopg.connect(settings.required("postgres.dsn"), autocommit=True) as connection:
            # A killed process is not a lost machine: nothing that tests do needs the disk's word.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield settings
    finally:
        down(workspace)
        shutil.rmtree(workspace, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session with Kafka and Delta, in this process, for lakes in folders and on S3."""
    announce()
    session = start_session(
        resolve("spark", "s3").spark_jars(),
        scratch=tmp_path_factory.mktemp("spark"),
        memory="1g",
        java_home=find_java().home,
        further=spark_settings(f"s3://{BUCKET}"),
    )
    warm(session)
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return an empty lake."""
    return Lake.at(tmp_path / "lake")


@pytest.fixture
def prefix() -> str:
    """Return a topic prefix of this test's own."""
    return f"t{uuid.uuid4().hex[:10]}."
