"""Tasks that make a row of the number of their part; executors import them from here."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from kernel.errors import NotFound


def numbered(number: int) -> pa.Table:
    return pa.table({"n": [number]})


def refused(number: int) -> pa.Table:
    if number == 2:
        raise NotFound("not there")
    return numbered(number)


def broken(number: object) -> pa.Table:
    raise FileNotFoundError(f"a file of {number}")


def apart(number: int) -> dict[int, pa.Table]:
    return {number % 2: numbered(number)}


class TogetherIn:
    """Puts what a function makes of each part into one bucket."""

    def __init__(self, make: Callable[[int], pa.Table]) -> None:
        self.make = make

    def __call__(self, number: int) -> dict[int, pa.Table]:
        return {1: self.make(number)}


def sorted_rows(rows: pa.Table) -> pa.Table:
    return rows.sort_by("n")
