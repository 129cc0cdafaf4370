"""What a stream shows: the window that its policy leaves open."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eventstore.lifecycle import SHOWS_ALL, StreamPolicy, first_shown

versions = st.integers(min_value=0, max_value=10_000)
policies = st.builds(
    StreamPolicy,
    deleted=st.booleans(),
    tombstoned=st.booleans(),
    truncate_before=versions,
    max_age_s=st.none() | st.integers(min_value=1, max_value=10**9),
    max_count=st.none() | st.integers(min_value=1, max_value=20_000),
)


@given(policies, versions)
def test_the_window_is_what_every_bound_leaves(policy: StreamPolicy, version: int) -> None:
    """Compared with the plain reading: an event is shown when no bound hides it."""

    def shown(each: int) -> bool:
        newer = version - each
        return (
            not policy.deleted
            and not policy.tombstoned
            and each >= policy.truncate_before
            and (policy.max_count is None or newer < policy.max_count)
        )

    first = first_shown(policy, version)
    assert first >= 0
    edge = {0, version, first - 1, first, policy.truncate_before}
    for each in (at for at in edge if 0 <= at <= version):
        assert (each >= first) == shown(each), each


@given(policies, versions)
def test_an_append_never_shows_what_was_hidden(policy: StreamPolicy, version: int) -> None:
    if not policy.closed:
        assert first_shown(policy, version + 1) >= first_shown(policy, version)


@given(versions)
def test_without_a_policy_everything_is_shown(version: int) -> None:
    assert first_shown(SHOWS_ALL, version) == 0
