"""Text with fields of an event: `Order {data.number}: {type} at {occurred_at:%H:%M}`.

The fields are those of an event over HTTP. A dot leads into an object, nothing else is reachable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from kernel.errors import Misconfigured

FIELDS = frozenset(
    {
        "id",
        "stream",
        "category",
        "version",
        "position",
        "type",
        "data",
        "metadata",
        "tags",
        "occurred_at",
        "recorded_at",
    }
)
_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_FORMATTER = Formatter()


class Unfilled(Exception):
    """An event has not what a template asks for; the message names it."""


class Template:
    """A text to fill. Raises `Misconfigured` for one that no event can fill."""

    def __init__(self, text: str, *, place: str) -> None:
        self._parts: list[tuple[str, str | None, str]] = []
        try:
            for literal, field, spec, conversion in _FORMATTER.parse(text):
                if field is not None and not (_known(field) and not conversion):
                    raise ValueError(f"no field {{{field}}}")
                if spec and "{" in spec:
                    raise ValueError("a format may not hold a field")
                self._parts.append((literal, field, spec or ""))
        except ValueError as error:
            raise Misconfigured(
                f"{place}: {error}",
                remedy=f"Fields are {', '.join(sorted(FIELDS))}; {{data.total}} leads into one.",
            ) from error

    def filled(self, document: Mapping[str, Any]) -> str:
        """Return the text for one event, or raise `Unfilled`."""
        return "".join(
            literal + ("" if field is None else _formatted(document, field, spec))
            for literal, field, spec in self._parts
        )


def _known(field: str) -> bool:
    return _PATH.fullmatch(field) is not None and field.split(".")[0] in FIELDS


def _formatted(document: Mapping[str, Any], field: str, spec: str) -> str:
    value: Any = document
    for name in field.split("."):
        match value:
            case Mapping() if name in value:
                value = value[name]
            case Sequence() if not isinstance(value, str) and _index(name, len(value)):
                value = value[int(name)]
            case _:
                raise Unfilled(f"the event has no {field}")
    try:
        return format(value, spec)
    except (TypeError, ValueError) as error:
        raise Unfilled(f"{field}: {error}") from error


def _index(name: str, length: int) -> bool:
    return name.isascii() and name.isdigit() and int(name) < length
