"""Write the lock file anew after a version in it was edited: sizes and hashes of what arrives."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from stack.ivy import Fetch
from stack.java import find_java
from stack.lock import Artifact, read_lock


def relock(path: Path) -> None:
    """Fetch every artefact of the lock file and pin the bytes that came."""
    artifacts = read_lock(path)
    with tempfile.TemporaryDirectory() as folder:
        fetch = Fetch(java=find_java(), folder=Path(folder), environ=os.environ)
        retrieved = fetch.run(artifacts, on_tick=lambda: None)
        lines = [_line(a, (retrieved / a.group / a.file_name).read_bytes()) for a in artifacts]
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    path.write_text("\n".join([*comments, *lines]) + "\n")


def _line(artifact: Artifact, content: bytes) -> str:
    plain = not artifact.classifier and artifact.extension == "jar"
    suffix = "" if plain else f":{artifact.classifier}@{artifact.extension}"
    digest = hashlib.sha256(content).hexdigest()
    return f"{artifact.group} {artifact.coordinates}{suffix} {len(content)} {digest}"
