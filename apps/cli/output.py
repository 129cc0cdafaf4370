"""How commands speak: plain lines for people, one JSON document per answer with `--json`.

Lines for people fit the terminal: they are folded at blanks, so that an id, a path or an address
stays whole. In a pipe nothing is folded, unless COLUMNS says how wide it is to be.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar

import orjson

from kernel.errors import PenstockError, exit_code

Progress = TypeVar("Progress")
Columns = Mapping[str, str | Callable[[Any], object]]
"""By heading: the name of a field of each thing, or what tells it of one."""
HIDDEN = "***"
SHOW_EVERY_S = 1.0
_IN_URL = re.compile(r"^(\w+://[^:@/]*):.*(?=@)")
_BY_NAME = re.compile(r"(?<=password=)('(\\.|[^'\\])*'|\S+)", re.I)

_called: list[str] = []
_GAP = "  "
_NARROWEST = 20


def emit(
    document: object, *, as_json: bool, text: str | None = None, verbatim: bool = False
) -> None:
    """Print an answer: the document as JSON, or else its text, folded unless it is `verbatim`."""
    if as_json or text is None:
        print(_rendered(document))
    else:
        print(text if verbatim else folded(text))


def _rendered(document: object) -> str:
    try:
        return orjson.dumps(document, default=str, option=orjson.OPT_INDENT_2).decode()
    except TypeError:
        # The name of a file may be no text: JSON can spell it all the same.
        return json.dumps(document, default=str, indent=2)


def write_what_can_be_written() -> None:
    """Have characters that the terminal's encoding lacks spelled out, in place of failing.

    A stream that the caller closed (`>&-`) is none to Python: what would go there goes nowhere.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - the process's own
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - the process's own
    for stream in (sys.stdout, sys.stderr):
        # The C locale has bytes of its calls written as they came, and fails for all else.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def let_go_of_output() -> None:
    """Forget what is still to be written: Python would try again at its end, and complain."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def without_password(value: object) -> object:
    """Return a value to show: of an address, in either form of libpq, not its password."""
    if not isinstance(value, str):
        return value
    return _BY_NAME.sub(HIDDEN, _IN_URL.sub(r"\1", value))


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    nothing: str = "nothing",
    notes: Sequence[str] = (),
) -> str:
    """Lay out rows in aligned columns, without colours or frames: fit for pipes.

    Where they are wider than the terminal, columns of several words are folded, and where that does
    not suffice each row becomes a block of lines. `nothing` is said when there are no rows. A note
    of a row, if there are any, stands beneath it.
    """
    if not rows:
        return nothing
    beneath = [note.split("\n") if note else [] for note in notes or [""] * len(rows)]
    cells = [list(headings), *[[cell(value) for value in row] for row in rows]]
    columns = list(zip(*cells, strict=True))
    width = width_of(sys.stdout)
    widths = [max(map(len, column)) for column in columns]
    if width is not None:
        shares = _shares(columns, widths, width)
        if shares is None:
            blocks = [fields(dict(zip(headings, row, strict=True))) for row in cells[1:]]
            return "\n\n".join(
                "\n".join([block, *lines]) for block, lines in zip(blocks, beneath, strict=True)
            )
        widths = shares
    return "\n".join(
        line
        for row, lines in zip(cells, [[], *beneath], strict=True)
        for line in [*_lines(row, widths), *lines]
    )


def listing(
    items: Iterable[Any],
    columns: Columns,
    *,
    nothing: str = "nothing",
) -> str:
    """Lay out things as `table` does."""

    def told(item: Any, column: str | Callable[[Any], object]) -> object:
        if not isinstance(column, str):
            return column(item)
        return item[column] if isinstance(item, Mapping) else getattr(item, column)

    rows = [[told(item, column) for column in columns.values()] for item in items]
    return table([*columns], rows, nothing=nothing)


def fields(document: Mapping[str, object]) -> str:
    """Lay out one thing as lines of name and value."""
    margin = max(map(len, document), default=0) + len(_GAP)
    width = width_of(sys.stdout)
    lines = []
    for name, value in document.items():
        shown = cell(value)
        if width is not None and margin + max(map(len, shown.split()), default=0) > width:
            # A value that does not fit beside the names has lines of its own.
            lines += [name, *_folded(_GAP + shown, width, _GAP)]
        elif width is None:
            lines.append(name.ljust(margin) + shown)
        else:
            lines += _folded(name.ljust(margin) + shown, width, " " * margin)
    return "\n".join(line.rstrip() for line in lines)


def remember_call(words: Sequence[str]) -> None:
    """Keep how this command was called, for what names the words that it lacks."""
    _called[:] = words


def call_with(*words: str) -> str:
    """Return the call of this command with more words: whoever copies it calls for the same."""
    return shlex.join(["penstock", *_called, *words])


def tell(line: str) -> None:
    """Print a line to standard error, beside the answer."""
    print(line, file=sys.stderr, flush=True)


def shower(
    line: Callable[[Progress], str],
    *,
    same_every_s: float = SHOW_EVERY_S,
    gist: Callable[[Progress], object] | None = None,
) -> Callable[[Progress], None]:
    """Return what tells of progress once a second, and what is as before each `same_every_s`.

    It is as before where its `gist` is, which is the line itself unless a clock runs in that.
    """
    told: object = ""
    told_at = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal told, told_at
        now = (gist or line)(progress)
        if time.monotonic() - told_at < (same_every_s if now == told else SHOW_EVERY_S):
            return
        told, told_at = now, time.monotonic()
        tell(line(progress))

    return show


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
        told = f"error: {error.message}\n  fix: {error.remedy}"
        print(folded(told, stream=sys.stderr), file=sys.stderr)


def folded(text: str, *, stream: TextIO | None = None) -> str:
    """Fold the lines that are wider than the terminal at their blanks; others stay as they are."""
    width = width_of(stream or sys.stdout)
    if width is None:
        return text
    return "\n".join(
        part
        for line in text.split("\n")
        for part in _folded(line, width, " " * (len(line) - len(line.lstrip()) + len(_GAP)))
    )


def width_of(stream: TextIO) -> int | None:
    """Return how wide lines may be: COLUMNS, or the terminal's width; None in a pipe."""
    given = os.environ.get("COLUMNS", "")
    try:
        width = int(given) if given.isdecimal() else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None
    return max(width, _NARROWEST) if width else None


