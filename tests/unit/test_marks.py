"""What a change that comes once more is told by."""

from __future__ import annotations

from pipeline.position.progress import NOWHERE, Mark, Progress


def at(lsn: int, total: int, *, order: int = 10, transaction: str = "7") -> Mark:
    return Mark(order, lsn, total, transaction)


def test_p4_a_transaction_that_is_sent_once_more_is_passed_by() -> None:
    first = [at(11, 1), at(12, 2), at(12, 3), at(15, 4)]
    assert [mark.beyond(first[-1]) for mark in first] == [False] * 4


def test_p4_a_transaction_that_goes_on_with_new_numbers_is_new() -> None:
    assert at(16, 1).beyond(at(15, 4))
    assert not at(15, 2).beyond(at(15, 4))
    assert at(15, 5).beyond(at(15, 4))


def test_p4_a_later_transaction_is_new_though_it_wrote_earlier() -> None:
    assert at(9, 1, order=20, transaction="8").beyond(at(15, 4))
    assert not at(90, 9, order=9, transaction="6").beyond(at(15, 4))
    assert at(0, 1, order=0, transaction="1").beyond(NOWHERE)


def test_p5_a_transaction_keeps_the_commit_before_it() -> None:
    progress = Progress()
    assert progress.accept_change("t/0", at(15, 4)) == at(15, 4)
    assert progress.accept_change("t/0", at(16, 1, order=8)) == at(16, 1)
    assert progress.accept_change("t/0", at(2, 1, order=8, transaction="8")) is None


def test_marks_of_an_older_version_are_read() -> None:
    kept = Progress().to_json().replace('"marks":{}', '"marks":{"t/0":[10,4]}')
    progress = Progress.from_json(kept)
    assert progress.accept_change("t/0", at(1, 9, order=9)) is None
    assert progress.accept_change("t/0", at(11, 5)) == at(11, 5)
    assert Progress.from_json(progress.to_json()).marks == {"t/0": at(11, 5)}
