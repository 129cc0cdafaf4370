"""A captured table as of any LSN is what the source held there, wherever epochs end."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.positions import Epoch, Lsn
from lake.layout import Lake
from lake.tables import Tables
from pipeline.current.fold_policy import FoldPolicy
from pipeline.verification.as_of import StateReader
from pipeline.verification.hashing import LakeRows
from schemas.row_hash import table_hash
from tests.support.lake.bulk import KEYS, NAME, HandLake
from tests.support.lake.folding import SOURCE, TABLE, Done, State, registry

COLUMNS = ("id", "name", "part", "size")
SCHEMA = pa.schema(
    [("id", pa.int64()), ("part", pa.string()), ("name", pa.string()), ("size", pa.int32())]
)
TAILS = FoldPolicy(direct_bytes=0, freshness_s=3600.0)


def transaction(dice: random.Random, state: State) -> list[Done]:
    """Make one to five changes; names are left alone now and then, as large values are."""
    done: list[Done] = []
    known = set(state)
    for _ in range(dice.randint(1, 5)):
        key = (dice.randint(0, 12), dice.choice("ab"))
        if dice.random() < 0.03:
            done.append(Done("t"))
            known.clear()
        elif key not in known:
            done.append(Done("c", *key, name=dice.choice(["x", ""]), size=dice.randint(0, 9)))
            known.add(key)
        elif dice.random() < 0.3:
            done.append(Done("d", *key))
            known.discard(key)
        else:
            done.append(Done("u", *key, name=dice.choice(["y", None]), size=dice.randint(0, 9)))
    return done


def expected(state: State) -> tuple[int, str]:
    rows = [dict(zip(SCHEMA.names, row, strict=True)) for row in state.values()]
    return table_hash(pa.Table.from_pylist(rows, SCHEMA), COLUMNS)


def found(reader: StateReader, lsn: int, since: int, *, soft: bool = False) -> tuple[int, str]:
    between = reader.around(SOURCE, Lsn(lsn), since=Epoch(since))
    assert between is not None, f"nothing around {lsn} since epoch {since}"
    state = reader.table(SOURCE, TABLE, between, key=KEYS, soft=soft).state
    return LakeRows(state, COLUMNS, None).group_hashes((), 1).get(0, (0, "0" * 32))


def opened(lake: Lake, seed: int, policy: FoldPolicy | None) -> tuple[HandLake, random.Random]:
    """Commit at random and end epochs at random places; the last one has everything."""
    dice = random.Random(seed)
    hand = HandLake(lake, policy=policy)
    hand.copy(*transaction(dice, hand.source.state))
    hand.epoch()
    for _ in range(12):
        for _ in range(dice.randint(1, 3)):
            hand.source.commit(*transaction(dice, hand.source.state))
        hand.epoch(rows=dice.randint(0, 9), ends=dice.randint(0, 4))
    hand.source.commit()
    hand.epoch()
    return hand, dice


@pytest.mark.parametrize(
    "policy", [pytest.param(None, marks=pytest.mark.matrix), TAILS], ids=["merged", "tail"]
)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.matrix) for seed in (1, 2))]
)
def test_p4_a_table_at_any_lsn_is_what_the_source_held(
    lake: Lake, seed: int, policy: FoldPolicy | None
) -> None:
    hand, dice = opened(lake, seed, policy)
    reader = StateReader(lake, Tables(), registry())
    epochs = hand.manifest.between(Epoch(0), reader.last().epoch)
    held = {lsn: state for lsn, state in hand.source.at.items() if lsn >= epochs[0].cuts[SOURCE]}
    for lsn, state in dice.sample(sorted(held.items()), 8):
        at_or_below = [done.epoch for done in epochs if done.cuts.get(SOURCE, 0) <= lsn]
        since = dice.choice(at_or_below)
        assert found(reader, lsn, since) == expected(state), f"lsn {lsn} since {since}"
        assert found(reader, lsn + 3, since) == expected(state), "between two transactions"


def test_what_somebody_else_did_to_the_table_is_seen(lake: Lake) -> None:
    hand, _ = opened(lake, 1, None)
    reader = StateReader(lake, Tables(), registry())
    lsn = hand.source.lsn
    epoch = reader.last().epoch
    before = found(reader, lsn, epoch)
    assert before == expected(hand.source.state)
    path = lake.path(NAME)
    DeltaTable(path).optimize.compact()
    assert found(reader, lsn, epoch) == before
    key = sorted(hand.source.state)[0]
    hand.break_row(key)
    assert found(reader, lsn, epoch) != before


def test_nothing_is_around_an_lsn_before_the_log_has_it(lake: Lake) -> None:
    hand, _ = opened(lake, 2, None)
    reader = StateReader(lake, Tables(), registry())
    epoch = reader.last().epoch
    hand.source.commit(Done("c", 50, name="late"))
    assert reader.around(SOURCE, Lsn(hand.source.lsn), since=epoch) is None
    hand.epoch(rows=0)
    assert reader.around(SOURCE, Lsn(hand.source.lsn), since=epoch) is None
    assert "waits for" in reader.waiting_for(SOURCE)
    hand.epoch()
    assert found(reader, hand.source.lsn, epoch) == expected(hand.source.state)


def test_changed_keys_are_those_of_transactions_behind_a_mark(lake: Lake) -> None:
    hand, _ = opened(lake, 3, None)
    reader = StateReader(lake, Tables(), registry())
    since = reader.last()
    low = hand.source.lsn
    hand.source.commit(Done("c", 60, "z", name="new"), Done("u", 60, "z", name="newer"))
    hand.source.commit(Done("d", 60, "z"), Done("c", 61, "z", name="other"))
    hand.epoch()
    truncated, keys = reader.changed_keys(SOURCE, TABLE, Lsn(low), reader.last(), since=since)
    assert not truncated
    assert keys is not None
    assert {(row["id"], row["part"]) for row in keys.to_pylist()} == {(60, "z"), (61, "z")}
    hand.source.commit(Done("t"))
    hand.epoch()
    truncated, _ = reader.changed_keys(SOURCE, TABLE, Lsn(low), reader.last(), since=since)
    assert truncated


def test_p4_rows_that_a_truncate_marks_are_there_at_an_lsn_before_it(lake: Lake) -> None:
    hand = HandLake(lake, soft=True)
    hand.copy(Done("c", 1, name="a"), Done("c", 2, name="b"))
    since = hand.epoch().epoch
    lsn = hand.source.commit(Done("u", 1, name="c"))
    hand.source.commit(Done("t"), Done("c", 5, name="d"))
    hand.epoch()
    reader = StateReader(lake, Tables(), registry())
    assert found(reader, lsn, since, soft=True) == expected(hand.source.at[lsn])
    assert found(reader, hand.source.lsn, since, soft=True) == expected(hand.source.state)
