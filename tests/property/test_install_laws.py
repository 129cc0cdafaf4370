"""Whatever comes in whatever order, `current` equals the source at the cut, over copies too."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lake.layout import Lake
from pipeline.current.fold_policy import FoldPolicy
from pipeline.installs.install_book import HEAL, hold
from tests.support.lake.bulk import NAME, HandLake
from tests.support.lake.folding import SOURCE, Done
from tests.support.services.tier import examples

KEYS = st.integers(0, 6)
CHANGES = st.one_of(
    st.builds(Done, op=st.sampled_from("cu"), id=KEYS, name=st.text("ab", max_size=2)),
    st.builds(Done, op=st.just("d"), id=KEYS),
    st.builds(Done, op=st.just("t")),
)
STEPS = st.one_of(
    st.tuples(st.just("commit"), st.lists(CHANGES, min_size=1, max_size=4)),
    st.tuples(st.just("epoch"), st.tuples(st.integers(0, 4), st.integers(0, 2))),
    st.tuples(st.just("read"), st.sampled_from(["all", "heal"])),
    st.tuples(st.just("announce"), st.none()),
    st.tuples(st.just("break"), KEYS),
    st.tuples(st.just("restart"), st.none()),
)


@given(st.lists(STEPS, max_size=14), st.booleans(), st.integers(1, 2))
@settings(max_examples=examples(5, matrix=8))
def test_p4_current_equals_the_source_at_its_cut(
    steps: list[tuple[str, object]], tails: bool, apart: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        policy = FoldPolicy(direct_bytes=0, freshness_s=3600.0) if tails else None
        hand = HandLake(Lake.at(Path(folder)), policy=policy)
        hold(hand.lake, hand.tables, SOURCE)
        hand.source.commit(Done("c", 1), Done("c", 2))
        early = hand.stage(releases=True)
        for number in range(apart):
            hand.source.commit(Done("c", 3 + number))
        # Another table of the copy, which was read later and may be due later.
        hand.announce(early, hand.stage(table="public.others", releases=True))
        hand.source.commit(Done("c", 5))
        hand.epoch(ends=1)
        hand.epoch()
        assert hand.state() == hand.source.state
        try:
            _run(hand, steps)
        finally:
            hand.current.close()


def _run(hand: HandLake, steps: list[tuple[str, object]]) -> None:
    staged = []
    broken = False
    for step, what in steps:
        match step, what:
            case "commit", list(changes):
                hand.source.commit(*changes)
            case "epoch", (int(rows), int(ends)):
                hand.epoch(rows, ends)
                if not broken:
                    assert hand.state() == hand.source.at[hand.cut()]
            case "read", "all":
                staged.append(hand.stage())
            case "read", _:
                staged.append(hand.stage(kind=HEAL, low=("2", ""), high=("5", "")))
            case "announce", _:
                hand.announce(*staged)
                staged = []
            case "break", int(key) if hand.tables.open(hand.lake.path(NAME)) is not None:
                hand.break_row((key, "a"))
                broken = True
            case "restart", _:
                hand.current.close()
                hand.restart()
    hand.announce(*staged, hand.stage())
    hand.source.commit(Done("c", 100))
    hand.epoch()

    assert hand.state() == hand.source.state
