"""What the tests of the documentation read: tables and fenced blocks of Markdown files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.tree import ROOT, files

_FENCE = re.compile(r"^```(\w*)\s*$")
_MARK = re.compile(r"^<!-- (run|not run)(?:: (.+))? -->$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block. `mark` is the comment on the line above: (kind, argument), or None."""

    path: Path
    line: int
    language: str
    text: str
    mark: tuple[str, str] | None

    @property
    def place(self) -> str:
        """Where to find the block."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return every Markdown page of the repository."""
    return [path for path in files() if path.suffix == ".md"]


def table(path: Path, *, first: str) -> list[dict[str, str]]:
    """Return the rows of the table whose first heading is `first`, as heading -> cell.

    Raises `ValueError` when the page has no such table.
    """
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("|") and (heading := _cells(line))[0] == first:
            body = itertools.takewhile(lambda each: each.startswith("|"), lines[number + 2 :])
            return [dict(zip(heading, _cells(each), strict=True)) for each in body]
    raise ValueError(f"{path} has no table whose first heading is {first!r}")


def blocks(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    language: str | None = None
    start, body, above = 0, list[str](), ""
    mark: tuple[str, str] | None = None
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        if language is None and fence:
            language, start, body = fence.group(1), number, []
            marked = _MARK.match(above)
            mark = (marked.group(1), marked.group(2) or "") if marked else None
        elif language is not None and line.strip() == "```":
            text = "\n".join(body)
            yield Block(path=path, line=start, language=language, text=text, mark=mark)
            language = None
        elif language is not None:
            body.append(line)
        above = line


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
