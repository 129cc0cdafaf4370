"""Make `penstock_client/_sync` out of `penstock_client/_async`: `python generate_sync.py`.

The two differ in words only, so the sync client is written by replacing them. It is not kept: who
builds the package makes it (`hatch_build.py`), and so do the tests and mypy here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy.plugin import Plugin

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "penstock_client/_async"
TARGET = HERE / "penstock_client/_sync"
NOTICE = "# Written by generate_sync.py from {name}: edit that file.\n"

# In order: an earlier rule may make what a later one sees.
RULES: tuple[tuple[str, str], ...] = (
    (r"The client for asyncio\. .*", 'The client without asyncio."""'),
    (r"\basyncio\.sleep\b", "time.sleep"),
    # What breaks a wait off.
    (r"\bfrom asyncio import CancelledError\n", ""),
    (r"\bCancelledError\b", "KeyboardInterrupt"),
    (r"\bimport asyncio\b", "import time"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bGenerator\[([\w ]+(?:\| \w+)*), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\baclosing\b", "closing"),
    (r"\bhttpx\.AsyncClient\b", "httpx.Client"),
    (r"\bhttpx\.AsyncBaseTransport\b", "httpx.BaseTransport"),
    (r"\bAsync([A-Z]\w+)", r"\1"),
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\ba(close|read|iter_bytes)\b", r"\1"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bpenstock_client\._async\b", "penstock_client._sync"),
    (r"\bany number of tasks\b", "any number of threads"),
    (r"\bone task\b", "one thread"),
)


def sync_text(path: Path) -> str:
    """Return what stands in the sync package for one file of the async package."""
    text = path.read_text(encoding="utf-8")
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return NOTICE.format(name=path.relative_to(HERE)) + text


def generate() -> None:
    """Write the sync package where it is not there, or another one; a file is whole at any time."""
    wanted = {TARGET / path.name: sync_text(path) for path in sorted(SOURCE.glob("*.py"))}
    TARGET.mkdir(exist_ok=True)
    for target, text in wanted.items():
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            # Several who begin at once write the same.
            beside = target.with_suffix(f".{os.getpid()}")
            beside.write_text(text, encoding="utf-8")
            beside.replace(target)
    for path in TARGET.glob("*.py"):
        if path not in wanted:
            path.unlink(missing_ok=True)


def plugin(_version: str) -> type[Plugin]:
    """Make it for mypy, which asks its plugins before it reads a file."""
    from mypy.plugin import Plugin

    generate()
    return Plugin


if __name__ == "__main__":
    generate()
