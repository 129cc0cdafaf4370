"""Have the pinned jars on this machine: from the cache, or fetched once, and never unverified.

`python -m stack.jars` fetches everything; `--relock` writes the lock file's hashes anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernel.errors import ChecksumMismatch, Misconfigured, Unavailable
from stack.cache import cache_dir
from stack.connect import JAR as KEEP_NULLS_JAR
from stack.ivy import Fetch
from stack.java import find_java
from stack.lock import GROUPS, LOCK_FILE, STORES, Artifact, read_lock
from stack.plan import document_of
from stack.progress import DownloadProgress, Report, silent
from stack.spark import JAR as LOG_STORE_JAR

# Counts how often the way of unpacking has changed.
_LAYOUT = 2

# The worker brings these itself; a second copy beside the converter breaks its plugin scan.
_CLASHING = (
    "kafka-clients",
    "connect-api",
    "connect-json",
    "slf4j-api",
    "lz4-java",
    "snappy-java",
    "zstd-jni",
)

_CONNECTOR = "debezium-connector-postgres"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """Verified files on this machine, by group, in the lock file's order."""

    root: Path
    paths: Mapping[str, tuple[Path, ...]]

    def classpath(self, group: str) -> str:
        """Return a group's jars as a Java class path."""
        return os.pathsep.join(str(path) for path in self.paths[group])

    def plugin_dir(self) -> Path:
        """Return Connect's plugin path: Debezium with our classes, and the converter."""
        return _unpacked("plugins", self.root, self._plugin_sources(), _fill_plugins)

    def registry_home(self) -> Path:
        """Return the unpacked registry."""
        return _unpacked("registry", self.root, self.paths["registry"], _fill_registry)

    def spark_jars(self) -> list[Path]:
        """Return what Spark needs: for Kafka, Delta, and the object stores among the groups."""
        stores = [path for group in STORES for path in self.paths.get(group, ())]
        return [*self.paths["spark"], *stores, *((LOG_STORE_JAR,) if stores else ())]

    def _plugin_sources(self) -> tuple[Path, ...]:
        converter = [path for path in self.paths["apicurio"] if not path.name.startswith(_CLASHING)]
        return (*self.paths["debezium"], *converter, KEEP_NULLS_JAR)


def resolve(
    *groups: str,
    offline: bool = False,
    mirror: str | None = None,
    progress: Report = silent,
    lock: Sequence[Artifact] | None = None,
) -> Jars:
    """Return the jars of `groups` (default: all), fetching what is missing.

    `offline` never touches the network. `mirror` (default: `PENSTOCK_MIRROR`) is the root of a
    Maven repository to use instead of the usual one. Two processes may call it at once.
    Raises `ChecksumMismatch` by name for bytes that differ (the bad file is removed), `Unavailable`
    when something is missing and cannot be had, `Misconfigured` where the cache cannot be made.
    """
    wanted = [a for a in lock or read_lock() if a.group in (groups or GROUPS)]
    root = cache_dir()
    store = _Store(root / "jars")
    _make(root)
    missing = store.missing(wanted)
    if missing:
        with _exclusive(root / "jars.guard"):
            missing = store.missing(wanted)
            if missing and offline:
                names = ", ".join(a.coordinates for a in missing[:3])
                raise Unavailable(
                    f"{len(missing)} of {len(wanted)} jars are not in {root}: {names}…",
                    remedy="Run once with network: penstock up (without --offline).",
                )
            if missing:
                mirror = mirror or os.environ.get("PENSTOCK_MIRROR")
                _fetch(store, missing, root, mirror, progress)
    paths = {
        group: tuple(store.path(a) for a in wanted if a.group == group)
        for group in dict.fromkeys(a.group for a in wanted)
    }
    return Jars(root=root, paths=paths)


