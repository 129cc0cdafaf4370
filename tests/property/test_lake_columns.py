"""Fields of events never meet columns of ours, nor each other, and their names come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projections.log import typed_columns
from projections.log.typed_columns import EVENT_COLUMNS
from projections.log.writer import OP
from schemas.lake_columns import OF_EVENTS, event_columns, field_names

NAMES = st.sampled_from([*sorted(OF_EVENTS), "Version", "version_", "TYPE", "name", "Name", "nAme"])


@given(st.lists(NAMES | st.from_regex(r"[A-Za-z_][a-z_]{0,3}", fullmatch=True), unique=True))
def test_names_are_distinct_without_case_and_come_back(names: list[str]) -> None:
    columns = event_columns(names)
    assert len({column.lower() for column in columns}) == len(names)
    assert not {column.lower() for column in columns} & OF_EVENTS
    assert [field_names(names)[column] for column in columns] == names


def test_a_plain_field_keeps_its_name() -> None:
    assert event_columns(["orderId", "total", "committed_at"]) == (
        "orderId",
        "total",
        "committed_at",
    )
    assert event_columns(["version", "version_", "_epoch"]) == ("version_", "version__", "_epoch_")


def test_every_column_of_ours_is_among_the_names_that_are_kept() -> None:
    hidden = ("EPOCH", "LATE", "TIME", "SEQ_HI", "SEQ_LO", "INGESTED_AT")
    ours = {*EVENT_COLUMNS.names, OP, *(getattr(typed_columns, name) for name in hidden)}
    assert ours <= OF_EVENTS
