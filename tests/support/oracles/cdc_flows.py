"""Changes for AUTO CDC flows, and an independent model of the tables that they become."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

Row = dict[str, object]
VALUES = ("name", "city")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One change of a key: `op` is u (upsert), d (delete) or t (truncate, of all keys)."""

    key: int | None
    sequence: int | None
    op: str = "u"
    name: str | None = None
    city: str | None = None

    @property
    def content(self) -> str:
        """What orders changes of one key and sequence, as the flow writes it."""
        if self.op == "d":
            return "1"
        values = {n: v for n, v in (("name", self.name), ("city", self.city)) if v is not None}
        return "0" + hashlib.md5(json.dumps(values, separators=(",", ":")).encode()).hexdigest()

    @property
    def values(self) -> tuple[str | None, str | None]:
        return (None, None) if self.op == "d" else (self.name, self.city)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Arguments of a flow that the model knows, too."""

    scd_type: int = 1
    partial: tuple[str, ...] = ()
    tracked: tuple[str, ...] = VALUES
    truncates: bool = False


def expected(kind: Kind, said: Sequence[Said]) -> list[Row]:
    """Walk the changes of each key in order of sequence."""
    rows: list[Row] = []
    for key, changes in winners(kind, said).items():
        rows += _latest(kind, key, changes) if kind.scd_type == 1 else _versions(kind, key, changes)
    return sorted(rows, key=lambda row: (row["id"], row.get("__START_AT")))


def winners(kind: Kind, said: Sequence[Said]) -> dict[int, list[Said]]:
    """Return the changes that count, by key and in order: usable ones, one per sequence."""
    truncated = max(
        (s.sequence for s in said if s.op == "t" and s.sequence is not None and kind.truncates),
        default=None,
    )
    places: dict[tuple[int, int], list[Said]] = {}
    for change in said:
        if change.op == "t" or change.key is None or change.sequence is None:
            continue
        if truncated is not None and change.sequence <= truncated:
            continue
        places.setdefault((change.key, change.sequence), []).append(change)
    found: dict[int, list[Said]] = {}
    for (key, _), changes in sorted(places.items()):
        best = max(changes, key=lambda change: change.content)
        if best.op != "d":
            best = replace(best, **{name: _said(name, changes) for name in kind.partial})
        found.setdefault(key, []).append(best)
    return found


def _said(name: str, changes: Sequence[Said]) -> str | None:
    """Return what changes of one place say of a column whose nulls say nothing."""
    return max((v for c in changes if (v := getattr(c, name)) is not None), default=None)


def _held(kind: Kind, changes: Sequence[Said]) -> Iterator[tuple[Said, Mapping[str, object]]]:
    """Give each change with the row that holds after it; an empty one after a delete."""
    row: dict[str, object] = {}
    for change in changes:
        if change.op == "d":
            row = {}
        else:
            said = dict(zip(VALUES, change.values, strict=True))
            kept = {n: row.get(n) for n in kind.partial if said[n] is None}
            row = said | kept
        yield change, row


def _latest(kind: Kind, key: int, changes: Sequence[Said]) -> list[Row]:
    *_, (_, row) = _held(kind, changes)
    return [{"id": key, **row}] if row else []


def _versions(kind: Kind, key: int, changes: Sequence[Said]) -> list[Row]:
    versions: list[Row] = []
    for change, row in _held(kind, changes):
        last = versions[-1] if versions and versions[-1]["__END_AT"] is None else None
        if row and last and all(last[n] == row[n] for n in kind.tracked):
            last.update(row)
            continue
        if last is not None:
            last["__END_AT"] = change.sequence
        if row:
            versions.append({"id": key, **row, "__START_AT": change.sequence, "__END_AT": None})
    return versions
