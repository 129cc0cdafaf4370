"""Where a lake lies: a folder or a prefix of an object store, named by a URI.

The only module that knows what a scheme means. deltalake, PyArrow, DuckDB (through PyArrow) and
Spark find an object store's endpoint, region and credentials in the environment, by the names that
its vendor gave them (`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`), so that no secret passes through settings, plans or logs.

PyArrow is loaded for what it is needed for: commands that only list folders do without.

Commits are atomic by conditional put on every store: of two writers of one version one fails.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import uuid4

from lake.layout import LOCAL

if TYPE_CHECKING:
    from pyarrow import fs

UNFINISHED = ".new"
"""What the name of a file ends with that is not written to its end."""
WHOLE_LOOK_S = 5.0
"""Seconds between two looks at a whole log, for who asks for its next commit alone (`version_at`):
that may have been made and cleaned away meanwhile."""
_LOG = "_delta_log"
_LOG_STORE = "penstock.spark.ConditionalLogStore"
"""Of `stack/spark`: Delta's own silently replaces a commit that another process made."""
_FROM_ENVIRONMENT = "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of the lake: `path` as its file system takes it, `written` in seconds since 1970."""

    path: str
    name: str
    size: int
    written: float


def is_local(uri: str) -> bool:
    """Say whether a place is on this machine's disk."""
    return "://" not in uri or uri.startswith(f"{LOCAL}://")


