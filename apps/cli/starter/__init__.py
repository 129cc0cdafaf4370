"""A workspace to begin with: settings, schemas, rules and a projection that work together.

Upstream: the files beside this module. Downstream: `penstock init`. Entry point: `begin`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernel.errors import Conflict, InvalidRequest

_FILES = Path(__file__).parent / "files"
_NAME = re.compile(r"[^a-z0-9_]+")
_LONGEST = 30


def begin(folder: Path) -> list[Path]:
    """Write the files of a new workspace into `folder`; return them in order of their names.

    Nothing that is there is written over: raises `Conflict` before the first file.
    """
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest(
            f"{folder} is no folder",
            remedy="Name one, which may be there or not: penstock init DIR",
        )
    wanted = {folder / name: text for name, text in _texts(folder.resolve().name)}
    there = sorted(str(path.relative_to(folder)) for path in wanted if path.exists())
    if there:
        raise Conflict(
            f"{folder} has {', '.join(there)} already: nothing was written",
            remedy="Name another folder, or move these away.",
        )
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sorted(wanted)


def _texts(folder: str) -> Iterator[tuple[Path, str]]:
    name = _NAME.sub("_", folder.lower()).strip("_")[:_LONGEST].rstrip("_")
    if not name:
        raise InvalidRequest(
            f"no workspace can be named after {folder!r}",
            remedy="Name a folder with a letter or digit of ASCII in its name.",
        )
    for path in sorted(_FILES.rglob("*")):
        # Whoever installs a package compiles its modules, these too.
        if path.is_dir() or path.parent.name == "__pycache__":
            continue
        relative = path.relative_to(_FILES)
        if relative == Path("gitignore"):
            relative = Path(".gitignore")
        yield relative, path.read_text().replace("@NAME@", name)
