"""What is said of columns on one line, as `public.people:card,phone`: keys, and what is veiled."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.database import split_table
from cdc.options import TableOptions
from kernel.errors import InvalidRequest


def options_of(
    exclude: Sequence[str], mask: Sequence[str], hashed: Sequence[str]
) -> dict[str, TableOptions]:
    """Read by table which columns are left out, masked and hashed. Raises `InvalidRequest`."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for what, texts in (("exclude", exclude), ("mask", mask), ("hash", hashed)):
        for text in texts:
            name, columns = _columns(text)
            of = found.setdefault(".".join(split_table(name)), {})
            of[what] = (*of.get(what, ()), *columns)
    return {
        name: TableOptions(
            exclude=said.get("exclude", ()), mask=said.get("mask", ()), hash=said.get("hash", ())
        )
        for name, said in found.items()
    }


def keys_of(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read keys by table: a column a time, as for other options, makes one key of all of them."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, columns = _columns(text)
        table = ".".join(split_table(name))
        found[table] = (*found.get(table, ()), *columns)
    return found


def _columns(text: str) -> tuple[str, tuple[str, ...]]:
    name, colon, columns = text.rpartition(":")
    listed = tuple(column.strip() for column in columns.split(","))
    if not colon or not name.strip() or not all(listed):
        raise InvalidRequest(f"{text!r} is not TABLE:COLUMN,…", remedy="As public.visits:at,who")
    return name.strip(), listed