def place_of(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a place, and its path there."""
    from pyarrow import fs

    if is_local(uri):
        return fs.LocalFileSystem(), _path(uri)
    scheme, _, rest = uri.partition("://")
    bucket, _, below = unquote(rest).partition("/")
    return _store(scheme, bucket), f"{bucket}/{below}".rstrip("/")


def exists(uri: str) -> bool:
    """Say whether there is a folder, or anything below a prefix."""
    if is_local(uri):
        return os.path.isdir(_path(uri))
    files, path = place_of(uri)
    return bool(files.get_file_info(path).type.name == "Directory")


def version_at(uri: str, version: int) -> Stored | None:
    """Return the log's file of one version of a table; None where it is not kept."""
    files, _ = place_of(uri)
    return _stored(files.get_file_info(log_file(uri, version)))


def read(uri: str, path: str) -> bytes:
    """Return the bytes of a file by its path in the file system of `uri`."""
    files, _ = place_of(uri)
    with files.open_input_stream(path) as stream:
        return bytes(stream.read())


def files_in(uri: str) -> Iterator[Stored]:
    """Yield the files that lie directly at a place; none where it does not exist."""
    from pyarrow import fs

    files, root = place_of(uri)
    for info in files.get_file_info(fs.FileSelector(root, allow_not_found=True)):
        if (found := _stored(info)) is not None:
            yield found


def folders_in(uri: str) -> list[str]:
    """Return the names of the folders that lie directly at a place, in no order."""
    if is_local(uri):
        try:
            return [entry.name for entry in os.scandir(_path(uri)) if entry.is_dir()]
        except FileNotFoundError:
            return []
    from pyarrow import fs

    files, root = place_of(uri)
    found = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
    return [info.base_name for info in found if info.type is fs.FileType.Directory]


def write_whole(uri: str, path: str, content: bytes) -> None:
    """Write a file, by its path in the file system of `uri`, that nobody ever sees in part.

    On a disk it has another name until it is whole, which a crash leaves; an object store shows no
    object before all of it is there.
    """
    files, _ = place_of(uri)
    written = f"{path}{UNFINISHED}" if is_local(uri) else path
    with files.open_output_stream(written) as stream:
        stream.write(content)
    if written != path:
        files.move(written, path)


def log_file(uri: str, version: int) -> str:
    """Return the path of the log's file of one version, in the file system of a table's place."""
    return f"{place_of(uri)[1]}/{_LOG}/{version:020d}.json"


def last_checkpoint(uri: str) -> int:
    """Return the version of a table's last checkpoint, of one on a disk; -1 where it has none."""
    try:
        with open(f"{place_of(uri)[1]}/{_LOG}/_last_checkpoint", encoding="utf-8") as file:
            return int(json.load(file)["version"])
    except FileNotFoundError:
        return -1


def write_new(path: str, content: bytes) -> bool:
    """Write a file of a disk that nobody sees in part; False where one of that name is there.

    Of several writers at one moment one succeeds. Raises `OSError`, where it is not there then: of
    a disk that is full, or whose files have no second names, by which that is decided.
    """
    written = str(Path(path).with_name(f"_{uuid4().hex}{UNFINISHED}"))
    try:
        with open(written, "xb") as stream:
            stream.write(content)
        try:
            os.link(written, path)
        except OSError as error:
            # The answer of a disk behind a network may be lost, and be asked for again.
            if not (os.path.exists(path) and os.path.samefile(written, path)):
                if isinstance(error, FileExistsError):
                    return False
                raise
    finally:
        with suppress(OSError):
            os.unlink(written)
    return True


def write_over(uri: str, path: str, content: bytes, onto: str) -> None:
    """Give a file of a disk another content, not longer than its own, and another name.

    That takes no room. What its own is longer by stays; nobody sees it in part under either name.
    """
    written = f"{onto}{UNFINISHED}"
    place_of(uri)[0].move(path, written)
    with open(written, "r+b") as stream:
        stream.write(content)
    place_of(uri)[0].move(written, onto)


def remove_file(uri: str, path: str) -> None:
    """Remove a file by its path in the file system of `uri`; one that is gone already is fine."""
    files, _ = place_of(uri)
    try:
        files.delete_file(path)
    except FileNotFoundError:
        return


def make_folder(uri: str) -> None:
    """Make a folder where files need one to lie in; an object store needs none."""
    if is_local(uri):
        os.makedirs(_path(uri), exist_ok=True)


def files_below(uri: str) -> Iterator[Stored]:
    """Yield all files at and below a place; none where it does not exist."""
    from pyarrow import fs

    files, root = place_of(uri)
    selector = fs.FileSelector(root, allow_not_found=True, recursive=True)
    for info in files.get_file_info(selector):
        if (found := _stored(info)) is not None:
            yield found


def remove(uri: str) -> None:
    """Remove everything at and below a place."""
    files, path = place_of(uri)
    if files.get_file_info(path).type.name == "Directory":
        files.delete_dir(path)


def free_bytes(uri: str) -> int | None:
    """Return how much a place has room for; None where that has no bound to ask for."""
    if not is_local(uri):
        return None
    folder = Path(_path(uri))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def spark_settings(root: str) -> dict[str, str]:
    """Return what Spark's session must know to read and write below a lake's root."""
    if not root.startswith("s3://"):
        return {}
    options = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.input.stream.type": "classic",
        "fs.s3a.endpoint.region": os.environ.get("AWS_REGION", "us-east-1"),
        "fs.s3a.aws.credentials.provider": _FROM_ENVIRONMENT,
    }
    if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
        options["fs.s3a.endpoint"] = endpoint
        options["fs.s3a.path.style.access"] = "true"
        options["fs.s3a.connection.ssl.enabled"] = str(endpoint.startswith("https://")).lower()
    stores = {f"spark.delta.logStore.{scheme}.impl": _LOG_STORE for scheme in ("s3", "s3a")}
    return {f"spark.hadoop.{name}": value for name, value in options.items()} | stores


def _stored(info: fs.FileInfo) -> Stored | None:
    if info.type.name != "File":
        return None
    return Stored(info.path, info.base_name, int(info.size), info.mtime_ns / 1e9)


def _store(scheme: str, bucket: str) -> fs.FileSystem:
    return _store_at(scheme, bucket, os.environ.get("AWS_ENDPOINT_URL"))


@functools.cache
def _store_at(scheme: str, bucket: str, endpoint: str | None) -> fs.FileSystem:
    """Return the file system of a bucket, which looks for its endpoint once: when it is made."""
    from pyarrow import fs

    files, _ = fs.FileSystem.from_uri(f"{scheme}://{bucket}")
    return files


def _path(uri: str) -> str:
    return uri.removeprefix(f"{LOCAL}://")
