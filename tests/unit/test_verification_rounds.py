"""The continuous verifier's rounds: in turn, through each table, over a restart."""

from __future__ import annotations

from pathlib import Path

from cdc.verification.rounds import (
    MOST_FAILED_HEALS,
    SourceRounds,
    TableRound,
    load_rounds,
    save_rounds,
)


def test_tables_have_their_turn_one_after_the_other() -> None:
    rounds = SourceRounds()
    names = ["b", "a", "c"]
    assert [rounds.next_of(names) for _ in range(4)] == ["a", "b", "c", "a"]
    assert rounds.next_of(["c"]) == "c"


def test_a_round_goes_through_the_table_and_ends() -> None:
    current = TableRound()
    assert current.due(300)
    current.begin(100)
    current.took(60, "0/1", differing=0, moving=1)
    assert not current.go_on(("60",))
    assert (current.low, current.coverage) == (("60",), 0.6)
    assert current.due(300)
    current.took(45, "0/2", differing=2, moving=0)
    assert current.coverage == 1.0
    assert current.go_on(None)
    assert (current.last_rows, current.last_ranges) == (105, 2)
    assert (current.last_differing, current.last_moving) == (2, 1)
    assert current.low is None
    assert not current.due(300)
    assert current.due(0)


def test_what_is_not_equal_is_not_verified_and_its_reason_stands_for_the_round() -> None:
    current = TableRound()
    current.begin(20)
    current.took(10, "0/1", differing=3, moving=0, wrong="differs")
    assert (current.verified_at, current.lsn, current.note) == (None, None, "differs")
    current.failed_heals = 1
    current.go_on(("10",))
    current.took(10, "0/2", differing=0, moving=0)
    # This range is verified; the table is not.
    assert (current.lsn, current.note) == ("0/2", "differs")
    assert current.go_on(None)
    assert (current.wrong, current.note) == ("differs", "differs")


def test_healings_that_fail_end_and_an_equal_round_begins_them_anew() -> None:
    current = TableRound()
    for failed in range(MOST_FAILED_HEALS):
        assert current.heals
        current.begin(10)
        current.failed_heals += 1
        current.took(10, f"0/{failed}", differing=1, moving=0, wrong="differs")
        current.go_on(None)
    assert not current.heals
    current.begin(10)
    current.took(5, "0/7", differing=0, moving=0)
    current.go_on(("5",))
    assert (current.heals, current.note) == (False, "differs")
    current.took(5, "0/8", differing=0, moving=0)
    assert current.go_on(None)
    assert (current.heals, current.note, current.wrong) == (True, None, None)


def test_a_restart_goes_on_and_a_damaged_file_begins_anew(tmp_path: Path) -> None:
    rounds = SourceRounds()
    current = rounds.of(rounds.next_of(["t"]))
    current.begin(10)
    current.took(5, "0/5", differing=0, moving=0)
    current.go_on(("5", "é"))
    save_rounds(tmp_path, "shop", rounds)
    again = load_rounds(tmp_path, "shop")
    assert again == rounds
    assert again.of("t").low == ("5", "é")
    (tmp_path / "verify" / "shop.json").write_text("{")
    assert load_rounds(tmp_path, "shop") == SourceRounds()
    again.keep_only([])
    assert again.tables == {}


def test_a_round_that_finds_what_the_last_one_found_is_not_recorded_again() -> None:
    current = TableRound()
    assert current.record(3)
    assert not current.record(3)
    assert current.record(4), "the table in the lake is another one"
    current.last_differing = 1
    assert current.record(4)
    assert not current.record(4)
    current.recorded_at = "2026-01-01T00:00:00.000+00:00"
    assert current.record(4), "the record is old"
