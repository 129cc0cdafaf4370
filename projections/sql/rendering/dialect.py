"""The words in which two engines say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlglot import exp

from projections.sql.operators.tree import Call, Exploded
from projections.sql.words.catalog import Column


class Dialect(Protocol):
    """The words in which two engines say the same."""

    semi: str
    anti: str
    by_order: bool
    """Whether the engine looks up the version that holds at a time by order: `ASOF JOIN`."""

    def __hash__(self) -> int:
        """Texts that were written are kept by who wrote them."""
        ...

    def name(self, name: str) -> str:
        """Quote a name."""
        ...

    def expression(self, node: exp.Expr, columns: Sequence[Column]) -> str:
        """Write an expression over `columns`."""
        ...

    def conditions(self, parts: Sequence[exp.Expr], columns: Sequence[Column]) -> str:
        """Write that all conditions hold, each asked only where those before it do; or nothing."""
        ...

    def micros(self, moment: str) -> str:
        """Turn a moment into microseconds since 1970."""
        ...

    def moment(self, micros: str) -> str:
        """Turn microseconds since 1970 into a moment."""
        ...

    def whole_number(self, value: int) -> str:
        """Write a BIGINT."""
        ...

    def modulo(self, value: str, size: int) -> str:
        """Write the remainder that is never negative."""
        ...

    def numbers(self, count: int) -> str:
        """Return a FROM item with the column `__i` from 0 to count - 1."""
        ...

    def total(self, call: Call, value: str, over: str) -> str:
        """Write SUM or AVG of a value, the same in whatever order the rows are added.

        Of the rows around a row also how many different values they have.
        """
        ...

    divides_decimals: bool
    """Whether `average` takes decimals, too."""

    def average(self, call: Call, total: str, count: str) -> str:
        """Write an AVG from the exact total of its values and their number, NULL for none."""
        ...

    def ordered(self, call: Call, value: str, over: str) -> str:
        """Write what is made of values in ascending order, or in one of its own."""
        ...

    def passing_nulls(self, name: str, arguments: str) -> str:
        """Write a function of rows that passes over those in which its value is NULL."""
        ...

    def rank(self, call: str) -> str:
        """Write a rank as an INT, from the call that gives it."""
        ...

    def row(self, values: Sequence[str]) -> str:
        """Write several values as one that is compared from left to right."""
        ...

    def gathered(self, fields: Sequence[tuple[str, str]]) -> str:
        """Write the rows of a group as a list of structs, from names and values."""
        ...

    def each(self, values: str) -> str:
        """Write the elements of a list as rows."""
        ...

    def elements(self, columns: str, rows: str, node: Exploded) -> str:
        """Write rows once for each element: `columns`, its place `__i` from 0, itself as `__e`."""
        ...

    def field(self, value: str, name: str) -> str:
        """Write a field of a struct."""
        ...

    def apart(self, value: str, kind: str) -> list[str]:
        """Write what values of a type are ordered by, so that only those that are the same tie."""
        ...

    def of_greatest(self, value: str, by: str) -> str:
        """Write the value, NULL included, of the row where `by` is greatest in its group."""
        ...

    def of_greatest_row(self, name: str, columns: Sequence[str]) -> str:
        """Write one of some columns as the row has it where they are greatest, one after another.

        NULL is a value like any other; see `of_greatest`.
        """
        ...

    def of_least(self, value: str, by: str) -> str:
        """Write the value, NULL included, of the row where `by` is least in its group."""
        ...