def absent(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """Return which of the artefacts are not in the cache yet.

    Raises `ChecksumMismatch` for one that is there with other bytes.
    """
    return _Store(cache_dir() / "jars").missing(artifacts)


class _Store:
    """Verified jars. A file is hashed again only when its size or time stamp changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stamps = folder / "verified.json"

    def path(self, artifact: Artifact) -> Path:
        return self.folder / artifact.group / artifact.file_name

    def missing(self, artifacts: Sequence[Artifact]) -> list[Artifact]:
        """Return what is not there. Raises `ChecksumMismatch` for what is there but differs."""
        known: dict[str, list[object]] = document_of(self.stamps)
        fresh = dict(known)
        absent = []
        for artifact in artifacts:
            path = self.path(artifact)
            if not path.exists():
                absent.append(artifact)
                continue
            stat = path.stat()
            stamp = [stat.st_size, stat.st_mtime_ns, artifact.sha256]
            name = str(path.relative_to(self.folder))
            if known.get(name) != stamp:
                _verify_or_remove(artifact, path)
                fresh[name] = stamp
        if fresh != known:
            written = self.stamps.with_name(f"verified.{os.getpid()}")
            written.write_text(json.dumps(fresh))
            written.replace(self.stamps)
        return absent


def _verify_or_remove(artifact: Artifact, path: Path) -> None:
    try:
        artifact.verify(path)
    except ChecksumMismatch:
        # Removed, so that the next run fetches it anew instead of failing for ever.
        path.unlink()
        raise


def _fetch(
    store: _Store, missing: list[Artifact], root: Path, mirror: str | None, report: Report
) -> None:
    ivy = root / "ivy"
    meter = DownloadProgress(missing, ivy / "store", report)
    fetch = Fetch(java=find_java(), folder=ivy, mirror=mirror, environ=os.environ)
    retrieved = fetch.run(missing, on_tick=meter.tick)
    meter.done()
    for artifact in missing:
        source = retrieved / artifact.group / artifact.file_name
        try:
            _verify_or_remove(artifact, source)
        except ChecksumMismatch:
            # Ivy's own copy has the same bytes and would be handed out again.
            shutil.rmtree(ivy / "store" / artifact.organisation / artifact.name, ignore_errors=True)
            raise
        target = store.path(artifact)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
    store.missing(missing)
    shutil.rmtree(ivy, ignore_errors=True)


def _make(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misconfigured(
            f"the folder for jars, {root}, cannot be made: {error.strerror}",
            remedy="Name one that you may write: PENSTOCK_CACHE=DIR",
        ) from error


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unpacked(
    name: str, root: Path, sources: Sequence[Path], fill: Callable[[Path, Sequence[Path]], None]
) -> Path:
    """Unpack once per set of sources; a half-unpacked folder is never used.

    Another set gets another folder: the stack of another workspace may run from the old one.
    """
    listed = "\n".join([f"layout {_LAYOUT}", *map(_print, sources)])
    folder = root / "unpacked" / f"{name}-{hashlib.sha256(listed.encode()).hexdigest()[:8]}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder.with_name(f"{name}.guard")):
        if not folder.exists():
            fresh = folder.with_name(f"{name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            fill(fresh, sources)
            fresh.rename(folder)
    return folder


def _print(source: Path) -> str:
    """Return what tells a file from others of its name; what the lock pins never changes."""
    ours = hashlib.sha256(source.read_bytes()).hexdigest() if source == KEEP_NULLS_JAR else ""
    return f"{source.name} {ours}"


def _fill_plugins(folder: Path, sources: Sequence[Path]) -> None:
    converter = folder / "apicurio-converter"
    converter.mkdir()
    # The converter's own jar names no service, so that Connect would have to read every class.
    with zipfile.ZipFile(converter / "manifest.jar", "w") as manifest:
        manifest.writestr(
            "META-INF/services/org.apache.kafka.connect.storage.Converter",
            "io.apicurio.registry.utils.converter.AvroConverter\n",
        )
    for source in sources:
        if source.suffix == ".gz":
            _extract(source, folder)
        elif source == KEEP_NULLS_JAR:
            # Beside the connector, whose classes it uses. Copied: the cache outlives the
            # environment that this file belongs to.
            (folder / _CONNECTOR).mkdir(exist_ok=True)
            shutil.copy(source, folder / _CONNECTOR)
        else:
            (converter / source.name).symlink_to(source)


def _fill_registry(folder: Path, sources: Sequence[Path]) -> None:
    for source in sources:
        _extract(source, folder)


def _extract(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def main(arguments: Sequence[str]) -> int:
    """Fetch everything, with progress on standard error; `--relock` renews the lock's hashes."""
    from stack.relock import relock

    if "--relock" in arguments:
        relock(LOCK_FILE)
        return 0
    jars = resolve(progress=lambda line: print(line, file=sys.stderr))
    print(f"{sum(map(len, jars.paths.values()))} jars in {jars.root}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
