"""`FILE.sha256` beside an exported file, as sha256sum writes it and reads it: `sha256sum -c`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kernel.errors import ContractViolation

SUFFIX = ".sha256"


def checksum_file(file: Path) -> Path:
    """Return where the checksum of a file lies."""
    return Path(f"{file}{SUFFIX}")


def write_checksum(file: Path, checksum: str) -> None:
    """Write a checksum, in hexadecimal digits, beside the file that it is of."""
    checksum_file(file).write_text(f"{checksum}  {file.name}\n")


def refuse_damaged(file: Path) -> None:
    """Raise `ContractViolation` for a file that is not what its checksum says; without one it is.

    It is read as a whole, before anything is done with its first line: a copy that broke off, or a
    byte that flipped, is found before half of it is somewhere.
    """
    beside = checksum_file(file)
    if not beside.is_file():
        return
    words = beside.read_text(errors="replace").split()
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if not words or words[0] != found:
        raise ContractViolation(
            f"{file} is not what {beside.name} says: its SHA-256 is {found}; nothing was sent",
            remedy=f"Export or copy it again. If it was changed on purpose, remove {beside}.",
        )
