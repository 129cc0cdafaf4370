"""Lanes that are held or apart: pauses that grow, and who is read with the others again."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.lanes.lane_book import PAUSES_S, STEADY_S, LaneBook


@dataclass
class Clock:
    at: float = 100.0

    def __call__(self) -> float:
        return self.at


def test_a_lane_that_fails_is_tried_again_after_pauses_that_grow() -> None:
    clock = Clock()
    book = LaneBook(clock)
    for pause in (*PAUSES_S, PAUSES_S[-1]):
        book.hold("readings", "the registry does not answer")
        assert book.due() == []
        clock.at += pause - 0.01
        assert book.due() == []
        clock.at += 0.02
        assert book.due() == ["readings"]
    assert book.document() == {
        "readings": {
            "state": "held",
            "reason": "the registry does not answer",
            "failures": len(PAUSES_S) + 1,
        }
    }
    assert book.held() == {"readings": "the registry does not answer"}


def test_a_lane_that_is_read_again_joins_once_it_has_kept_up_for_a_while() -> None:
    clock = Clock()
    book = LaneBook(clock)
    book.hold("readings", "gone")
    book.reads("readings")
    assert book.held() == {}
    assert book.names == {"readings"}
    assert not book.keeps_up("readings", now=True)
    clock.at += STEADY_S - 1
    assert not book.keeps_up("readings", now=False), "it fell behind"
    assert not book.keeps_up("readings", now=True)
    clock.at += STEADY_S
    assert book.keeps_up("readings", now=True)
    book.join("readings")
    assert book.names == frozenset()


def test_a_lane_that_only_a_restart_mends_is_not_tried_again() -> None:
    clock = Clock()
    book = LaneBook(clock)
    book.hold("outbox", "a position is another event now", lasting=True)
    clock.at += 1e9
    assert book.due() == []
    assert book.awaited() == frozenset()
    assert book.held() == {"outbox": "a position is another event now"}


def test_a_lane_with_much_to_read_is_apart_at_once_and_not_held() -> None:
    book = LaneBook(Clock())
    book.part("readings", "it has much to read")
    assert book.due() == ["readings"]
    assert book.held() == {}
    assert book.document()["readings"]["state"] == "apart"


def test_a_lane_of_a_source_that_was_removed_is_forgotten() -> None:
    book = LaneBook(Clock())
    book.hold("readings", "the registry does not answer")
    book.part("pings", "it has much to read")
    book.keep({"pings", "shop"})
    assert book.names == {"pings"}
