"""One record of CSV as RFC 4180 has it, where an empty field in quotes is not an absent one."""

from __future__ import annotations

import re
from typing import Final

from kernel.errors import SchemaViolation

_FIELD: Final = re.compile(r'(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|(?:\r?\n)?\Z)')


def fields_of(line: str) -> list[str | None]:
    """Return the fields of one line, which may end with a line break: None for an empty one.

    An empty text is written in quotes. Raises `SchemaViolation` for what is not one record.
    """
    found: list[str | None] = []
    at = 0
    while True:
        field = _FIELD.match(line, at)
        if field is None:
            raise SchemaViolation(f"not a line of CSV: field {len(found) + 1} at character {at}")
        quoted, bare, end = field.groups()
        found.append(quoted.replace('""', '"') if quoted is not None else bare or None)
        at = field.end()
        if end != ",":
            return found
