"""A table that keeps deleted rows keeps those of a TRUNCATE with the values that they had last."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel.positions import Epoch
from lake.datasets import dataset_of
from lake.layout import Lake
from lake.tables import Tables
from pipeline.current.tables import CurrentTables
from pipeline.log.large_folds import LogRows
from tests.support.lake.bulk import NAME, HandLake, some
from tests.support.lake.folding import SOURCE, TABLE, Done, changes, registry
from tests.support.services.tier import examples

KEYS = st.integers(1, 3)


def marked(lake: Lake) -> set[tuple[int, str, bool]]:
    rows = Tables().read(lake.path(NAME))
    assert rows is not None
    return {(row["id"], row["name"], row["_deleted"]) for row in rows.to_pylist()}


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("more", [True, False])
def test_p6_it_makes_no_difference_where_an_epoch_ends(lake: Lake, apart: bool, more: bool) -> None:
    hand = HandLake(lake, soft=True)
    hand.copy(*some(1, 2, 5))
    hand.epoch()
    hand.source.commit(
        Done("u", 1, name="last"), Done("u", 5, name=None, size=9), Done("c", 3, name="short")
    )
    if apart:
        hand.epoch()
    hand.source.commit(Done("t"), *some(*([4, 2] if more else []), name="new"))
    hand.epoch()

    known = {(1, "last", True), (3, "short", True), (5, "n", True)}
    after = {(4, "new", False), (2, "new", False)} if more else {(2, "n", True)}
    assert marked(lake) == known | after


CHANGES = st.one_of(
    st.builds(
        Done,
        op=st.sampled_from("cu"),
        id=KEYS,
        name=st.sampled_from("ab"),
        price=st.sampled_from(["1.50", "NAN"]),
    ),
    st.builds(Done, op=st.just("d"), id=KEYS),
    st.builds(Done, op=st.just("t")),
)
NO_DECIMAL = [Done("c", 1, price="NAN"), Done("c", 2, price="1.50"), Done("d", 1)]


@settings(max_examples=examples(3, matrix=60))
@example(NO_DECIMAL, set(), False)
@example(NO_DECIMAL, set(), True)
@given(st.lists(CHANGES, min_size=1, max_size=8), st.sets(st.integers(1, 7)), st.booleans())
def test_p6_rows_that_are_kept_do_not_depend_on_epochs(
    done: list[Done], cuts: set[int], large: bool
) -> None:
    ends = sorted({cut for cut in cuts if cut < len(done)} | {len(done)})
    found = []
    for places in (range(1, len(done) + 1), ends):
        with tempfile.TemporaryDirectory() as folder:
            found.append(kept(Lake.at(Path(folder)), done, places, large=large))
    assert found[0] == found[1]


def kept(lake: Lake, done: Sequence[Done], ends: Iterable[int], *, large: bool) -> list[object]:
    """Fold changes, an epoch up to each end; return the rows that the table keeps."""
    tables = Tables()
    current = CurrentTables(lake, tables, registry(), soft_deletes=lambda *_: True)
    first = 0
    for number, end in enumerate(ends, start=1):
        rows = changes(done[first:end], first=first + 1, priced=True)
        log = f"{lake.root}/log/{number}"
        if large:
            write_deltalake(log, rows)
            whole = LogRows(dataset_of(DeltaTable(log)), pc.scalar(True))
            current.fold_large(SOURCE, TABLE, whole, Epoch(number))
        else:
            current.fold(SOURCE, TABLE, rows, Epoch(number))
        first = end
    found = Tables().read(lake.path(NAME))
    current.close()
    rows = [] if found is None else found.sort_by("id").to_pylist()
    # A table has the column from the first row on that needs it.
    return [{**row, "_exact": row.get("_exact")} for row in rows]
