"""Which projections are built, by which query and from where, as options and files of plans say.

What is malformed is refused before anything loads that builds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel.clock import moment_of
from kernel.errors import InvalidRequest
from kernel.positions import position_of
from projections.trial.sql_files import sql_of
from schemas.text_files import text_of

if TYPE_CHECKING:
    from replay.book import ReplayBook
    from replay.planning import ReplayPlan
    from replay.starts import Start
    from replay.subject import Site

_NEEDED = {"text", "include_late", "basis"}
_KINDS = {"savepoint": str, "epoch": int, "position": int, "where": str}
_WHERE = "--from 120000, --from epoch:12, --from savepoint:NAME, --from 2026-11-01T00:00:00Z"


def read_plan(path: Path | None, name: str, *, given: bool) -> dict[str, Any]:
    """Read a plan of a projection; empty without a file.

    `given`: whether the query or its late rows were given beside the plan. Raises
    `InvalidRequest` then, for one of both would be ignored, and for a file that is no plan.
    """
    if path is None:
        return {}
    if given:
        raise InvalidRequest(
            "a plan names the query, where it begins, which keys and whether late rows are in it, "
            "for this lake: give nothing beside it",
            remedy="Leave out --sql, --include-late, --from-savepoint, --from, --where and --lake, "
            "or --plan.",
        )
    remedy = f"penstock replay plan {name} --json > plan.json"
    try:
        told: Any = json.loads(text_of(path, "a plan"))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is no plan: {error}", remedy=remedy) from error
    plans = told if isinstance(told, list) else [told]  # Those of several projections.
    document = next((p for p in plans if isinstance(p, dict) and p.get("name") == name), None)
    if document is None:
        raise InvalidRequest(f"{path} is no plan for {name}", remedy=remedy)
    if document.get("place"):
        raise InvalidRequest(
            f"{path} is a plan for another lake",
            remedy=f"penstock replay apply {name} --lake PLACE",
        )
    if lacking := sorted(_NEEDED - {*document}):
        raise InvalidRequest(f"{path} is no plan: it lacks {', '.join(lacking)}", remedy=remedy)
    late = document["include_late"]
    if not isinstance(document["text"], str | None) or not isinstance(late, bool):
        raise InvalidRequest(f"{path} is no plan: its query is none", remedy=remedy)
    return document


def start_of(document: Mapping[str, Any]) -> Start:
    """Return from where a plan begins. Raises `InvalidRequest`."""
    from replay.starts import Start

    given = document.get("start") or {}
    try:
        for name, kind in _KINDS.items():
            if given.get(name) is not None and type(given[name]) is not kind:
                raise TypeError(f"its {name} is {given[name]!r}")
        return Start(**{**given, "at": moment_of(given.get("at"))})
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(
            f"the file is no plan: {error}", remedy="penstock replay plan NAME --json > plan.json"
        ) from error


def asked_start(savepoint: str | None, place: str | None, where: str | None = None) -> Start:
    """Return from where a build was asked to begin, or for which keys. Raises `InvalidRequest`."""
    from replay.starts import BEGINNING, Start

    given = {"--from-savepoint": savepoint, "--from": place, "--where": where}
    named = [option for option, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidRequest(
            f"{' and '.join(named)} exclude each other", remedy="Give one of them."
        )
    if place is not None:
        return _start(place)
    return BEGINNING if not named else Start(savepoint=savepoint, where=where)


def _start(place: str) -> Start:
    """Read a place of the log as users write it."""
    from kernel.positions import Epoch
    from replay.starts import Start

    kind, colon, named = place.partition(":")
    if colon and kind == "savepoint" and named:
        return Start(savepoint=named)
    if colon and kind in ("epoch", "position"):
        number = position_of(named, f"--from {kind}:")
        if number is None:
            raise InvalidRequest(f"{named!r} is no {kind}", remedy=f"As {_WHERE}")
        return Start(position=number) if kind == "position" else Start(epoch=Epoch(number))
    number = position_of(place, "--from")
    if number is not None:
        return Start(position=number)
    try:
        return Start(at=moment_of(place))
    except InvalidRequest as error:
        told = f"--from {place} is no place of the log: {error.message}"
        raise InvalidRequest(told, remedy=f"As {_WHERE}") from error


def text_for(sql: Path | None, name: str, *, several: bool = False) -> str | None:
    """Return the query of a file for a projection: what of the file declares it.

    Of `several` projections those that the file does not declare keep their queries. Raises
    `InvalidRequest`.
    """
    if sql is None:
        return None
    from projections.sql.statements.parse import parse_script
    from replay.subject import own_statement

    text = sql_of(sql)
    if several and all(each.name != name for each in parse_script(text).projections):
        return None
    return own_statement(name, text)


def chosen_names(site: Callable[[], Site], names: Sequence[str], *, downstream: bool) -> list[str]:
    """Return the projections that are meant, each behind those that it reads.

    `downstream`: those that read them too, directly or through others. The site is asked for where
    the order of several counts.
    """
    once = [*dict.fromkeys(names)]
    if len(once) == 1 and not downstream:
        return once
    from projections.sql.statements.lineage import in_order, reads_of, with_their_readers

    reads = reads_of(site().deployed.deployment().declared.values())
    chosen = with_their_readers(once, reads) if downstream else {*once}
    # What is not deployed comes first, and is refused by its name or made of the log.
    return [*(n for n in once if n not in reads), *(n for n in in_order(reads) if n in chosen)]


def refuse_stale(agreed: Mapping[str, Any], look: Callable[[], ReplayPlan]) -> None:
    """Refuse a plan that was agreed to and is not so any more."""
    from replay.planning import refuse_changed

    if agreed:
        refuse_changed(agreed, look())


def refuse_plan(book: ReplayBook, agreed: Mapping[str, Any], now: ReplayPlan) -> None:
    """Refuse a build whose plan is stale, or that finds no room."""
    from replay.book import UNFINISHED
    from replay.planning import refuse_changed, refuse_full

    begun = [each for each in book.of(now.name) if each.state in UNFINISHED]
    if agreed:
        refuse_changed(agreed, now, unfinished=begun[0].generation if begun else None)
    if not begun:
        refuse_full(now)  # What is begun has taken its room in part, or all of it.
