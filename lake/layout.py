"""Where tables lie. Paths are stable: any engine may open them for ever."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kernel.errors import Misconfigured
from schemas.identifiers import name_at, path_of

KINDS = ("log", "typed", "current", "history", "projection", "quarantine", "corrections")

SINGLE = ("epochs", "catalog", "leases", "replays", "savepoints", "verifications")
"""At the lake's root: the manifest; what is deployed, replayed, kept and verified; who writes."""

# Names in these come from captured databases; the longer folder before the shorter one.
_OF_CAPTURED = (
    "log/snapshots/_gone/",
    "log/snapshots/",
    "current/_staging/",
    "current/_tail/",
    "current/",
    "history/",
    "typed/",
)
_OF_INGEST = ("log/changes/", "log/events/", "log/topics/", "current/")
LOCAL = "file"
# What deltalake cuts off, panics at when it writes rows, or decodes.
_LOST = re.compile(r"[#?\[\]|^\\]|%[0-9A-Fa-f]{2}")
OBJECT_STORES = ("s3",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAt:
    """A table's Delta version and the epoch up to which it has taken input."""

    version: int
    as_of_epoch: int


@dataclass(frozen=True, slots=True)
class Lake:
    """A folder or object-store prefix that holds all tables of one workspace."""

    root: str

    @classmethod
    def at(cls, place: str | Path) -> Lake:
        """Return the lake at a place; see `lake_root`. A local folder is made if need be."""
        lake = cls.named(place)
        if "://" not in lake.root:
            Path(lake.root).mkdir(parents=True, exist_ok=True)
        return lake

    @classmethod
    def named(cls, place: str | Path) -> Lake:
        """Return the lake at a place, for one who only reads: it may not be there yet."""
        return cls(lake_root(place))

    def path(self, name: str) -> str:
        """Return the root of the table that is named by kind and name, as `current/shop.orders`."""
        folder = _folder_of(name)
        rest = name.removeprefix(folder)
        return f"{self.root}/{folder}{path_of(rest) if folder else rest}"

    def name_at(self, place: str) -> str:
        """Return the name of the table at a place below the root: the inverse of `path`."""
        folder = _folder_of(place)
        rest = place.removeprefix(folder)
        return f"{folder}{name_at(rest) if folder else rest}"

    def written_by_ingest(self, path: str) -> bool:
        """Say whether only ingest writes rows to the table at `path`.

        Not so the generations of installs, which copies fill.
        """
        own = path.startswith(tuple(f"{self.root}/{folder}" for folder in _OF_INGEST))
        return own and "/_gen/" not in path

    @property
    def epochs(self) -> str:
        """The manifest: one row when an epoch is bound, one when it is committed."""
        return self.path("epochs")

    @property
    def catalog(self) -> str:
        """What is deployed: captured sources, declared sources, projections and generations."""
        return self.path("catalog")

    @property
    def avro_schemas(self) -> str:
        """Avro schemas by id, so that the log can be read without a registry."""
        return self.path("log/_schemas")

    @property
    def quarantine(self) -> str:
        """Records that could not be used, with bytes, place and reason."""
        return self.path("quarantine/records")

    @property
    def outcomes(self) -> str:
        """What became of records in quarantine."""
        return self.path("quarantine/outcomes")


def lake_root(place: str | Path, *, base: Path | None = None) -> str:
    """Return where a lake lies, as every engine takes it: an absolute path or a URI.

    A relative path is below `base`. Raises `Misconfigured` for a scheme that nothing here writes,
    and for a folder that not all engines find again.
    """
    text = str(place)
    scheme, separator, rest = text.partition("://")
    if not separator:
        place = os.path.expanduser(text.removeprefix(f"{LOCAL}:"))
        if not place.strip():
            raise _nowhere(text)
        # With a slash behind the scheme it is a URI, else a path with a word in front.
        place = unquote(place) if text.startswith(f"{LOCAL}:/") else place
        return _plain(((base or Path()) / place).resolve())
    if scheme == LOCAL:
        return _of_this_machine(text)
    if scheme not in OBJECT_STORES:
        known = ", ".join(f"{each}://" for each in OBJECT_STORES)
        raise Misconfigured(
            f"no lake can lie at {scheme}://",
            remedy=f"Set lake.path to a folder, file:/… or one of {known}.",
        )
    if not rest.strip("/"):
        raise Misconfigured(
            f"{text} names no bucket", remedy=f"Set lake.path to {scheme}://bucket/prefix."
        )
    return text.rstrip("/")


def _nowhere(text: str) -> Misconfigured:
    """Return the error of a place that is empty: the folder in which a command runs is no lake."""
    return Misconfigured(
        f"lake.path is '{text}', which names no folder",
        remedy="Set lake.path to a folder, as lake, or leave it out: an empty PENSTOCK_LAKE_PATH is"
        " a setting, too.",
    )


def _of_this_machine(text: str) -> str:
    """Return the folder of a `file://` URI. Raises `Misconfigured` where it names a host."""
    uri = urlsplit(text)
    if not uri.path.strip():
        raise _nowhere(text)
    if uri.netloc not in ("", "localhost"):
        raise Misconfigured(
            f"{text} names the host {uri.netloc!r}, and not a folder of this machine",
            remedy=f"Set lake.path to {LOCAL}:///{uri.netloc}{uri.path}, or to a relative path.",
        )
    return _plain(Path(unquote(uri.path)).resolve())


def _plain(folder: Path) -> str:
    """Return a folder in which deltalake finds the log of a table again.

    Raises `Misconfigured` for a name that it cuts off where a URI would end, decodes as one, or
    takes for a host.
    """
    found = str(folder)
    lost = sorted(set(_LOST.findall(found)))
    if lost:
        raise Misconfigured(
            f"no lake can lie at {found}: {' and '.join(lost)} in the path of a table is lost on"
            " its way",
            remedy="Move the workspace, or set lake.path to a folder without it.",
        )
    return found


def _folder_of(name: str) -> str:
    return next((folder for folder in _OF_CAPTURED if name.startswith(folder)), "")


def events_log(store_id: str) -> str:
    """Name the log of one event store."""
    return f"log/events/{store_id}"


def changes_log(source: str) -> str:
    """Name the log of one captured source."""
    return f"log/changes/{source}"


def topics_log(source: str) -> str:
    """Name the log of the external topic of a declared source."""
    return f"log/topics/{source}"


def current_name(source: str, table: str) -> str:
    """Name the `current` table of a captured table, as `current/shop.public.orders`."""
    return f"current/{source}.{table}"


def part_of(name: str, whole: str) -> bool:
    """Say whether a name is another one or stands below it: `typed/shop.a` in `typed/shop`."""
    return name == whole or name.startswith(f"{whole}.")
