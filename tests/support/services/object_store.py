"""An S3 store for lakes in tests, started at its first use and shared by the whole run."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake.layout import Lake
from stack import object_store
from stack.object_store import ObjectStore
from tests.support.services.port_blocks import PortBlock

PORT = PortBlock.WARM + 400 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""Each worker has a store of its own."""
BUCKET = "tests"


def announce() -> None:
    """Have every engine of this process look for S3 stores here. Before Spark's Java starts."""
    os.environ.update(object_store.environment(PORT))


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectStore]:
    """Return a store with an empty bucket; what tests write there lies under names of their own."""
    announce()
    store = object_store.start(PORT, BUCKET)
    yield store
    store.stop()


_ON_S3 = (pytest.mark.matrix, pytest.mark.xdist_group("spark"))
"""The store is asked for by the parameter alone, which does not tell workers where it runs."""


@pytest.fixture(params=["folder", pytest.param("s3", marks=_ON_S3)])
def any_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """Return an empty lake, in a folder and on S3 in turn."""
    if request.param == "folder":
        return Lake.at(tmp_path / "lake")
    return Lake.at(request.getfixturevalue("bucket_lake"))


@pytest.fixture
def bucket_lake(s3: ObjectStore) -> str:
    """Return the root of an empty lake in the store."""
    return f"s3://{s3.bucket}/{uuid.uuid4().hex}"
