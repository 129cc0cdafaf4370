"""The pipeline's copier as a process of its own, to be killed: `python -m … FOLDER CHUNK_BYTES`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from apps.capture import capture_site
from apps.settings import load
from cdc.copies.table_copier import TableCopier
from kernel import failpoints
from lake.layout import Lake
from schemas.registry import ConfluentRegistry


def main(folder: Path, chunk_bytes: int) -> None:
    """Copy what is wanted until somebody kills this process."""
    failpoints.arm_from_environment()
    settings = load(folder)
    registry = ConfluentRegistry(settings.required("registry.url"))
    lake = Lake.at(settings.lake)
    TableCopier(capture_site(settings), lake, registry, chunk_bytes=chunk_bytes).run(
        threading.Event()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
