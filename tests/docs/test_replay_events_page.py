"""The page on replaying events elsewhere is followed: a topic of the warm broker, another store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from apps.settings import Settings
from tests.architecture.tree import ROOT
from tests.docs.console import Command, commands, run
from tests.docs.markdown import blocks
from tests.support.lake.retold import Origin
from tests.support.services.http import service_in_thread

PAGE = ROOT / "docs/how-to/replay-events-elsewhere.md"


def test_the_page_replays_events_into_a_topic_and_a_store(
    stack: Settings,
    prefix: str,
    postgres_dsn: str,
    new_database: Callable[..., str],
    tmp_path: Path,
) -> None:
    origin = Origin(dsn=postgres_dsn, lake=tmp_path / "lake")
    origin.live()
    followed = [b for b in blocks(PAGE) if b.mark and b.mark[1].startswith("the test of this page")]
    assert len(followed) == 4
    with service_in_thread(new_database()) as http:
        environment = origin.environment(
            PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin",
            PENSTOCK_KAFKA_BOOTSTRAP=stack.required("kafka.bootstrap"),
            PENSTOCK_WORKSPACE_NAME=prefix.rstrip("."),
            OTHER=str(http.base_url).rstrip("/"),
        )
        for block in followed:
            for command in commands(block.text):
                # The broker is shared with other tests: each has topics of its own.
                text = command.text.replace("topic:", f"topic:{prefix}")
                expected = (command.expected or "").replace("topic:", f"topic:{prefix}")
                own = Command(text=text, expected=expected)
                run(own, folder=tmp_path, environment=environment)