@contextmanager
def written_whole(file: Path) -> Iterator[BinaryIO]:
    """Lend what to write to: it takes the place of `file`, and of what that has, at the end."""
    target = file.resolve()
    if target.exists() and not target.is_file():
        # A pipe or a device is written to as it is.
        with file.open("wb") as opened:
            yield opened
        return
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        opened = beside.open("xb")
    except OSError as error:
        error.filename = str(file)
        raise
    try:
        with opened:
            yield opened
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def cell(value: object) -> str:
    """Return a value as one line for people: no Python, and no codes that move a terminal."""
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case date():
            return value.isoformat()
        case float():
            return f"{value:.3f}"
        case list() | tuple() | set() | frozenset():
            return ", ".join(map(cell, value)) or "-"
        case dict():
            return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        case _:
            return _printable(str(value))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shares(
    columns: Sequence[Sequence[str]], widths: Sequence[int], width: int
) -> list[int] | None:
    """Share the width among columns; None where words are too long to stand side by side."""
    least = [max(len(word) for text in each for word in [*text.split(), ""]) for each in columns]
    room = width - len(_GAP) * (len(columns) - 1)
    if sum(least) > room:
        return None
    shares = list(widths)
    while sum(shares) > room:
        foldable = [i for i, share in enumerate(shares) if share > least[i]]
        widest = max(foldable, key=lambda i: shares[i])
        shares[widest] -= 1
    return shares


def _lines(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    folded_cells = [
        [text] if len(text) <= width else _folded(text, width, "")
        for text, width in zip(row, widths, strict=True)
    ]
    height = max(map(len, folded_cells))
    padded = [[*lines, *[""] * (height - len(lines))] for lines in folded_cells]
    return [
        _GAP.join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    ]


def _folded(line: str, width: int, indent: str) -> list[str]:
    if len(line) <= width:
        return [line]
    words = line.lstrip()
    return textwrap.wrap(
        words,
        width,
        initial_indent=line[: len(line) - len(words)],
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        tabsize=4,
    )
