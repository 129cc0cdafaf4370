"""`current` equals the oracle after every epoch, merged at once or kept as base and tail."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.positions import Epoch
from lake.layers import read_whole
from lake.layout import Lake, current_name
from lake.tables import TableAt, Tables
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.tables import CurrentTables
from tests.support.lake.folding import (
    SOURCE,
    TABLE,
    Done,
    State,
    apply,
    changes,
    registry,
    state_of,
)

NAME = current_name(SOURCE, TABLE)
MERGED = FoldPolicy(direct_bytes=2**40)
TAILED = FoldPolicy(direct_bytes=-1, freshness_s=1e9, longest_s=1e9, share=1e9)
FULL = FoldPolicy(direct_bytes=-1, freshness_s=1e9, longest_s=1e9, share=1e9, most_rows=3)

CHANGE = st.builds(
    Done,
    st.sampled_from("cuuud"),
    st.integers(1, 4),
    st.sampled_from("ab"),
    st.sampled_from(["x", "y", None]),
    st.sampled_from([1, 2, None]),
)
TRUNCATE = st.just(Done("t"))
EPOCH = st.tuples(
    st.lists(st.one_of(CHANGE, CHANGE, CHANGE, CHANGE, TRUNCATE), min_size=1, max_size=5),
    st.sampled_from(["", "", "settle", "crash"]),
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([MERGED, TAILED, FULL]), st.lists(EPOCH, min_size=1, max_size=5))
def test_p4_current_equals_the_oracle_at_every_epoch(
    policy: FoldPolicy, epochs: list[tuple[list[Done], str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake, schemas = Lake.at(Path(folder)), registry()
        current = CurrentTables(lake, Tables(), schemas, policy=policy)
        state: State = {}
        pinned: list[tuple[dict[str, TableAt], State]] = []
        at: dict[str, TableAt] = {}
        first = 1
        for number, (done, then) in enumerate(epochs, start=1):
            frame = changes(done, first=first)
            first += len(done)
            at |= current.moved()
            at |= current.fold(SOURCE, TABLE, frame, Epoch(number))
            if then == "crash":
                current.close()
                current = CurrentTables(lake, Tables(), schemas, policy=policy)
                current.resume(at)
                at |= current.fold(SOURCE, TABLE, frame, Epoch(number))
            state = apply(state, done)
            pinned.append((dict(at), state))
            if then == "settle":
                current.settle(SOURCE, TABLE)
                path = Tables().read(lake.path(NAME))
                assert state_of(path) == state
        for versions, expected in pinned:
            read = read_whole(lake, Tables(), NAME, at=versions)
            assert state_of(read) == expected
        assert state_of(read_whole(lake, Tables(), NAME)) == state
        current.close()
