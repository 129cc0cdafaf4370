"""What a comparison of two generations finds, and what it leaves alone."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.errors import Incompatible, NotFound
from projections.log.layout import Lake
from replay.book import ReplayBook, State
from replay.verify import Comparison, comparable, verify
from tests.support.lake.handmade import HandMade, words

NAME = "report"
LIVE = ((1, "a"), (2, "b"), (3, "c"))


@pytest.fixture
def made(lake: Lake) -> HandMade:
    """A live generation at epochs 1 and 2, deployed under its name."""
    handmade = HandMade(lake)
    handmade.deploy(NAME)
    for _ in range(3):
        handmade.epoch()
    handmade.run(NAME, words((1, "old")), 1)
    handmade.run(NAME, words(*LIVE), 2)
    handmade.run(NAME, words((9, "later")), 3)
    return handmade


def compared(made: HandMade, built: pa.Table) -> Comparison:
    made.build(NAME, built, 2)
    return verify(made.site, NAME)


def test_equal_rows_are_equal_whatever_their_order_and_hidden_columns(made: HandMade) -> None:
    built = words(*reversed(LIVE), epoch=7).select(["_epoch", "word", "id"])
    found = compared(made, built)
    assert found.equal
    assert found.accepted
    assert (found.live_rows, found.built_rows) == (3, 3)
    assert found.live_hash == found.built_hash
    assert ReplayBook(made.lake, made.tables).of(NAME)[-1].state is State.VERIFIED


def test_it_compares_at_the_epoch_up_to_which_the_generation_was_built(made: HandMade) -> None:
    replay = made.build(NAME, words((1, "old")), 1)
    assert comparable(made.site, replay)
    assert verify(made.site, NAME).equal
    replay = made.build(NAME, words((1, "old")), 4, generation=3)
    assert not comparable(made.site, replay)
    with pytest.raises(NotFound, match="no version at epoch 4"):
        verify(made.site, NAME)


def test_an_epoch_that_is_not_kept_is_told_with_what_to_do(made: HandMade) -> None:
    made.build(NAME, words(*LIVE), 2)
    stable = DeltaTable(made.lake.path(f"projection/{NAME}"))
    stable.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(NotFound, match=r"was at epoch 2, .* is not kept any more") as raised:
        verify(made.site, NAME)
    assert raised.value.remedy == f"Build it again: penstock replay apply {NAME}"


def test_missing_extra_and_differing_keys_are_told_apart(made: HandMade) -> None:
    found = compared(made, words((1, "a"), (2, "B"), (4, "d"), (5, "e")))
    assert not found.accepted
    assert (found.missing, found.extra, found.differing) == (1, 2, 1)
    assert found.live_hash != found.built_hash
    assert [example["key"] for example in found.examples] == ["2", "3", "4", "5"]
    assert found.examples[0]["live"] == {"id": "2", "word": "b"}
    assert found.examples[1]["built"] is None
    assert ReplayBook(made.lake, made.tables).of(NAME)[-1].state is State.DIFFERS


def test_a_key_that_comes_twice_is_never_accepted(made: HandMade) -> None:
    found = compared(made, words(*LIVE, (3, "c")))
    assert found.repeated_keys == 1
    assert not found.accepted


def test_swapped_values_of_two_rows_do_not_cancel_out(made: HandMade) -> None:
    found = compared(made, words((1, "b"), (2, "a"), (3, "c")))
    assert found.differing == 2


def test_null_is_not_the_word_null(made: HandMade) -> None:
    made.run(NAME, words((1, "NULL")), 4)
    made.build(NAME, pa.table({"id": [1], "word": pa.array([None], pa.string())}), 4)
    assert verify(made.site, NAME).differing == 1


def test_columns_that_only_one_has_are_named(made: HandMade) -> None:
    built = words(*LIVE, more=[1, 2, 3]).drop_columns(["word"])
    found = compared(made, built)
    assert (found.only_live, found.only_built) == (("word",), ("more",))
    assert (found.differing, found.equal) == (0, False)


def test_drift_of_floating_point_columns_is_measured(made: HandMade) -> None:
    made.run(NAME, words(*LIVE, mean=[0.1, 0.2, 0.3]), 4)
    made.build(NAME, words(*LIVE, mean=[0.1, 0.2, 0.30000000000000004]), 4)
    found = verify(made.site, NAME)
    assert found.differing == 1
    assert found.drift == {"mean": pytest.approx(5.5e-17, rel=0.1)}


def test_exact_types_are_compared_exactly(made: HandMade) -> None:
    values: list[object] = [Decimal("1.10"), Decimal("1.20"), None]
    made.run(NAME, words(*LIVE, price=values, both=[{"a": 1}, {"a": None}, None]), 4)
    made.build(NAME, words(*LIVE, price=values, both=[{"a": 1}, {"a": None}, None]), 4)
    assert verify(made.site, NAME).equal


def test_late_rows_that_were_asked_for_make_a_declared_difference(made: HandMade) -> None:
    made.build(NAME, words(*LIVE, (4, "late")), 2, include_late=True)
    found = verify(made.site, NAME)
    assert found.declared
    assert (found.equal, found.accepted, found.extra) == (False, True, 1)


def test_another_key_cannot_be_compared(made: HandMade) -> None:
    made.build(NAME, words(*LIVE, code=[1, 2, 3]), 2, key="code")
    with pytest.raises(Incompatible, match="key code"):
        verify(made.site, NAME)
