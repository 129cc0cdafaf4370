"""Installs the peers at their pinned versions into a folder of their own, once."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernel.errors import Misconfigured

HERE = Path(__file__).parent
PINS = ("requirements.txt", "package.json", "package-lock.json")
_MARK = "installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """Where the peers are. `node` is None where there is no Node.js: then Emmett is left out."""

    python: Path
    umadb: Path
    packages: Path
    node: Path | None

    @property
    def message_db(self) -> Path:
        """The SQL files of message-db."""
        return self.packages / "node_modules" / "@eventide" / "message-db" / "database"


def installed(cache: Path, progress: Callable[[str], None]) -> Installed:
    """Return the peers in `cache`, installed if their pins have changed or nobody did yet.

    Raises `Misconfigured` when pip or npm fails, with the end of what it said.
    """
    folder = cache / _fingerprint()
    node, npm = shutil.which("node"), shutil.which("npm")
    found = Installed(
        python=folder / "venv" / "bin" / "python",
        umadb=folder / "venv" / "bin" / "umadb",
        packages=folder / "node",
        node=Path(node) if node and npm else None,
    )
    if not (folder / _MARK).exists():
        progress(f"  installing the peers into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        found.packages.mkdir(parents=True)
        _run(sys.executable, "-m", "venv", folder / "venv")
        _run(found.python, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements.txt")
        if npm is not None and found.node is not None:
            for name in PINS[1:]:
                shutil.copy(HERE / name, found.packages)
            _run(npm, "ci", "--no-audit", "--no-fund", "--silent", cwd=found.packages)
        (folder / _MARK).touch()
    return found


def environment(cache: Path, pins: str, progress: Callable[[str], None]) -> Path:
    """Return the Python of an environment with the packages of a file beside this one.

    It is made where it is not there yet. Raises `Misconfigured` when pip fails.
    """
    file = HERE / pins
    folder = cache / hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    python = folder / "venv" / "bin" / "python"
    if not (folder / _MARK).exists():
        progress(f"  installing {file.stem} into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", folder / "venv")
        _run(python, "-m", "pip", "install", "--quiet", "-r", file)
        (folder / _MARK).touch()
    return python


def default_cache() -> Path:
    """Return the folder that is used where none is named."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-benchmarks"


def _fingerprint() -> str:
    pins = b"".join((HERE / name).read_bytes() for name in PINS)
    return hashlib.sha256(pins).hexdigest()[:12]


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip().splitlines() or ["nothing"]
        raise Misconfigured(
            f"{Path(command[0]).name} failed to install the peers: {said[-1]}",
            remedy="Mend the access to the package indexes, or measure without peers: "
            "--products penstock_http,penstock_inprocess,bare_insert",
        )
