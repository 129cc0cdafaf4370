"""What is in the lake as JSON: commands with `--json` and the HTTP service say the same.

Everything that reads the lake is imported when it is asked for: it takes seconds to load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lake.layout import Lake, part_of
from service.standstills import of_pipeline

if TYPE_CHECKING:
    from pipeline.commit.manifest_rows import Committed
    from projections.serve.lake_tables import Commit

Document = dict[str, object]
Account = Callable[[], Mapping[str, Any] | None]
"""Asks the pipeline what it says of itself; None when it does not answer."""


def projection_list(lake: Lake, account: Account) -> list[Document]:
    """Return how each projection stands, and why one stands still: the pipeline says so."""
    from projections.serve.standings import standings

    found = standings(lake)
    state = account() if found else None
    causes = {
        each.name: each.cause for each in of_pipeline(state or {}) if each.component == "projection"
    }
    return [
        asdict(each) | {"behind": each.behind, "stands_still": causes.get(each.name)}
        for each in found
    ]


def projection_status(lake: Lake, name: str, account: Account) -> Document:
    """Return how one projection stands, with the pipeline's last error if that is running.

    Raises `NotFound`.
    """
    from projections.serve.standings import standing

    stands = standing(lake, name)
    from projections.sql.statements.parse import parse_script

    (declared,) = parse_script(stands.text).projections
    freshness = declared.freshness.total_seconds()
    state = account() or {}
    running = state.get("projections", {}).get(stands.name, {})
    return {
        **asdict(stands),
        "key": declared.key,
        "freshness_s": freshness,
        "late_s": round(max(stands.lag_s - freshness, 0.0), 3),
        "state_bytes": running.get("state_bytes"),
        "error": running.get("error"),
        "waits": running.get("trigger") or _beside(running) or running.get("waits"),
        "sink": state.get("sinks", {}).get(stands.name),
    }


def _beside(running: Mapping[str, Any]) -> str | None:
    """Say that a projection is being computed by itself, and for how long."""
    seconds = running.get("beside_s")
    return None if seconds is None else f"is computed beside the others, for {seconds:.0f} s so far"


def table_list(lake: Lake) -> list[Document]:
    """Return every table at its newest version, and why one is held.

    One that is held and has no files yet has nothing but `name` and `held`.
    """
    from projections.serve.lake_tables import list_tables

    found, unreadable = list_tables(lake)
    held = unreadable | _held(lake)
    listed: list[Document] = [{**asdict(t), "held": _hold_over(t.name, held)} for t in found]
    absent = sorted(held.keys() - {t.name for t in found})
    return listed + [{"name": name, "held": held[name]} for name in absent]


def table_shown(lake: Lake, name: str, *, commits: int) -> Document:
    """Return one table with its newest commits. Raises `NotFound` naming the nearest."""
    from projections.serve import lake_tables

    place = lake_tables.table_name([name])
    return {
        **asdict(lake_tables.describe(lake, place)),
        "held": _hold_over(place, _held(lake)),
        "commits": commit_list(lake_tables.commits(lake, place, limit=commits)),
    }


def commit_list(commits: Sequence[Commit]) -> list[Document]:
    """Return a table's commits."""
    return [asdict(each) for each in commits]


def epoch_document(done: Committed) -> Document:
    """Return what of a committed epoch is for others than the pipeline."""
    # Fields of a tuple have names in Python alone.
    topics = {name: topic._asdict() for name, topic in done.topics.items()}
    document = asdict(done) | {"topics": topics}
    del document["progress"]
    return document


def _hold_over(name: str, held: Mapping[str, str]) -> str | None:
    """Return why a table is held: by its own name, else by the nearest name above it."""
    over = [each for each in held if part_of(name, each)]
    return held[max(over, key=len)] if over else None


def _held(lake: Lake) -> dict[str, str]:
    from projections.serve.standings import held_tables

    return {
        name: f"since epoch {hold.from_epoch}: {hold.reason}"
        for name, hold in held_tables(lake).items()
    }
