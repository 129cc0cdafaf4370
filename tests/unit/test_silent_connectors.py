"""A connector that runs and brings nothing is told, and none that is only slow or at rest."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cdc.upkeep.silent_connectors import SILENT_LOOKS, SilentConnectors
from service.standstills import of_pipeline


@dataclass
class Looked:
    """Looks at one connector, once a second."""

    seconds: list[float] = field(default_factory=lambda: [0.0])
    unread: bool = False

    def __post_init__(self) -> None:
        self.known = SilentConnectors(lambda: self.seconds[0])

    def look(self, times: int, *, marks: object = 0, behind: bool = True) -> str | None:
        for _ in range(times):
            self.seconds[0] += 1
            self.known.look("shop", behind=behind, marks=marks, unread=lambda: self.unread)
        return self.known.reasons.get("shop")


@pytest.fixture
def looked() -> Looked:
    return Looked()


def test_a_connector_is_silent_after_a_minute_without_anything_new(looked: Looked) -> None:
    assert looked.look(SILENT_LOOKS - 1) is None
    assert "has brought nothing for 59 s" in (looked.look(1) or "")
    assert "for 60 s" in (looked.look(1) or "")
    assert looked.look(1, marks=1) is None
    assert looked.look(SILENT_LOOKS - 2, marks=1) is None


def test_one_whose_database_rests_is_not_silent(looked: Looked) -> None:
    assert looked.look(3 * SILENT_LOOKS, behind=False) is None
    assert looked.look(SILENT_LOOKS - 1) is None


def test_what_waits_in_kafka_is_no_silence_of_the_connector(looked: Looked) -> None:
    looked.unread = True
    assert looked.look(3 * SILENT_LOOKS) is None
    looked.unread = False
    assert looked.look(1) is not None
    looked.known.forget("shop")
    assert looked.look(1) is None


def test_time_in_which_nobody_looked_is_no_silence(looked: Looked) -> None:
    looked.look(SILENT_LOOKS - 2)
    looked.seconds[0] += 3600
    assert looked.look(1) is None


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"connectors": {"shop": "running"}}, ["shop"]),
        ({"connectors": {"shop": "paused"}}, []),
        ({"connectors": {"shop": "running"}, "gaps": {"shop": "the cause"}}, []),
    ],
)
def test_a_connector_that_is_silent_for_another_reason_is_told_by_that(
    state: dict[str, object], told: list[str]
) -> None:
    found = of_pipeline({**state, "silent": {"shop": "it is silent | fix: penstock mend it"}})
    assert [each.name for each in found if each.component == "connector"] == told
    assert [each.command for each in found if each.component == "connector"] == [
        "penstock mend it"
    ] * len(told)
