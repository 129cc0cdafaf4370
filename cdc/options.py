"""What a workspace may say about a captured table: columns left out or veiled, history, deletes.

[table."public.orders"]           # or a pattern: "public.order_*"
exclude = ["card"]                # is not in Kafka, nor anywhere later
withhold = true                   # nor does it leave the database; see the reference for its price
mask = ["phone"]                  # `MASK` in its place
hash = ["email"]                  # salted SHA-256: still joins and counts, cannot be read back
history = true                    # keep every version of a row in `history/…`
deletes = "soft"                  # `current` keeps a deleted row, marked `_deleted`
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from kernel.errors import InvalidRequest

_KNOWN = {"exclude", "mask", "hash", "withhold", "history", "deletes"}
MASK = "********"
"""What a masked column holds in every row, null or not."""

COPY, CONNECTOR = "copy", "connector"
DEFAULT_SNAPSHOT = COPY
"""Who reads the rows that are there already."""

_WILD = re.compile(r"[*?]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Options of one table, or of all tables of a pattern. Columns are in the order declared.

    `withhold`: PostgreSQL itself keeps the excluded columns back, by the publication's column list.
    """

    exclude: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()
    withhold: bool = False
    history: bool = False
    soft_deletes: bool = False

    @property
    def veiled(self) -> tuple[str, ...]:
        """Columns whose values in the lake are not the source's: masked or hashed."""
        return (*self.mask, *self.hash)


PLAIN = TableOptions()


def is_pattern(table: str) -> bool:
    """Say whether a declared table stands for all whose names match: `public.order_*`."""
    return _WILD.search(table) is not None


def matches(pattern: str, table: str) -> bool:
    """Say whether `schema.table` is meant by a declared name or pattern (`*`, `?`)."""
    if not is_pattern(pattern):
        return pattern == table
    return all(
        re.fullmatch(translate(part), name) is not None
        for part, name in zip(pattern.rpartition("."), table.rpartition("."), strict=True)
    )


def options_of(options: Mapping[str, TableOptions], table: str) -> TableOptions:
    """Return a table's options: those under its own name, else of the first pattern it matches."""
    if table in options:
        return options[table]
    fitting = (found for pattern, found in options.items() if matches(pattern, table))
    return next(fitting, PLAIN)


def parse_options(name: str, found: object) -> TableOptions:
    """Read one `[table."…"]` section. Raises `InvalidRequest` naming what is wrong."""
    if not isinstance(found, dict):
        raise InvalidRequest(f"[table.{name}] is not a section")
    unknown = sorted(found.keys() - _KNOWN)
    if unknown:
        raise InvalidRequest(
            f"[table.{name}]: unknown {', '.join(unknown)}",
            remedy=f"Known: {', '.join(sorted(_KNOWN))}",
        )
    lists = {what: _names(name, what, found.get(what, [])) for what in ("exclude", "mask", "hash")}
    _refuse_twice(name, [column for columns in lists.values() for column in columns])
    for what in ("history", "withhold"):
        if not isinstance(found.get(what, False), bool):
            raise InvalidRequest(f"[table.{name}]: {what} is true or false, not {found[what]!r}")
    deletes = found.get("deletes", "hard")
    if deletes not in ("hard", "soft"):
        raise InvalidRequest(f'[table.{name}]: deletes is "hard" or "soft", not {deletes!r}')
    return TableOptions(
        **lists,
        withhold=found.get("withhold", False),
        history=found.get("history", False),
        soft_deletes=deletes == "soft",
    )


def render_options(options: Mapping[str, TableOptions]) -> list[str]:
    """Return the lines of a source's file that say the same."""
    lines: list[str] = []
    for name, option in options.items():
        lines.append(f"\n[table.{toml_text(name)}]")
        for what in ("exclude", "mask", "hash"):
            columns: tuple[str, ...] = getattr(option, what)
            if columns:
                lines.append(f"{what} = [{', '.join(map(toml_text, columns))}]")
        lines.extend(f"{what} = true" for what in ("withhold", "history") if getattr(option, what))
        if option.soft_deletes:
            lines.append('deletes = "soft"')
    return lines


def toml_text(text: str) -> str:
    """Write a text as TOML does: as JSON, but that JSON spells what is beyond 16 bits in halves."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _names(table: str, what: str, found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
        raise InvalidRequest(f"[table.{table}]: {what} is a list of column names, not {found!r}")
    return tuple(found)


def _refuse_twice(table: str, columns: Sequence[str]) -> None:
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise InvalidRequest(
            f"[table.{table}]: {', '.join(twice)} is named twice",
            remedy="A column is excluded, masked or hashed: name it once.",
        )
