"""Files of text that people write: schemas, SQL, tests, plans."""

from __future__ import annotations

from pathlib import Path

from kernel.errors import InvalidRequest


def text_of(file: Path, holds: str) -> str:
    """Read a file that is to hold something, in UTF-8. Raises `InvalidRequest`."""
    try:
        # A mark of the byte order, as some editors write it, is no part of what is in the file.
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error.strerror)
        raise InvalidRequest(
            f"{file} cannot be read: {why}",
            remedy=f"Name a file that you may read, with {holds} in UTF-8.",
        ) from error
