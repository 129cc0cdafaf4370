"""A held table is released by an install of all its rows, with everything that came meanwhile."""

from __future__ import annotations

import json

import pytest

from kernel.errors import NotComparable
from kernel.positions import Lsn
from lake.layout import Lake
from lake.table_columns import SCHEMA_TABLE
from lake.tables import Tables
from pipeline.ddl.held_tables import Hold
from pipeline.position.progress import Progress
from pipeline.verification.as_of import StateReader
from pipeline.verification.hashing import LakeRows
from tests.support.lake.bulk import ENDS, KEYS, NAME, ROWS, HandLake, some
from tests.support.lake.folding import AT, SOURCE, TABLE, Done, registry


def drop(hand: HandLake) -> None:
    """Tell, in a transaction of its own, that the table was dropped."""
    hand.source.commit()
    end = hand.source.ends[-1]
    end["counts"] = '{"_messages": 1}'
    schema, _, table = TABLE.partition(".")
    told = {"version": 1, "kind": "drop", "tag": "DROP TABLE", "oid": 7}
    hand.source.rows.append(
        {
            "kind": "message",
            "topic": ROWS,
            "partition": 0,
            "offset": len(hand.source.rows),
            "source": SOURCE,
            "table": SCHEMA_TABLE,
            "operation": "m",
            "transaction_id": end["transaction_id"],
            "lsn": hand.source.lsn - 5,
            "commit_order": hand.source.lsn - 10,
            "total_order": 1,
            "snapshot": False,
            "recorded_at": AT,
            "event_time": AT,
            "counts": json.dumps(told | {"schema": schema, "table": table}),
            "schema_id": 1,
        }
    )


def held(hand: HandLake) -> dict[str, Hold]:
    last = hand.manifest.last()
    assert last is not None
    return Progress.from_json(last.progress).held.get(SOURCE, {})


def test_p11_an_install_releases_a_held_table(lake: Lake) -> None:
    hand = HandLake(lake)
    hand.copy(*some(1, 2, 3))
    hand.epoch()
    before = hand.state()
    drop(hand)
    hand.source.commit(Done("u", 1, name="while it stood still"))
    hand.epoch()
    assert held(hand)[TABLE].reason == "it was dropped"
    assert hand.state() == before

    hand.restart()
    hand.source.commit(Done("d", 2))
    install = hand.stage()
    hand.source.commit(Done("c", 9), Done("u", 3, name="after the read"))
    hand.epoch()
    last = hand.manifest.last()
    assert last is not None
    assert (hand.state(), last.tables[NAME].as_of_epoch) == (before, 1)

    hand.announce(install)
    done = hand.epoch()
    assert held(hand) == {}
    assert hand.state() == hand.source.state
    assert done.tables[NAME].as_of_epoch == done.epoch
    assert done.end[ENDS] == {"0": len(hand.source.ends)}


def test_p4_a_table_is_compared_from_the_epoch_that_released_it_on(lake: Lake) -> None:
    hand = HandLake(lake)
    hand.copy(*some(1, 2, 3))
    hand.epoch()
    drop(hand)
    hand.source.commit(Done("u", 1, name="while it stood still"))
    stood_still = hand.epoch()
    low = hand.source.commit(Done("c", 9))
    hand.source.commit(Done("c", 11))
    hand.announce(hand.stage())
    hand.epoch()
    high = hand.source.commit(Done("c", 10))
    hand.epoch()
    reader = StateReader(lake, Tables(), registry())
    assert reader.held_now(SOURCE) == {}
    between = reader.around(SOURCE, Lsn(low), since=stood_still.epoch)
    assert between is not None
    with pytest.raises(NotComparable, match="stood still"):
        reader.table(SOURCE, TABLE, between, key=KEYS, soft=False)
    between = reader.around(SOURCE, Lsn(high), since=stood_still.epoch)
    assert between is not None
    state = reader.table(SOURCE, TABLE, between, key=KEYS, soft=False).state
    assert LakeRows(state, KEYS, None).group_hashes((), 1)[0][0] == len(hand.source.state)
