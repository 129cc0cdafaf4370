"""A connector was started again amid a transaction, whose END counts less than the log has.

A copy that is installed later folds what the log has, whatever the END says.
"""

from __future__ import annotations

import pytest

from lake.layout import Lake
from lake.tables import Tables
from pipeline.log.committed_changes import CommittedChanges, EndsBetween, transactions_of
from tests.support.lake.bulk import HandLake, some
from tests.support.lake.folding import SOURCE, TABLE, Done


def restarted(hand: HandLake, counts: str, *done: Done) -> None:
    """Commit a transaction amid which the connector began anew: BEGIN twice, then a short END."""
    hand.source.commit(*done)
    end = hand.source.ends.pop()
    for _ in range(2):
        begin = {"kind": "begin", "counts": None, "lsn": None}
        hand.source.ends.append({**end, **begin, "offset": len(hand.source.ends)})
    hand.source.ends.append({**end, "offset": len(hand.source.ends), "counts": counts})
    hand.epoch()
    hand.source.commit()
    hand.epoch()
    assert hand.state() == hand.source.state


@pytest.mark.parametrize("counts", ["{}", f'{{"{TABLE}": 1}}'])
def test_p4_a_copy_folds_all_rows_of_a_transaction_whatever_its_end_counts(
    lake: Lake, counts: str
) -> None:
    hand = HandLake(lake)
    hand.copy(*some(1))
    hand.epoch()
    install = hand.stage()
    restarted(hand, counts, Done("u", 1, name="first half"), Done("c", 2, name="second half"))
    hand.announce(install)
    hand.source.commit(Done("c", 9))
    hand.epoch()
    assert hand.state() == hand.source.state


def test_a_transactions_rows_are_those_of_the_log(lake: Lake) -> None:
    hand = HandLake(lake)
    hand.copy(*some(1))
    hand.epoch()
    restarted(hand, "{}", Done("u", 1), Done("c", 2))
    last = hand.source.commit(Done("u", 2))
    done = hand.epoch()
    path = hand.lake.path(f"log/changes/{SOURCE}")
    every = EndsBetween(after=0, up_to=last, first_epoch=1, last_epoch=done.epoch)
    known = transactions_of(Tables(), path, TABLE, every)
    assert [rows for *_, rows in known][-2:] == [2, 1]
    assert [end for _, end, _ in known] == sorted({end for _, end, _ in known})
    assert transactions_of(Tables(), path, "public.other", every) == []
    sliced = [*CommittedChanges(hand.lake, Tables()).slices(SOURCE, TABLE, every)]
    assert sum(each.rows[TABLE].num_rows for each in sliced) == sum(rows for *_, rows in known)
