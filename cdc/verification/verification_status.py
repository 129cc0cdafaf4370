"""What is known of each table's comparison with its source: for `source status`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cdc.verification.rounds import TableRound, load_rounds
from lake.layout import Lake
from lake.tables import Tables
from pipeline.verification.book import Fact, Kind, Verifications


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerification:
    """One table. `verified_at` and `lsn`: the newest range that the continuous verifier passed.

    `coverage`: share of the table that its round under way has done; `round_ended`, `round_rows`,
    `round_differing`: its last full round. `compared_at`, `compared_equal`: the last `source
    verify`. `healings` counts all, `healed_at`, `healed`, `cause` tell of the last one. `note`: why
    the table is not verified just now.
    """

    table: str
    verified_at: str | None = None
    lsn: str | None = None
    coverage: float = 0.0
    round_ended: str | None = None
    round_rows: int = 0
    round_differing: int = 0
    compared_at: datetime | None = None
    compared_equal: bool | None = None
    healings: int = 0
    healed_at: datetime | None = None
    healed: str | None = None
    cause: str | None = None
    note: str | None = None


def verifications_of(lake: Lake, state_dir: Path, source: str) -> list[TableVerification]:
    """Return what is known of each table of a source, by name; empty before the first check."""
    rounds = load_rounds(state_dir, source).tables
    facts: dict[str, list[Fact]] = {}
    for fact in Verifications(lake, Tables()).of(source):
        facts.setdefault(fact.table, []).append(fact)
    return [
        _of(table, rounds.get(table, TableRound()), facts.get(table, []))
        for table in sorted({*rounds, *facts})
    ]


def _of(table: str, current: TableRound, facts: list[Fact]) -> TableVerification:
    compared = [fact for fact in facts if fact.kind in (Kind.COMMAND, Kind.HEAL)]
    healings = [fact for fact in facts if fact.kind is Kind.HEAL]
    last, heal = (each[-1] if each else None for each in (compared, healings))
    return TableVerification(
        table=table,
        verified_at=current.verified_at,
        lsn=current.lsn,
        coverage=round(current.coverage, 3),
        round_ended=current.last_ended,
        round_rows=current.last_rows,
        round_differing=current.last_differing,
        compared_at=last.at if last else None,
        compared_equal=(last.equal or last.after == "equal") if last else None,
        healings=len(healings),
        healed_at=heal.at if heal else None,
        healed=heal.after if heal else None,
        cause=heal.cause if heal else None,
        note=current.note,
    )
