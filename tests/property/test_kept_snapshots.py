"""Which snapshots of a stream stay: few, evenly over its versions, none of other events."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from eventstore.deciders.snapshots import MOST, Stand, kept_beside
from kernel.positions import Version


def stand(version: int, first_version: int = 0, **shapes: int) -> Stand:
    return Stand(Version(first_version), Version(version), shapes)


def kept_after(versions: Sequence[int], first_version: int = 0) -> list[frozenset[Version]]:
    """Keep one after the other; return what there was after each."""
    kept: list[Stand] = []
    told = []
    for version in versions:
        new = stand(version, first_version)
        stay = kept_beside(new, kept)
        assert stay is not None
        kept = [each for each in kept if each.version in stay - {version}]
        kept += [new] if version in stay else []
        told.append(frozenset(each.version for each in kept))
    return told


@given(every=st.integers(1, 400), many=st.integers(1, 400), hidden=st.integers(0, 10**7))
def test_a_growing_stream_keeps_few_without_wide_gaps(every: int, many: int, hidden: int) -> None:
    """Versions that the stream shows no more have no stretch."""
    versions = [hidden + n * every for n in range(1, many + 1)]
    for newest, kept in zip(versions, kept_after(versions, hidden), strict=True):
        assert len(kept) <= MOST + 1
        assert max(kept) == newest
        gaps = [b - a for a, b in zip([hidden, *sorted(kept)], sorted(kept), strict=False)]
        # A stretch is at most twice its share of the stream; its first one may lie at its end.
        assert max(gaps) <= max(2 * every, 2 * (2 * (newest - hidden) // MOST + 1) + every)


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=150))
def test_whatever_is_kept_in_whichever_order_the_newest_stays(versions: list[int]) -> None:
    for count, kept in enumerate(kept_after(versions), start=1):
        assert max(kept) == max(versions[:count])
        assert len(kept) <= MOST + 1
        assert kept <= {*versions[:count]}


def test_what_stands_for_hidden_events_goes_and_nothing_older_comes_back() -> None:
    hidden, shown = stand(9), stand(12, 4)
    assert kept_beside(shown, [hidden]) == {12}
    assert kept_beside(hidden, [shown]) is None
    assert kept_beside(stand(12), [shown]) is None


def test_types_in_other_shapes_go_and_those_that_one_has_not_seen_are_no_difference() -> None:
    early, late = stand(5, a=1), stand(9, a=1, b=1)
    assert kept_beside(early, [late]) == {5, 9}
    assert kept_beside(late, [early]) == {5, 9}
    assert kept_beside(stand(5, a=2), [late]) == {5}
    assert kept_beside(stand(9, a=2, b=1), [early]) == {9}
    assert kept_beside(early, [stand(9, 4, a=1, b=1)]) is None
