"""What an UPDATE left alone comes from the row that it changed, never from another one."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ddl.unchanged_values import (
    MARKED,
    UNCHANGED,
    fill_unchanged,
    rows_of_keys,
    rows_without_keys,
)
from schemas.pg_exact import EXACT

Change = tuple[int, str, bool]
"""Key, the value that came (empty: left alone), whether it is a delete."""


def filled(changes: list[Change], stored: dict[int, str], **marked: bool) -> list[str | None]:
    """Fill a frame over stored rows; `gone`: the stored rows are marked as deleted."""
    frame = pa.table(
        {
            "id": [key for key, _, _ in changes],
            "text": pa.array([value or None for _, value, _ in changes], pa.string()),
            UNCHANGED: pa.array(
                [["text"] if not (value or gone) else None for _, value, gone in changes],
                pa.list_(pa.string()),
            ),
            "__deleted": [gone for _, _, gone in changes],
        }
    )

    def known(keys: pa.Table) -> pa.Table:
        wanted = [key for key in stored if key in keys["id"].to_pylist()]
        found = pa.table({"id": wanted, "text": [stored[key] for key in wanted]})
        if marked:
            found = found.append_column(MARKED, pa.array([marked["gone"]] * len(wanted)))
        return found

    texts: list[str | None] = fill_unchanged(frame, ["id"], known)["text"].to_pylist()
    return texts


def test_a_key_that_moves_takes_its_own_value_along() -> None:
    assert filled([(1, "", True), (2, "", False)], {1: "A"}) == [None, "A"]


def test_a_key_that_moves_to_where_a_row_was_deleted_does_not_take_that_rows_value() -> None:
    moves = [(2, "", True), (1, "", True), (2, "", False)]
    assert filled(moves, {1: "A", 2: "B"}) == [None, None, "A"]


def test_a_row_that_is_marked_as_deleted_gives_no_value_away() -> None:
    assert filled([(1, "", True), (2, "", False)], {2: "B"}, gone=True)[1] is None
    assert filled([(2, "", False)], {2: "B"}, gone=False) == ["B"]


def test_an_update_behind_the_delete_of_another_row_keeps_its_own_value() -> None:
    assert filled([(1, "", True), (2, "", False)], {1: "A", 2: "B"}) == [None, "B"]


def test_rows_with_lists_are_told_apart_by_their_keys() -> None:
    rows = pa.table({"id": [1, 2, 3], "tags": [["a"], None, ["b", "c"]], "at": [{"x": 1}] * 3})
    wanted = pa.table({"id": pa.array([3, 3, 9], pa.int32())})
    assert rows_of_keys(rows, wanted) == rows.slice(2)
    assert rows_without_keys(rows, wanted) == rows.slice(0, 2)
    assert rows_of_keys(rows.slice(0, 0), wanted) == rows.slice(0, 0)


CHANGES = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["", "", "x", "y"]), st.booleans()), max_size=14
)


@given(CHANGES, st.dictionaries(st.integers(1, 4), st.sampled_from("AB")))
def test_every_value_is_that_of_the_row_which_the_update_found(
    changes: list[Change], stored: dict[int, str]
) -> None:
    """As PostgreSQL goes through them: one change after the other."""
    changes = [(key, "" if gone else value, gone) for key, value, gone in changes]
    rows: dict[int, str | None] = dict(stored)
    moved: str | None = None
    expected: list[str | None] = []
    for place, (key, value, gone) in enumerate(changes):
        if gone:
            moved = rows.pop(key, None)
            expected.append(None)
            continue
        behind_delete = place > 0 and changes[place - 1][2]
        rows[key] = value or rows.get(key, moved if behind_delete else None)
        expected.append(rows[key])
    assert filled(changes, stored) == expected


def test_texts_beside_a_row_are_those_of_its_own_values_and_of_what_was_left_alone() -> None:
    frame = pa.table(
        {
            "id": [1, 1],
            "grid": pa.array([None, None], pa.list_(pa.int32())),
            EXACT: ['{"price":"NaN"}', None],
            UNCHANGED: [["grid", EXACT], ["grid", EXACT]],
            "__deleted": [False, False],
        }
    )
    stored = frame.slice(0, 1).select(["id", "grid"])
    stored = stored.append_column(EXACT, pa.array(['{"grid":"{{1}}","price":"Infinity"}']))
    found = fill_unchanged(frame, ["id"], lambda keys: stored)[EXACT].to_pylist()
    assert found == ['{"grid":"{{1}}","price":"NaN"}', '{"grid":"{{1}}"}']
