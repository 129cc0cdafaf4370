"""Flows over the SQL tests' world, each with a walk over each key's changes in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.support.oracles.region_projections import Case
from tests.support.oracles.sql_world import Fact, Row, World

_HEAD = "FROM STREAM(events.flight.departed) KEYS (flight) "
_DELETE = "APPLY AS DELETE WHEN distance = 0 "
_TRUNCATE = "APPLY AS TRUNCATE WHEN distance > 1000 "
_TAIL = "SEQUENCE BY delay COLUMNS (flight, carrier, origin) "


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """What a flow says, for the walk: `partial` columns keep a value where a change has none."""

    partial: tuple[str, ...] = ()
    tracked: tuple[str, ...] = ("carrier", "origin")
    deletes: bool = True
    truncates: bool = False
    keeps: Callable[[Fact], bool] = lambda fact: True
    by_time: bool = False

    def changes(self, world: World) -> dict[str, list[tuple[object, Fact]]]:
        """Return what can be used, by key: in order, a delete behind what has its place."""
        said = [f for f in world.facts if f.delay is not None and self.keeps(f)]
        cleared = [f.delay for f in said if self.truncates and f.distance > 1000 and f.delay]
        cleared += [0 for f in said if self.truncates and f.distance > 1000 and f.delay == 0]
        last = max(cleared, default=-1)
        if self.truncates:
            said = [f for f in said if f.distance <= 1000 and (f.delay or 0) > last]
        found: dict[str, list[tuple[object, Fact]]] = {}
        for fact in sorted(said, key=self._order):
            place = (fact.delay, fact.time) if self.by_time else fact.delay
            found.setdefault(fact.flight, []).append((place, fact))
        return found

    def gone(self, fact: Fact) -> bool:
        return self.deletes and fact.distance == 0

    def _order(self, fact: Fact) -> tuple[object, ...]:
        first = (fact.delay, fact.time) if self.by_time else (fact.delay,)
        return (*first, self.gone(fact), fact.time, fact.position)

    def held(self, changes: Iterable[tuple[object, Fact]]) -> list[tuple[object, Row | None]]:
        """Return the row behind each place of a key, None where it is deleted."""
        row: Row | None = None
        found: dict[object, Row | None] = {}
        for place, fact in changes:
            if self.gone(fact):
                row = None
            else:
                new: Row = {"carrier": fact.carrier, "origin": fact.origin}
                kept = {n: (row or {}).get(n) for n in self.partial if new[n] is None}
                row = new | kept
            found[place] = row
        return list(found.items())


def _latest(walk: _Walk) -> Callable[[World], list[Row]]:
    def rows(world: World) -> list[Row]:
        ends = {key: walk.held(each)[-1][1] for key, each in walk.changes(world).items()}
        return [{"flight": key, **row} for key, row in ends.items() if row is not None]

    return rows


def _versions(walk: _Walk) -> Callable[[World], list[Row]]:
    def rows(world: World) -> list[Row]:
        found: list[Row] = []
        for key, changes in walk.changes(world).items():
            found += _of_key(walk, key, walk.held(changes))
        return found

    return rows


def _of_key(walk: _Walk, key: str, held: Sequence[tuple[object, Row | None]]) -> list[Row]:
    versions: list[Row] = []
    is_open = False
    for place, row in held:
        if is_open and row and all(versions[-1][n] == row[n] for n in walk.tracked):
            versions[-1].update(row)
            continue
        if is_open:
            versions[-1]["end_at"] = place
        is_open = row is not None
        if row is not None:
            versions.append({"flight": key, **row, "start_at": place, "end_at": None})
    return versions


FLOWS: dict[str, Case] = {
    "flow": Case(
        f"CREATE FLOW one AS AUTO CDC INTO flown {_HEAD}{_DELETE}{_TAIL};", _latest(_Walk())
    ),
    "flow, partial": Case(
        f"CREATE FLOW one AS APPLY CHANGES INTO flown {_HEAD}IGNORE NULL UPDATES "
        f"{_DELETE}{_TRUNCATE}{_TAIL};",
        _latest(_Walk(partial=("carrier", "origin"), truncates=True)),
    ),
    "flow, of some": Case(
        f"APPLY CHANGES INTO flown {_HEAD}WHERE origin = 'JFK' OR carrier IS NULL "
        "SEQUENCE BY STRUCT(delay, occurred_at) STORED AS SCD TYPE 1 "
        "COLUMNS (flight, carrier, origin) WITH (freshness = '2 seconds');",
        _latest(
            _Walk(
                deletes=False,
                keeps=lambda fact: fact.origin == "JFK" or fact.carrier is None,
                by_time=True,
            )
        ),
    ),
    "flow, versions": Case(
        f"CREATE FLOW one AS AUTO CDC INTO flown {_HEAD}{_DELETE}{_TAIL}STORED AS SCD TYPE 2;",
        _versions(_Walk()),
    ),
    "flow, partial versions of one": Case(
        f"CREATE FLOW one AS AUTO CDC INTO flown {_HEAD}IGNORE NULL UPDATES ON (carrier) {_DELETE}"
        f"{_TAIL}STORED AS SCD TYPE 2 TRACK HISTORY ON * EXCEPT (flight, carrier);",
        _versions(_Walk(partial=("carrier",), tracked=("origin",))),
    ),
    "flow, versions of lives": Case(
        f"CREATE FLOW one AS AUTO CDC INTO flown {_HEAD}{_DELETE}{_TAIL}STORED AS SCD TYPE 2 "
        "TRACK HISTORY ON * EXCEPT (carrier, origin);",
        _versions(_Walk(tracked=())),
    ),
    "flow, of a view": Case(
        "CREATE VIEW seen AS SELECT flight, carrier, origin, delay, distance > 0 AS kept "
        "FROM STREAM events.flight.departed; "
        "CREATE FLOW one AS AUTO CDC INTO flown FROM STREAM seen KEYS (flight) "
        f"APPLY AS DELETE WHEN kept IS DISTINCT FROM TRUE {_TAIL};",
        _latest(_Walk()),
    ),
}
