"""A range that is mended: deleted rows that are kept stay, and what is too large is declined."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from lake.layout import Lake
from lake.tables import Tables
from pipeline.current.fold_policy import FoldPolicy
from pipeline.installs import installation as installing
from pipeline.installs.install_book import HEAL
from pipeline.installs.vanished_keys import gone_keys
from tests.support.lake.bulk import NAME, HandLake, some
from tests.support.lake.folding import SOURCE, TABLE, Done


def begun(hand: HandLake) -> HandLake:
    hand.copy(*some(*range(10)))
    hand.source.commit(Done("d", 3))
    hand.epoch()
    return hand


def add_stranger(hand: HandLake) -> None:
    """Put a row into the table that the source does not have."""
    table = hand.tables.open(hand.lake.path(NAME))
    assert table is not None
    table.update({"id": "40"}, predicate="id = 4")


def rows(hand: HandLake) -> dict[int, dict[str, object]]:
    found = Tables().read(hand.lake.path(NAME))
    assert found is not None
    return {row["id"]: row for row in found.to_pylist()}


def test_a_row_that_the_source_lost_is_marked_where_deleted_rows_are_kept(lake: Lake) -> None:
    hand = begun(HandLake(lake, soft=True))
    before = rows(hand)
    assert before[3]["_deleted"]
    add_stranger(hand)
    (number,) = hand.announce(hand.stage(kind=HEAL, low=("1", ""), high=("50", "")))
    hand.source.commit()
    hand.epoch()

    marked = before[4] | {"id": 40, "_deleted": True}
    assert rows(hand) == before | {40: marked}
    gone = gone_keys(
        lake, Tables(), source=SOURCE, table=TABLE, install=hand.book.installs()[-1].id
    )
    assert gone is not None
    assert gone.to_pylist() == [{"id": 40, "part": "a"}]
    assert number in hand.ingest._progress.installs


def test_a_row_that_the_source_lost_goes_where_deleted_rows_are_not_kept(lake: Lake) -> None:
    hand = begun(HandLake(lake))
    before = rows(hand)
    add_stranger(hand)
    hand.announce(hand.stage(kind=HEAL, low=("1", ""), high=("50", "")))
    hand.source.commit()
    hand.epoch()

    assert rows(hand) == before


def test_rows_with_lists_are_compared_by_their_keys() -> None:
    known = pa.table({"id": [1, 2], "tags": [["a"], ["b"]]})
    gone = installing._gone(known.slice(0, 1), known, ("id",))
    assert gone.to_pylist() == [{"id": 2, "tags": ["b"]}]


@pytest.mark.parametrize("stranger", [False, True], ids=["at the source", "in the lake"])
def test_a_range_that_does_not_fit_is_declined(lake: Lake, stranger: bool) -> None:
    hand = begun(HandLake(lake))
    hand.break_row((5, "a"))
    if stranger:
        add_stranger(hand)
    before = rows(hand)
    # Nine rows are there; or one, and the stranger beside it in the lake.
    low = ("9", "") if stranger else ("0", "")
    install = hand.stage(kind=HEAL, low=low, high=("50", ""))
    assert install.rows == (1 if stranger else 9)
    bulk = hand.ingest._bulk
    bulk._installer = replace(bulk._installer, most_mended=install.rows - (not stranger))
    (number,) = hand.announce(install)
    hand.source.commit()
    hand.epoch()

    reason = hand.ingest._progress.declined[str(number)]
    assert reason.startswith(installing.TOO_LARGE)
    assert f"penstock source resnapshot {SOURCE} --tables {TABLE} --yes" in reason
    assert number in hand.ingest._progress.installs
    assert rows(hand) == before


def test_p4_what_was_mended_is_what_the_manifest_names_from_then_on(lake: Lake) -> None:
    """The tail was folded for it: that version of the base must not be named after it."""
    policy = FoldPolicy(direct_bytes=0, freshness_s=1e9, eager_bytes=2**60)
    hand = begun(HandLake(lake, policy=policy))
    hand.source.commit()
    hand.epoch()
    hand.break_row((5, "a"))
    hand.source.commit(Done("u", 1, name="in the tail", size=1))
    hand.epoch()
    hand.announce(hand.stage(kind=HEAL, low=("4", ""), high=("7", "")))
    hand.source.commit()
    mended = hand.epoch().tables[NAME].version
    assert hand.state() == hand.source.state
    for _ in range(2):
        hand.source.commit()
        assert hand.epoch().tables[NAME].version >= mended
        assert hand.state() == hand.source.state
    hand.current.close()
