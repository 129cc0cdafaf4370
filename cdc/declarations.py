"""Where a workspace declares its sources: their names are read without any driver."""

from __future__ import annotations

from pathlib import Path

from kernel.errors import NotFound

FOLDER = "sources"
FILES = "sources/*.toml"
"""Stands for the sources of a workspace of which a file cannot be read."""
REMOVING = Path(".penstock/removing")
"""Declarations of sources that are being taken away: nobody starts those any more."""


def declared(workspace: Path) -> list[str]:
    """Return the names of the declared sources, sorted."""
    return sorted(path.stem for path in (workspace / FOLDER).glob("*.toml"))


def stopped_documents(workspace: Path) -> list[dict[str, object]]:
    """Return what can be said of sources without a stack: which are declared."""
    return [{"source": name, "state": "stopped"} for name in declared(workspace)]


def leaving_documents(workspace: Path) -> list[dict[str, object]]:
    """Return the sources that are taken away in part, sorted by name."""
    names = sorted(path.stem for path in (workspace / REMOVING).glob("*.toml"))
    return [{"source": name, "state": "removed-in-part"} for name in names]


def refuse_unknown(workspace: Path, name: str, *, leaving: bool = False) -> None:
    """Refuse a name that no source has; `leaving`: one that is taken away in part counts, too.

    Raises `NotFound`. It does not look into the file.
    """
    folders = (FOLDER, REMOVING) if leaving else (FOLDER,)
    if not any((workspace / folder / f"{name}.toml").exists() for folder in folders):
        raise unknown_source(workspace, name)


def unknown_source(workspace: Path, name: str) -> NotFound:
    """Return the error for a source that is not declared."""
    return NotFound(
        f"no source {name}; there are: {', '.join(declared(workspace)) or 'none'}",
        remedy="penstock source add NAME --dsn DSN --tables schema.table,…",
    )
