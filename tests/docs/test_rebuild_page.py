"""The runbook for a lost PostgreSQL is followed on an empty one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from schemas.registry import MemoryRegistry
from tests.architecture.tree import ROOT
from tests.docs.console import commands, run
from tests.docs.markdown import blocks
from tests.integration.test_store_rebuild import answers, lived
from tests.support.store.postgres import EMPTY

PAGE = ROOT / "docs/how-to/rebuild-the-store.md"


def test_the_runbook_brings_back_a_store_from_its_lake(
    postgres_dsn: str, tmp_path: Path, new_database: Callable[..., str]
) -> None:
    lake = tmp_path / "lake"
    lived(postgres_dsn, lake, MemoryRegistry())
    new = new_database(EMPTY)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PENSTOCK_LAKE_PATH": str(lake),
        "NEW_DSN": new,
    }
    followed = [b for b in blocks(PAGE) if b.mark and b.mark[1].startswith("the test of this page")]
    assert len(followed) == 2
    for block in followed:
        for command in commands(block.text):
            run(command, folder=tmp_path, environment=environment)
    assert answers(new, lake) == answers(postgres_dsn, lake)
