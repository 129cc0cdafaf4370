"""Which snapshots of a stream stay: few, evenly over its versions, none of other events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from eventstore.deciders.snapshots import MOST, kept_beside
from kernel.positions import Version

BEGINNING = Version(0)


@dataclass(frozen=True)
class Stand:
    version: Version
    first_version: Version = BEGINNING
    shapes: Mapping[str, int] = field(default_factory=dict)


def kept_after(versions: Sequence[int]) -> list[frozenset[Version]]:
    """Keep one after the other; return what there was after each."""
    kept: list[Stand] = []
    told = []
    for version in versions:
        new = Stand(Version(version))
        stay = kept_beside(new, kept)
        assert stay is not None
        kept = [each for each in kept if each.version in stay - {version}]
        kept += [new] if version in stay else []
        told.append(frozenset(each.version for each in kept))
    return told


@given(every=st.integers(1, 400), many=st.integers(1, 400))
def test_a_growing_stream_keeps_few_without_wide_gaps(every: int, many: int) -> None:
    versions = [n * every for n in range(1, many + 1)]
    for newest, kept in zip(versions, kept_after(versions), strict=True):
        assert len(kept) <= MOST + 1
        assert max(kept) == newest
        gaps = [b - a for a, b in zip([0, *sorted(kept)], sorted(kept), strict=False)]
        # A stretch is at most twice its share of the stream; its first one may lie at its end.
        assert max(gaps) <= max(2 * every, 2 * (2 * newest // MOST + 1) + every)


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=150))
def test_whatever_is_kept_in_whichever_order_the_newest_stays(versions: list[int]) -> None:
    for count, kept in enumerate(kept_after(versions), start=1):
        assert max(kept) == max(versions[:count])
        assert len(kept) <= MOST + 1
        assert kept <= {*versions[:count]}


def test_what_stands_for_hidden_events_goes_and_nothing_older_comes_back() -> None:
    hidden, shown = Stand(Version(9)), Stand(Version(12), first_version=Version(4))
    assert kept_beside(shown, [hidden]) == {12}
    assert kept_beside(hidden, [shown]) is None
    assert kept_beside(Stand(Version(12)), [shown]) is None
    assert kept_beside(Stand(Version(13), shapes={"a": 2}), [shown]) == {13}


def test_types_that_only_one_of_two_has_seen_are_no_difference() -> None:
    early, late = Stand(Version(5), shapes={"a": 1}), Stand(Version(9), shapes={"a": 1, "b": 1})
    assert kept_beside(early, [late]) == {5, 9}
    assert kept_beside(late, [early]) == {5, 9}
    assert kept_beside(Stand(Version(5), shapes={"a": 2}), [late]) == {5}
    assert kept_beside(Stand(Version(9), shapes={"a": 2, "b": 1}), [early]) == {9}
    hidden = Stand(Version(9), first_version=Version(4), shapes={"a": 1, "b": 1})
    assert kept_beside(early, [hidden]) is None
