"""How commands speak: plain lines for people, one JSON document per answer with `--json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import date, datetime

import orjson

from kernel.errors import PenstockError, exit_code


def emit(document: object, *, as_json: bool, text: str | None = None) -> None:
    """Print an answer: the document as JSON, or else its text."""
    if as_json or text is None:
        print(orjson.dumps(document, default=str, option=orjson.OPT_INDENT_2).decode())
    else:
        print(text)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay out rows in aligned columns, without colours or frames: fit for pipes."""
    cells = [list(headings), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def report(error: PenstockError, *, as_json: bool) -> None:
    """Print an error to standard error: cause, then the next command."""
    if as_json:
        document = {
            "error": type(error).__name__,
            "message": error.message,
            "remedy": error.remedy,
            "retry": error.retry.value,
            "exit_code": exit_code(error),
            **{key: str(value) for key, value in error.fields.items()},
        }
        print(json.dumps(document, indent=2), file=sys.stderr)
    else:
        print(f"error: {error.message}\n  fix: {error.remedy}", file=sys.stderr)


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Say in words why a file could not be read as text."""
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error.strerror)


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case date():
            return value.isoformat()
        case float():
            return f"{value:.3f}"
        case _:
            return str(value)
