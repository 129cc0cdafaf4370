"""Make `penstock_client/_sync` out of `penstock_client/_async`: `python generate_sync.py`.

The two differ in words only, so the sync client is written by replacing them. `--check` writes
nothing and exits with 1 where a file differs from what would be written.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
    text = NOTICE.format(name=path.relative_to(HERE)) + text
    # Names that became shorter sort and wrap in another way; some loops are `yield from` now.
    text = _ruff(["check", "--select", "I,UP028", "--fix", "--unsafe-fixes", "--quiet"], text)
    return _ruff(["format", "--quiet"], text)


def generate(*, check: bool) -> list[Path]:
    """Write the sync package, or only compare; return the files that differ or are left over."""
    sources = {path.name: path for path in sorted(SOURCE.glob("*.py"))}
    stale = [path for path in TARGET.glob("*.py") if path.name not in sources]
    for name, path in sources.items():
        target, text = TARGET / name, sync_text(path)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(target)
            if not check:
                target.write_text(text, encoding="utf-8")
    return stale


def _ruff(arguments: list[str], text: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET / "x.py"), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE,
    ).stdout


def main() -> None:
    """Write, or with `--check` compare."""
    check = sys.argv[1:] == ["--check"]
    stale = generate(check=check)
    for path in stale:
        print(f"{'differs' if check else 'written'}: {path.relative_to(HERE)}")
    raise SystemExit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
