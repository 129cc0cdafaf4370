"""Fields and columns never meet columns of ours, nor each other, and fields' names come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.current.newest_images import DELETED
from pipeline.history.change_versions import LINKS
from pipeline.history.shape import NOT_COLUMNS, history_column
from pipeline.installs.staging import MARKS
from pipeline.typed import columns
from pipeline.typed.columns import EVENT_COLUMNS
from schemas.lake_columns import (
    OF_CHANGES,
    OF_EVENTS,
    captured_columns,
    captured_name,
    event_columns,
    field_names,
    numbered,
    numbers,
)
from schemas.pg_types import EXACT

NAMES = st.sampled_from([*sorted(OF_EVENTS), "Version", "version_", "TYPE", "name", "Name", "nAme"])


@given(st.lists(NAMES | st.from_regex(r"[A-Za-z_][a-z_]{0,3}", fullmatch=True), unique=True))
def test_names_are_distinct_without_case_and_come_back(names: list[str]) -> None:
    columns = event_columns(names)
    assert len({column.lower() for column in columns}) == len(names)
    assert not {column.lower() for column in columns} & OF_EVENTS
    assert all(column.endswith("_") for column in columns if column.startswith("__"))
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
    ours = {*EVENT_COLUMNS.names, *(getattr(columns, name) for name in hidden)}
    assert ours <= OF_EVENTS
    kept_in_histories = {*NOT_COLUMNS, *LINKS, DELETED, EXACT, *MARKS.names}
    assert kept_in_histories == OF_CHANGES


OF_TABLES = st.sampled_from(sorted(OF_CHANGES)) | st.from_regex(
    r"_{0,3}[a-z]?_{0,2}", fullmatch=True
)


@given(
    st.lists(OF_TABLES.filter(bool) | OF_TABLES.map(str.upper).filter(bool), unique_by=str.lower)
)
def test_columns_of_a_captured_table_never_meet_ours_nor_each_other(names: list[str]) -> None:
    columns = captured_columns(names)
    assert len({column.lower() for column in columns}) == len(names)
    assert not {column.lower() for column in columns} & OF_CHANGES
    assert [captured_name(column) for column in columns] == names
    assert all(column.endswith("_") for column in columns if column.startswith("__"))


TWINS = st.from_regex(r"_{0,2}(n|N|_epoch|_EPOCH)(_{2,3}[23]_?)?", fullmatch=True)


@given(st.lists(TWINS, unique=True))
def test_columns_that_differ_by_case_only_are_numbered_and_never_meet(names: list[str]) -> None:
    number = numbers(names)
    columns = captured_columns([numbered(*each) for each in zip(names, number, strict=True)])
    assert len({column.lower() for column in columns}) == len(names)
    assert not {column.lower() for column in columns} & OF_CHANGES
    assert all(column.endswith("_") for column in columns if column.startswith("__"))
    seen: set[str] = set()
    for name, own in zip(names, number, strict=True):
        assert (own == 1) == (name.lower() not in seen)
        seen.add(name.lower())


def test_the_first_of_two_columns_that_differ_by_case_keeps_its_name() -> None:
    names = ["id", "name", "Name", "NAME", "name__2"]
    number = numbers(names)
    assert number == (1, 1, 3, 4, 1)
    columns = captured_columns([numbered(*each) for each in zip(names, number, strict=True)])
    assert columns == ("id", "name", "Name__3", "NAME__4", "name__2")


@given(st.lists(st.from_regex(r"(data_){0,3}(valid_from|VALID_TO|x)", fullmatch=True), unique=True))
def test_columns_of_a_history_keep_apart(names: list[str]) -> None:
    columns = list(map(history_column, names))
    assert len(set(columns)) == len(names)
    assert not {column.lower() for column in columns} & {"valid_from", "valid_to"}
