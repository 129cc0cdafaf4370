"""What executors on other machines need of Penstock: its own packages, in one archive.

Spark hands the archive to every executor, unpacked in the folder that the executor works in, and
the Python processes there find the packages by `PYTHONPATH`. So executors run the driver's code,
whatever is installed beside them, and no machine needs a checkout. The packages that Penstock
builds upon come with the image, or with an environment of the user's own (`spark.archives`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = (
    *("apps", "cdc", "delivery", "eventstore", "kernel", "lake"),
    *("pipeline", "projections", "replay", "schemas", "service", "stack"),
)
"""All of the distribution's, as `pyproject.toml` lists them."""
FOLDER = "penstock"
"""What the archive is unpacked to, below the folder that an executor works in."""
_LEFT_OUT = frozenset({".pyc", ".jar", ".java"})
_WRITTEN_AT = (1980, 1, 1, 0, 0, 0)


def is_elsewhere(master: str) -> bool:
    """Say whether executors are processes of their own, which this one's files may not be near."""
    return not master.startswith("local") or master.startswith("local-cluster")


def packed(folder: Path) -> Path:
    """Write the archive into a folder, named by what is in it, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [(name, path.read_bytes()) for name, path in _sources()]
    digest = hashlib.sha256()
    for name, content in files:
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    archive = folder / f"penstock-{digest.hexdigest()[:16]}.zip"
    if not archive.exists():
        fresh = archive.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as written:
            for name, content in files:
                written.writestr(zipfile.ZipInfo(name, _WRITTEN_AT), content)
        fresh.replace(archive)
    return archive


def settings_of(archive: Path) -> dict[str, str]:
    """Return what makes Spark hand out an archive and executors import from it."""
    return {
        "spark.archives": f"{archive.resolve().as_uri()}#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": FOLDER,
    }


def _sources() -> Iterator[tuple[str, Path]]:
    """Yield the files of all packages in one order, with their names in the archive."""
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        assert found is not None, "it is a part of this distribution"
        assert found.origin is not None, "it has an __init__"
        root = Path(found.origin).parent
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix not in _LEFT_OUT:
                yield f"{package}/{path.relative_to(root).as_posix()}", path
