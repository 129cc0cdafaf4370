"""How far projections are behind: in rows of the log, and in seconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from projections.run import region_runs
from projections.serve import projection_lag
from projections.serve.standings import standing
from service.lake_documents import projection_list, projection_status
from tests.unit.test_projection_rounds import Rounds


def a_minute_later() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=1)


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path)


def test_a_projection_tells_what_it_lacks_in_rows_and_seconds(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds.seen("ab")
    rounds.step()
    none = standing(rounds.lake, "persons")
    assert (none.behind, none.lag_events, none.lag_s) == (0, 0, 0.0)
    rounds.made.epoch(counts={"closed_late": 0})
    assert standing(rounds.lake, "persons").lag_s == 0.0, "an epoch without a row keeps nobody"
    rounds.made.epoch(counts={"events": 3, "changes": 2, "freshness_ms_p50": 900})
    rounds.made.epoch(counts={"records": 4})
    monkeypatch.setattr(projection_lag, "_now", a_minute_later)
    behind = standing(rounds.lake, "persons")
    assert (behind.behind, behind.lag_events) == (3, 9)
    assert 60 <= behind.lag_s < 600
    (listed,) = [d for d in projection_list(rounds.lake, lambda: None) if d["name"] == "persons"]
    assert listed["lag_events"] == 9
    told = projection_status(rounds.lake, "numbers", lambda: None)
    assert told["late_s"] == pytest.approx(float(str(told["lag_s"])) - 1.0, abs=0.01)
    assert projection_status(rounds.lake, "persons", lambda: None)["late_s"] == 0.0, "1 hour"


def test_the_bytes_of_its_state_are_told(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_runs, "_LOOK_S", 0.0)
    rounds.seen("ab")
    rounds.step()
    state = {"projections": rounds.projecting.documents()}
    few = projection_status(rounds.lake, "persons", lambda: state)["state_bytes"]
    assert isinstance(few, int)
    assert few > 0
    rounds.seen("".join(map(chr, range(0x4E00, 0x4E00 + 5_000))))
    rounds.projecting.states["persons"].due_at = 0.0
    rounds.step()
    assert rounds.error("persons") is None
    state = {"projections": rounds.projecting.documents()}
    many = projection_status(rounds.lake, "persons", lambda: state)["state_bytes"]
    assert isinstance(many, int)
    assert many > few
