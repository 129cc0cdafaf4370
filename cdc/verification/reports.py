"""What a comparison says of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from kernel.clock import UNIX_EPOCH
from kernel.positions import lsn_from_text
from pipeline.verification.book import MOST_KEYS, Fact, Kind
from schemas.key_ranges import KeyRange
from schemas.pg_types import SourceColumn

_SHOWN_RANGES = 10
MISSING, EXTRA, DIFFERS, DOUBLED = "missing", "extra", "differs", "doubled"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDifference:
    """A key that is missing in the lake, extra there, or differs in `columns`.

    One that is `doubled` is that of several rows of the source.
    """

    key: dict[str, str | None]
    what: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Counts of all differing keys, and at most 100 of them by name. Adds up over ranges.

    `doubled` ones are among the `differing`.
    """

    missing: int = 0
    extra: int = 0
    differing: int = 0
    doubled: int = 0
    keys: tuple[KeyDifference, ...] = ()

    @property
    def any(self) -> bool:
        """Whether something differs."""
        return bool(self.missing or self.extra or self.differing)

    @property
    def healable(self) -> bool:
        """Whether the source's rows would mend something: of several rows of a key one is kept."""
        return bool(self.missing or self.extra or self.differing > self.doubled)

    def __add__(self, other: Differences) -> Differences:
        return Differences(
            missing=self.missing + other.missing,
            extra=self.extra + other.extra,
            differing=self.differing + other.differing,
            doubled=self.doubled + other.doubled,
            keys=(*self.keys, *other.keys)[:MOST_KEYS],
        )


NO_DIFFERENCES = Differences()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """A table compared with its source at `lsn`.

    `rows` and `hash` are the source's, `rows_current` and `hash_current` the lake's. `ranges` were
    compared, `differing_ranges` are those that differ. `not_compared` names columns left out, with
    the reason. `held` says why a table could not be compared at all. `cause`: a commit by somebody
    else, where there is one. `install` and `after` tell of the healing: `equal` or `differs`.
    `again`: it is held at this LSN alone, a later one may have it.
    """

    table: str
    lsn: str
    epoch: int
    rows: int = 0
    rows_current: int = 0
    hash: str = "0" * 32
    hash_current: str = "0" * 32
    columns: tuple[str, ...] = ()
    not_compared: tuple[tuple[str, str], ...] = ()
    ranges: int = 0
    differing_ranges: tuple[KeyRange, ...] = ()
    differences: Differences = NO_DIFFERENCES
    held: str | None = None
    again: bool = False
    cause: str | None = None
    install: str | None = None
    after: str | None = None
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether the table was compared and is equal, count and hash."""
        same = (self.rows, self.hash) == (self.rows_current, self.hash_current)
        return self.held is None and same and not self.differences.any

    @property
    def sound(self) -> bool:
        """Whether it is equal, or was healed and is equal now."""
        return self.equal or self.after == "equal"

    @property
    def verdict(self) -> str:
        """What became of the comparison, in a word or two."""
        if self.held is not None:
            return "NOT COMPARED"
        if self.equal:
            return "equal"
        return "healed" if self.sound else "DIFFERS"

    def lines(self) -> list[str]:
        """Say of it, for people, what no table of figures says."""
        lines = []
        if self.held is not None:
            lines.append(f"{self.table}: not compared: {self.held}")
        for column, reason in self.not_compared:
            lines.append(f"{self.table}: column {column} is not compared: {reason}")
        found = self.differences
        if not found.any:
            return lines
        counts = f"{found.missing} missing, {found.extra} extra, {found.differing} differing"
        lines.append(f"{self.table}: {counts}")
        ranges = [str(one) for one in self.differing_ranges]
        more = f", and {len(ranges) - _SHOWN_RANGES} more" if len(ranges) > _SHOWN_RANGES else ""
        lines.append(f"  ranges: {', '.join(ranges[:_SHOWN_RANGES])}{more}")
        for one in found.keys:
            key = ", ".join(f"{column} = {value}" for column, value in one.key.items())
            columns = f" in {', '.join(one.columns)}" if one.columns else ""
            lines.append(f"  {one.what}: {key}{columns}")
        hidden = found.missing + found.extra + found.differing - len(found.keys)
        if hidden:
            lines.append(f"  and {hidden} more keys")
        if self.cause:
            lines.append(f"  cause: {self.cause}")
        if self.install:
            lines.append(f"  healed by install {self.install}; after: {self.after}")
        return lines

    def document(self) -> dict[str, object]:
        """Return it as `--json` shows it."""
        found = self.differences
        return {
            "table": self.table,
            "equal": self.equal,
            "held": self.held,
            "lsn": self.lsn,
            "epoch": self.epoch,
            "rows": self.rows,
            "rows_current": self.rows_current,
            "hash": self.hash,
            "hash_current": self.hash_current,
            "columns": list(self.columns),
            "not_compared": dict(self.not_compared),
            "ranges": self.ranges,
            "differing_ranges": [str(one) for one in self.differing_ranges],
            "missing": found.missing,
            "extra": found.extra,
            "differing": found.differing,
            "keys": key_documents(found),
            "cause": self.cause,
            "install": self.install,
            "after": self.after,
            "seconds": round(self.seconds, 3),
        }

    def fact(self, source: str, kind: Kind) -> Fact:
        """Return it as the lake keeps it."""
        now = datetime.now(UTC)
        return Fact(
            source=source,
            table=self.table,
            kind=kind,
            lsn=lsn_from_text(self.lsn),
            epoch=self.epoch,
            ranges=self.ranges,
            rows=self.rows,
            missing=self.differences.missing,
            extra=self.differences.extra,
            differing=self.differences.differing,
            keys=tuple(key_documents(self.differences)),
            cause=self.cause,
            install=self.install,
            after=self.after,
            since=now - timedelta(seconds=self.seconds),
            at=now,
        )

    def healed(self, install: str, *, equal: bool) -> TableReport:
        """Return it with what became of it."""
        return replace(self, install=install, after="equal" if equal else "differs")


def key_documents(found: Differences) -> list[dict[str, object]]:
    """Return the keys that are shown, as JSON keeps them."""
    return [
        {"key": dict(one.key), "what": one.what, "columns": list(one.columns)} for one in found.keys
    ]


def readable(key: str, columns: tuple[SourceColumn, ...]) -> dict[str, str | None]:
    """Take a key's canonical cells apart: `1:5,3:a,b` is 5 and `a,b`; days and micros as dates."""
    values: list[str | None] = []
    at = 0
    for _ in columns:
        if key.startswith("N", at):
            values.append(None)
            at += 2
            continue
        length, _, _ = key[at:].partition(":")
        start = at + len(length) + 1
        values.append(key[start : start + int(length)])
        at = start + int(length) + 1
    return {
        column.name: None if value is None else _shown(value, column)
        for column, value in zip(columns, values, strict=True)
    }


def _shown(value: str, column: SourceColumn) -> str:
    if column.is_array:
        return value
    match column.type:
        case "date":
            return (UNIX_EPOCH + timedelta(days=int(value))).date().isoformat()
        case "timestamp":
            return (
                (UNIX_EPOCH + timedelta(microseconds=int(value)))
                .replace(tzinfo=None)
                .isoformat(" ")
            )
        case "timestamptz":
            return (UNIX_EPOCH + timedelta(microseconds=int(value))).isoformat(" ")
        case _:
            return value
