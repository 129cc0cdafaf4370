"""Which derived tables stand still, and which take part while others do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lake.layout import part_of
from pipeline.commit.manifest_rows import Committed
from pipeline.ddl.held_tables import Hold, retry_command
from pipeline.position.progress import Progress
from projections.sql.plans.plan import InputKind, Plan


def in_quarantine(up_to: Committed) -> Mapping[str, Hold]:
    """Return the typed tables that lack rows in quarantine as of an epoch, with ingest's hold."""
    held = Progress.from_json(up_to.progress).held
    return {
        f"typed/{source}.{table}": hold
        for source, tables in held.items()
        for table, hold in tables.items()
        if hold.resumes is not None
    }


def holds_on(plan: Plan, held: Mapping[str, Hold]) -> dict[str, Hold]:
    """Return the holds of derived tables that a plan reads, or that lie below a name it reads."""
    found: dict[str, Hold] = {}
    for item in plan.inputs:
        if item.kind is InputKind.PROJECTION:
            continue
        name = f"{'typed' if item.kind is InputKind.STREAM else 'history'}/{item.name}"
        found |= {each: h for each, h in held.items() if part_of(name, each) or part_of(each, name)}
    return found


def held_input(plan: Plan, held: Mapping[str, Hold]) -> str | None:
    """Say which held table a plan reads, why it is held and what releases it; None for none."""
    for name, hold in holds_on(plan, held).items():
        return f"{why_it_waits(name, hold)} | fix: {retry_command(name, hold)}"
    return None


def why_it_waits(name: str, hold: Hold) -> str:
    """Say of what reads a held table why it stands still."""
    return f"waits for {name}, held since epoch {hold.from_epoch}: {hold.reason}"


def covered(name: str, held: Iterable[str]) -> bool:
    """Say whether a table, or what it is part of, is among those held."""
    return any(part_of(name, each) for each in held)


def free(held: Sequence[str], name: str) -> bool:
    """Say whether a table is not among those held."""
    return not covered(name, held)


def own_hold(own: str, rest: Sequence[str], name: str) -> bool:
    """Say whether a table is tried again with the hold `own`, and not with a closer one."""
    closer = [other for other in rest if part_of(other, own)]
    return part_of(name, own) and not covered(name, closer)
