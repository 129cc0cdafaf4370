"""Names, types, values, DDL and JSON of every kind arrive, or are named, while parts die.

`make soak` does the same for half an hour, from any seed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.services.odd_run import OddOptions, OddRun, odd_database

pytestmark = pytest.mark.timeout(900)
SEED = 12


def test_p4_p8_odd_sources_and_events_arrive_while_parts_are_killed(whole_stack: Path) -> None:
    run = OddRun(odd_database(whole_stack), OddOptions(seed=SEED, rounds=2, tables=4))
    result = run.run()
    assert result.failed == "", result.document()
    assert result.comparisons == 1
    assert len(result.ddl) > 2
    assert result.events > 10
