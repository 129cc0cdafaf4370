"""Tables that stand still by name: what happened to each in its source, and what releases it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernel.errors import PenstockError, without_stack
from lake.layout import current_name

if TYPE_CHECKING:
    from pipeline.ddl.steps import Order

NO_ORDER: Order = (0, 0)
"""Order of a hold that no change of the source caused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why a table is held. Rows at or behind `order` stay in the log and wait.

    `diff` says what was and what is, one line for each column. `from_epoch` is the first epoch
    that the table does not have, 0 before that is known. `resumes`, where records of the table
    are in quarantine: the cut up to which it has its rows, and the first epoch in which the log
    may have others. It goes on from there by itself once no record of it waits any more.
    """

    order: Order
    reason: str
    diff: tuple[str, ...] = ()
    from_epoch: int = 0
    resumes: tuple[int, int] | None = None

    def at(self, epoch: int) -> Hold:
        """Return the hold with the epoch in which it began."""
        return replace(self, from_epoch=epoch)

    def to_json(self) -> dict[str, object]:
        """Return the form in which the manifest keeps it."""
        return {
            "order": list(self.order),
            "reason": self.reason,
            "diff": list(self.diff),
            "from_epoch": self.from_epoch,
            **({} if self.resumes is None else {"resumes": list(self.resumes)}),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, object]) -> Hold:
        """Restore what `to_json` gave."""
        match kept:
            case {
                "order": [int(high), int(low)],
                "reason": str(reason),
                "diff": list(diff),
                "from_epoch": int(epoch),
            }:
                resumes = kept.get("resumes")
                return cls(
                    order=(high, low),
                    reason=reason,
                    diff=tuple(map(str, diff)),
                    from_epoch=epoch,
                    resumes=(resumes[0], resumes[1]) if isinstance(resumes, list) else None,
                )
        raise ValueError(f"not a kept hold: {kept!r}")


def failure_hold(error: BaseException, *, from_epoch: int) -> Hold:
    """Return the hold of a table whose fold, typing or history failed."""
    said = without_stack(error)
    said = said if isinstance(error, PenstockError) else f"{type(error).__name__}: {said}"
    return Hold(order=NO_ORDER, reason=said[:800], from_epoch=from_epoch)


def retry_command(name: str, hold: Hold) -> str:
    """Return the command that has a held typed or history table tried again now."""
    if hold.resumes is not None:
        return f"penstock quarantine retry {name.partition('/')[2]}"
    return f"penstock table retry {name}"


def quarantine_hold(why: str, *, records: int, from_epoch: int, resumes: tuple[int, int]) -> Hold:
    """Return the hold of a table of which a transaction lacks rows that are in quarantine."""
    reason = f"{records} of its records in quarantine, the newest: {why}"
    return Hold(order=NO_ORDER, reason=reason, from_epoch=from_epoch, resumes=resumes)


def stranded_hold(*, from_epoch: int) -> Hold:
    """Return the hold of a table whose changes are not folded, and that nobody copies."""
    reason = "its changes go to the log alone since it was copied last, and nobody copies it again"
    return Hold(order=NO_ORDER, reason=reason, from_epoch=from_epoch)


def release_command(source: str, table: str, hold: Hold) -> str:
    """Return the command that lets a held table go on, after it was read again if need be."""
    if hold.resumes is not None:
        return f"penstock quarantine retry {source}.{table}"
    return f"penstock source resnapshot {source} --tables {table} --yes"


def hold_line(source: str, table: str, hold: Hold) -> str:
    """Say in one line what stands still, since when and why."""
    return f"{source}.{table} is held since epoch {hold.from_epoch}: {hold.reason}"


def hold_document(source: str, table: str, hold: Hold) -> dict[str, object]:
    """Return a hold as health and status show it, with the command that releases it."""
    return {
        "from_epoch": hold.from_epoch,
        "reason": hold.reason,
        "diff": list(hold.diff),
        "command": release_command(source, table, hold),
    }


Held = dict[str, dict[str, Hold]]
"""Source -> table -> why it stands still."""


def held_by_name(held: Held) -> dict[str, Hold]:
    """Return holds by the names of the `current` tables that stand still."""
    return {
        current_name(source, table): hold
        for source, tables in held.items()
        for table, hold in tables.items()
    }


def held_to_json(held: Held) -> dict[str, dict[str, dict[str, object]]]:
    """Return the form in which the manifest keeps it."""
    return {s: {t: hold.to_json() for t, hold in tables.items()} for s, tables in held.items()}


def held_from_json(kept: object) -> Held:
    """Restore what `held_to_json` gave; nothing where there were no holds yet."""
    if not isinstance(kept, dict):
        return {}
    return {
        str(source): {str(table): Hold.from_json(hold) for table, hold in tables.items()}
        for source, tables in kept.items()
    }
