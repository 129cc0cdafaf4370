"""What a veiled column is selected as: the same text that the connector writes in its place."""

from __future__ import annotations

import pytest

from cdc.masking import select_list
from cdc.options import TableOptions, matches

OPTIONS = TableOptions(exclude=("card",), mask=("phone",), hash=("e mail",))


def test_columns_keep_their_order_and_their_names() -> None:
    columns = ("id", "phone", "card", "e mail", "Total")
    found = select_list("public.people", columns, OPTIONS).as_string(None)
    assert found == (
        '"id", \'********\' AS "phone", '
        "encode(sha256(convert_to(current_setting('penstock.salt') || \"e mail\", 'UTF8')), 'hex')"
        ' AS "e mail", "Total"'
    )


def test_a_table_without_columns_left_is_refused() -> None:
    with pytest.raises(ValueError, match=r"public\.people: every column is excluded"):
        select_list("public.people", ("card",), OPTIONS)


@pytest.mark.parametrize(
    ("pattern", "table", "meant"),
    [
        ("public.order_*", "public.order_lines", True),
        ("public.order_*", "public.order_", True),
        ("public.order_*", "public.orders", False),
        ("public.order_*", "app.order_lines", False),
        ("shop_?.a", "shop_1.a", True),
        ("shop_?.a", "shop_12.a", False),
        ("*.a", "x.a", True),
        ("public.a", "public.a", True),
        ("public.a+*", "public.aa", False),
    ],
)
def test_a_pattern_means_whole_names(pattern: str, table: str, meant: bool) -> None:
    assert matches(pattern, table) is meant
