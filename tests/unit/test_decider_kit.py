"""Given, when, then: what passes, what fails, and how failures read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from eventstore.deciders import Command, Event
from eventstore.deciders.kit import Scenarios
from tests.support.store.deciding import Count, counter, decide

adds = Scenarios(counter())
TWO = Event("added", {"by": 2})


def test_what_is_so_passes() -> None:
    adds.given().when("add", by=2).then(TWO).then_state({"total": 2})
    adds.given(TWO, TWO).when("add", {"by": -4}).then_state(Count(total=0, steps=(2, 2, -4)))
    adds.given(TWO).when("add", by=0).then_nothing()
    adds.given(TWO).when("add", by=-3).then_refused().then_refused("below zero")
    adds.given(TWO).then_state({"steps": [2]}).then_state(Count(total=2, steps=(2,)))


FAILURES: list[tuple[Callable[[], object], str]] = [
    (lambda: adds.given().when("add", by=3).then(TWO), '-      "by": 2\n+      "by": 3'),
    (lambda: adds.given().when("add", by=2).then(), "other events than expected"),
    (lambda: adds.given().when("add", by=2).then(TWO, TWO), "other events than expected"),
    (lambda: adds.given().when("add", by=2).then_nothing(), "other events than expected"),
    (lambda: adds.given().when("add", by=-1).then(TWO), "refused: a count does not"),
    (lambda: adds.given().when("add", by=-1).then_state({"total": 0}), "refused"),
    (lambda: adds.given().when("add", by=2).then_refused(), "the command was accepted"),
    (lambda: adds.given().when("add", by=-1).then_refused("above"), "refused for another reason"),
    (lambda: adds.given(TWO).then_state({"total": 3}), '-  "total": 3\n+  "total": 2'),
    (lambda: adds.given(TWO).then_state(Count()), "another state than expected"),
    (lambda: adds.given(TWO).then_state({"sum": 2}), "another state than expected"),
    (lambda: adds.given().when("multiply"), "takes no command multiply: add"),
]


@pytest.mark.parametrize(("scenario", "told"), FAILURES)
def test_what_is_not_so_fails_readably(scenario: Callable[[], object], told: str) -> None:
    with pytest.raises(AssertionError) as failed:
        scenario()
    assert told in str(failed.value)


def test_tags_and_metadata_count_where_they_are_expected() -> None:
    def tagging(command: Command, state: Count) -> list[Event]:
        return [Event("added", {"by": 1}, tags=("a",), metadata={"m": 1})]

    tagged = Scenarios(counter(decide=tagging)).given().when("add")
    tagged.then(Event("added", {"by": 1}))
    tagged.then(Event("added", {"by": 1}, tags=("a",)))
    tagged.then(Event("added", {"by": 1}, metadata={"m": 1}))
    for other in (
        Event("added", {"by": 1}, tags=("b",)),
        Event("added", {"by": 1}, metadata={"m": 2}),
        Event("added", {"by": 1}, occurred_at=datetime(2013, 1, 1, tzinfo=UTC)),
    ):
        with pytest.raises(AssertionError, match="other events"):
            tagged.then(other)


def test_a_decide_that_is_not_pure_is_found() -> None:
    numbers = itertools.count()

    def random(command: Command, state: Count) -> list[Event]:
        return [Event("added", {"by": next(numbers)})]

    with pytest.raises(AssertionError, match="not pure"):
        Scenarios(counter(decide=random)).given().when("add")

    def mutating(command: Command, state: dict[str, Any]) -> list[Event]:
        state["seen"] = True
        return []

    with pytest.raises(AssertionError, match="decide changed the state"):
        Scenarios(
            counter(decide=mutating, evolve=lambda state, event: state, initial_state={})
        ).given().when("add")


@dataclass(frozen=True)
class Forgetful:
    """Equal whatever it remembers; JSON does not keep what is hidden."""

    total: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", 0)


def test_a_state_that_a_snapshot_would_change_is_found() -> None:
    def evolve(state: Forgetful, event: Event) -> Forgetful:
        hidden = vars(state)["hidden"] + 1
        after = replace(state, total=hidden)
        object.__setattr__(after, "hidden", hidden)
        return after

    forgetful = Scenarios(counter(evolve=evolve, initial_state=Forgetful(), decide=decide))
    with pytest.raises(AssertionError, match="a snapshot changes the state"):
        forgetful.given(TWO, TWO).then_state({"total": 2})


def test_a_state_of_another_type_than_declared_is_found() -> None:
    def evolve(state: Count, event: Event) -> Count:
        return Count(total="two")

    with pytest.raises(AssertionError, match=r"cannot be kept as JSON: \$.total"):
        Scenarios(counter(evolve=evolve)).given(TWO).then_state({"total": 2})
