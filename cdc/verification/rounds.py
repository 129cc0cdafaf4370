"""Where the continuous verifier is in each table: kept in a file, so that a restart goes on.

The file `.penstock/verify/<source>.json` is scratch: without it the rounds begin anew. What was
found is in `lake/verifications`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.key_ranges import Bound

FOLDER = "verify"
MOST_FAILED_HEALS = 3
"""After so many healings in a row that changed nothing a table waits for a person."""
RECORDED_S = 86_400.0
"""So often rounds are recorded that find what the round before them found."""


@dataclass(slots=True)
class TableRound:
    """One table. The round under way began at `began`, has done `ranges` and `rows` and goes on
    at `next`; `table_rows` was counted at its begin. `moving` keys changed at every look.

    `verified_at` and `lsn` are of the newest range that was found equal or healed. `last_*` tell
    of the last full round; `note` says why the table is not verified just now.

    `wrong` says what the round under way found that did not end equal. `failed_heals` counts
    healings that ended with a difference, since the last round that ended with none. `recorded` is
    what the newest recorded round found, `recorded_at` when.
    """

    next: list[str] | None = None
    began: str | None = None
    ranges: int = 0
    rows: int = 0
    table_rows: int = 0
    differing: int = 0
    moving: int = 0
    verified_at: str | None = None
    lsn: str | None = None
    last_began: str | None = None
    last_ended: str | None = None
    last_rows: int = 0
    last_ranges: int = 0
    last_differing: int = 0
    last_moving: int = 0
    note: str | None = None
    wrong: str | None = None
    failed_heals: int = 0
    recorded: list[int] | None = None
    recorded_at: str | None = None

    @property
    def low(self) -> Bound | None:
        """Where the next range begins."""
        return None if self.next is None else tuple(self.next)

    @property
    def coverage(self) -> float:
        """Share of the table's rows that the round under way has done, 0 to 1."""
        return min(self.rows / self.table_rows, 1.0) if self.table_rows else 0.0

    def due(self, interval_s: float) -> bool:
        """Say whether a range is to be checked: in a round, or `interval_s` after one began."""
        return self.began is not None or _passed(self.last_began, interval_s)

    def record(self, version: int) -> bool:
        """Note the round that ended as recorded; False where that would say nothing new.

        `version` is that of the table in the lake. A table at rest is recorded once a day.
        """
        found = [version, self.last_rows, self.last_differing]
        if found == self.recorded and not _passed(self.recorded_at, RECORDED_S):
            return False
        self.recorded, self.recorded_at = found, _now()
        return True

    def begin(self, table_rows: int) -> None:
        """Begin a round."""
        self.next, self.began, self.table_rows = None, _now(), table_rows
        self.ranges = self.rows = self.differing = self.moving = 0
        self.wrong = None

    @property
    def heals(self) -> bool:
        """Whether a difference is healed: not where healing has failed again and again."""
        return self.failed_heals < MOST_FAILED_HEALS

    def took(
        self, rows: int, lsn: str, *, differing: int, moving: int, wrong: str | None = None
    ) -> None:
        """Book a range that was checked. `wrong` says why it is not equal now, None where it is."""
        self.ranges += 1
        self.rows += rows
        self.differing += differing
        self.moving += moving
        if wrong is not None:
            self.wrong = self.note = wrong
            return
        self.verified_at, self.lsn = _now(), lsn
        if self.failed_heals == 0 and self.wrong is None:
            # Else the note is of another range: it stands until a whole round ends equal.
            self.note = None

    def go_on(self, high: Bound | None) -> bool:
        """Go on at the range's end; return whether that ended the round.

        One that ended with a difference is over, too; `wrong` tells, until the next one begins.
        """
        self.next = None if high is None else list(high)
        if high is not None:
            return False
        self.last_began, self.last_ended = self.began, _now()
        self.last_rows, self.last_ranges = self.rows, self.ranges
        self.last_differing, self.last_moving = self.differing, self.moving
        self.began = None
        if self.wrong is None:
            self.failed_heals, self.note = 0, None
        return True


@dataclass(slots=True)
class SourceRounds:
    """The tables of one source, and which one is next."""

    turn: str = ""
    tables: dict[str, TableRound] = field(default_factory=dict)

    def of(self, table: str) -> TableRound:
        """Return a table's round, made if need be."""
        return self.tables.setdefault(table, TableRound())

    def next_of(self, names: list[str]) -> str:
        """Return the name after the last one that had its turn, and give it its turn."""
        later = [name for name in sorted(names) if name > self.turn]
        self.turn = later[0] if later else sorted(names)[0]
        return self.turn

    def keep_only(self, names: list[str]) -> None:
        """Forget tables that are not captured any more."""
        self.tables = {name: each for name, each in self.tables.items() if name in names}


def load_rounds(state_dir: Path, source: str) -> SourceRounds:
    """Read a source's rounds; new ones where the file is missing or cannot be read."""
    try:
        found: dict[str, Any] = json.loads(_path(state_dir, source).read_text())
        tables: Mapping[str, Any] = found["tables"]
        return SourceRounds(
            turn=str(found["turn"]),
            tables={name: TableRound(**each) for name, each in tables.items()},
        )
    except (OSError, ValueError, KeyError, TypeError):
        return SourceRounds()


def save_rounds(state_dir: Path, source: str, rounds: SourceRounds) -> None:
    """Write a source's rounds, all or nothing."""
    path = _path(state_dir, source)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".json.new")
    fresh.write_text(json.dumps(asdict(rounds), indent=1))
    fresh.replace(path)


def _path(state_dir: Path, source: str) -> Path:
    return state_dir / FOLDER / f"{source}.json"


def _passed(since: str | None, seconds: float) -> bool:
    if since is None:
        return True
    age = datetime.now(UTC) - datetime.fromisoformat(since)
    return age.total_seconds() >= seconds


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
