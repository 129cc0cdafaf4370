"""The lock file of jars: which bytes the local stack is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernel.errors import ChecksumMismatch, Misconfigured

LOCK_FILE = Path(__file__).with_name("jars.lock")
GROUPS = ("kafka", "apicurio", "debezium", "registry", "spark")
"""kafka: broker and Connect. apicurio: Avro converter for Connect. debezium: its plugin archive.
registry: the registry's archive. spark: what Spark needs for Kafka and Delta. Fetched at the first
`up`; `STORES` only where a lake lies there."""
STORES = ("s3",)
"""s3: what Spark needs to read and write an S3 store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One pinned file. `classifier` is empty for a plain jar."""

    group: str
    organisation: str
    name: str
    revision: str
    classifier: str
    extension: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the file in the cache."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.revision}{classifier}.{self.extension}"

    @property
    def coordinates(self) -> str:
        """Organisation, name and revision, as people write them."""
        return f"{self.organisation}:{self.name}:{self.revision}"

    def verify(self, path: Path) -> None:
        """Compare a file's bytes with the pinned hash.

        Raises `ChecksumMismatch` that names the artefact, the file and both hashes.
        """
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise ChecksumMismatch(
                f"{self.coordinates} has SHA-256 {found}, the lock file pins {self.sha256}: {path}",
                artifact=self.coordinates,
                file=path,
                expected=self.sha256,
                found=found,
            )


def read_lock(path: Path = LOCK_FILE) -> tuple[Artifact, ...]:
    """Return all pinned artefacts in the file's order.

    Raises `Misconfigured` for a line that cannot be read.
    """
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return tuple(_artifact(fields, path) for fields in lines if fields)


def _artifact(fields: list[str], path: Path) -> Artifact:
    try:
        group, coordinates, size, sha256 = fields
        organisation, name, revision, *rest = coordinates.split(":")
        classifier, _, extension = (rest[0] if rest else "@jar").partition("@")
        return Artifact(
            group=group,
            organisation=organisation,
            name=name,
            revision=revision,
            classifier=classifier,
            extension=extension,
            size_bytes=int(size),
            sha256=sha256,
        )
    except (ValueError, IndexError) as error:
        raise Misconfigured(f"{path}: cannot read the line {' '.join(fields)!r}") from error


def version_of(name: str, artifacts: Iterable[Artifact] | None = None) -> str:
    """Return the pinned version of the artefact called `name` (the newest, if several groups)."""
    found = [a.revision for a in artifacts or read_lock() if a.name == name]
    if not found:
        raise Misconfigured(f"the lock file pins nothing called {name}")
    return max(found)
