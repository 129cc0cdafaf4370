"""Names that a connector's lists cannot carry are refused with the reason, all others are taken."""

from __future__ import annotations

import pytest

from cdc.database import split_table
from cdc.name_checks import measured_topic, name_checks, topic_checks, twin_checks
from cdc.options import PLAIN, TableOptions
from kernel.errors import InvalidRequest
from schemas.lake_columns import numbers


@pytest.mark.parametrize("name", ["a,b", "a;b", "a:b", "a ", "a\n"])
def test_a_table_that_a_list_cannot_name_is_refused(name: str) -> None:
    (check,) = name_checks("table", f"public.{name}", (), PLAIN)
    assert not check.ok
    assert repr(f"public.{name}") in check.found
    assert check.fix is not None
    assert "Rename" in check.fix


def test_only_columns_that_are_listed_must_be_free_of_separators() -> None:
    assert not list(name_checks("table", "public.t", (), PLAIN))
    for options in (TableOptions(exclude=("a,b",)), TableOptions(mask=("c ",))):
        (check,) = name_checks("table", "public.t", (), options)
        assert not check.ok
    (check,) = name_checks("table", "public.t", ("c ",), PLAIN)
    assert not check.ok


@pytest.mark.parametrize("name", ["a/b", "a b", 'q"', "b`", "50%", "ü", "x" * 63, "-", "$", "\\"])
def test_any_other_name_is_taken(name: str) -> None:
    assert not list(name_checks("table", f"public.{name}", (), PLAIN))


def test_a_name_that_no_folder_of_the_log_can_have_is_refused() -> None:
    """The log could take no change of any table, once it has to make such a folder."""
    letters = {"я": 31, "漢": 21}
    for letter, most in letters.items():
        long = letter * most
        assert not list(name_checks("table", f"public.{long}", (), PLAIN))
        (check,) = name_checks("table", f"{long}.{long}", (), PLAIN)
        assert not check.ok
        assert check.fix == f'ALTER TABLE "{long}"."{long}" RENAME TO …'
    assert not list(name_checks("table", f"{'s' * 63}.{'t' * 63}", (), PLAIN))


@pytest.mark.parametrize("name", ["public.a.b", "public..hidden", "a.b.c.d"])
def test_a_dot_in_a_name_is_refused_with_its_remedy(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        split_table(name)
    assert "rename it" in refused.value.remedy


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("\u00b5", "\u03bc"), ("i", "\u0131"), ("s", "\u017f"), ("\u03c2", "\u03c3")),
        *(("\u0130", "I"), ("K", "\u212a"), ("\u01c5", "\u01c6"), ("ß", "\u1e9e")),
    ],
)
def test_letters_that_have_one_capital_differ_by_case(one: str, other: str) -> None:
    """The connector and Spark compare names as Java does, and would take one for the other."""
    assert numbers(("id", f"a{one}", f"A{other}")) == (1, 1, 2)
    assert numbers((one, "ss", "SS", "é", "e")) == (1, 1, 2, 1, 1)


def test_columns_that_differ_by_case_are_taken_where_they_can_be_told_apart() -> None:
    columns = ("id", "name", "Name", "NAME")
    found = list(twin_checks("table", "public.t", columns, ("id",), PLAIN, copied=True))
    assert not found
    found = list(twin_checks("table", "public.t", columns, ("name",), PLAIN, copied=True))
    assert not found


@pytest.mark.parametrize(
    ("columns", "key", "options", "copied"),
    [
        (("id", "name", "Name"), ("id",), PLAIN, False),
        (("ID", "id"), ("id",), PLAIN, True),
        (("id", "name", "Name"), ("id",), TableOptions(hash=("name",)), True),
        (("id", "name", "Name"), ("id",), TableOptions(exclude=("Name",)), True),
        (("id", "name\uf8ff2"), ("id",), PLAIN, True),
    ],
)
def test_others_are_refused_with_the_column_and_why(
    columns: tuple[str, ...], key: tuple[str, ...], options: TableOptions, copied: bool
) -> None:
    (check,) = twin_checks("table", "public.t", columns, key, options, copied=copied)
    assert not check.ok
    assert columns[1] in check.found or "Name" in check.found
    assert check.fix is not None
    assert "RENAME COLUMN" in check.fix


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("sales.eu_orders", "sales_eu.orders", False),
        ("a.b_c/d", "a_b.c_d", False),
        ("public.a_b", "public.a/b", True),
        ("public.a_b", "public.a_c", True),
    ],
)
def test_a_table_needs_a_topic_that_kafka_can_tell_apart(one: str, other: str, apart: bool) -> None:
    """As Kafka does: of two names that it measures alike it makes the first alone."""
    same = measured_topic(one) == measured_topic(other)
    found = list(topic_checks("table", one, other if same else None))
    assert bool(found) is not apart
    assert all(one in str(check.fix) for check in found)
