"""`emit = 'every d'` and `'on count n'` by the pipeline's own loop: what waits, what does not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from kernel.errors import InvalidRequest
from kernel.positions import Epoch
from projections.sql.statements.parse import parse_script
from projections.sql.words.triggers import Trigger
from service.caught_up import by_design
from tests.unit.test_projection_rounds import NUMBERS, PERSONS, Rounds

EVERY = PERSONS.replace("freshness = '1 hour'", "emit = 'every 1 hour'")
COUNTED = PERSONS.replace("freshness = '1 hour'", "emit = 'on count 3'")
ALONE = NUMBERS.replace(
    "SELECT n, COUNT(*) AS persons FROM persons GROUP BY n",
    "SELECT COUNT(*) AS n, COUNT(*) AS persons "
    "FROM (SELECT 1 AS one FROM STREAM events.visit) v GROUP BY one",
)


class Triggered(Rounds):
    """A lake in which `persons` has a trigger, and `numbers` reads it or does not."""

    def __init__(self, place: Path, persons: str, *, numbers: str = NUMBERS) -> None:
        super().__init__(place, numbers=numbers)
        self.deploy("persons", persons)
        self.projecting = self.started()

    def step(self) -> None:
        for state in self.projecting.states.values():
            state.due_at = 0.0
        self.projecting.step()

    def trigger(self, name: str) -> str:
        return self.projecting.states[name].trigger or ""

    def pass_time(self, by: timedelta) -> None:
        self.projecting._triggering._written["persons"] -= by


def test_a_table_is_written_once_in_its_time_and_after_a_restart_too(tmp_path: Path) -> None:
    rounds = Triggered(tmp_path, EVERY)
    rounds.seen("a")
    rounds.step()
    assert rounds.rows("persons") == {}, "the table was made a moment ago"
    assert rounds.trigger("persons").startswith("waits for its trigger, every 1 hour: due at ")
    assert rounds.trigger("numbers").startswith("is written with persons, which waits for its")
    assert rounds.error("persons") is rounds.error("numbers") is None
    rounds.pass_time(timedelta(hours=1))
    rounds.step()
    assert rounds.rows("persons") == {"a": 1}
    assert rounds.fits()
    assert rounds.trigger("persons") == rounds.trigger("numbers") == ""
    rounds.seen("a")
    rounds.projecting = rounds.started()
    rounds.step()
    assert rounds.rows("persons") == {"a": 1}


def test_a_table_is_written_after_so_many_rows(tmp_path: Path) -> None:
    rounds = Triggered(tmp_path, COUNTED)
    for persons, rows in (("a", {}), ("b", {}), ("ac", {"a": 2, "b": 1, "c": 1})):
        rounds.seen(persons)
        rounds.step()
        assert rounds.rows("persons") == rows
        assert rounds.fits()
    rounds.seen("a")
    rounds.step()
    assert rounds.trigger("persons") == "waits for its trigger, on count 3: 1 rows came"


def test_rows_of_a_projection_are_counted_once_it_has_them(tmp_path: Path) -> None:
    counted = NUMBERS.replace("freshness = '1 second'", "emit = 'on count 1'")
    rounds = Triggered(tmp_path, PERSONS, numbers=counted)
    for persons, rows in (("a", {1: 1}), ("b", {1: 2}), ("b", {1: 1, 2: 1})):
        rounds.seen(persons)
        rounds.step()
        rounds.step()
        assert rounds.rows("numbers") == rows
        assert rounds.trigger("numbers") == ""


def test_what_waits_delays_nobody_else(tmp_path: Path) -> None:
    rounds = Triggered(tmp_path, COUNTED, numbers=ALONE)
    rounds.seen("a")
    rounds.step()
    assert rounds.rows("persons") == {}
    assert rounds.rows("numbers") == {1: 1}


def test_wait_does_not_wait_for_a_trigger() -> None:
    waits = {"trigger": "waits for its trigger", "asked": 7}
    state = {"projections": {"a": waits, "b": {"trigger": None, "asked": 7}}}
    assert by_design(state, Epoch(7)) == {"projection a": "waits for its trigger"}
    assert by_design(state, Epoch(8)) == {}, "the pipeline has not asked at that epoch yet"
    assert by_design(None, Epoch(1)) == {}


def test_triggers_are_read_and_what_is_none_is_refused() -> None:
    (every,) = parse_script(EVERY).projections
    (counted,) = parse_script(COUNTED).projections
    assert every.trigger == Trigger(every=timedelta(hours=1))
    assert counted.trigger == Trigger(count=3)
    assert every.fingerprint == counted.fingerprint, "the rows are the same"
    with pytest.raises(InvalidRequest, match="soon is no length of time"):
        parse_script(EVERY.replace("1 hour", "soon"))
