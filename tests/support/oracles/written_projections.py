"""Rows that a query writes out, lists in an order, rows passed over: each in plain Python too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal

from tests.support.oracles.region_projections import FROM, Case
from tests.support.oracles.sql_world import Fact, Row, World

STREAM = "STREAM events.flight.departed e"
SPANS = [(0, 1, "low"), (1, 9, "high"), (0, 9, "any")]
_SPANS = "(VALUES (0, 1, 'low'), (1, 9, 'high'), (0, 9, 'any')) v(lo, hi, name)"
_GREATEST = 2**63 - 1
_BY_TIME = "(PARTITION BY flight ORDER BY occurred_at)"


def _case(name: str, key: str, query: str, oracle: Callable[[World], list[Row]]) -> Case:
    return Case(f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query}", oracle)


def _within(delay: int | None, low: int, high: int) -> bool:
    return delay is not None and low <= delay < high


def _spans(world: World) -> list[Row]:
    rows: list[Row] = []
    for f in world.facts:
        met = [name for low, high, name in SPANS if _within(f.delay, low, high)]
        rows += [{"position": f.position, "name": name} for name in met or ["none"]]
    return rows


def _less(world: World) -> list[Row]:
    return [
        {"position": f.position, "n": n}
        for f in world.facts
        for n in (0, 1, 2)
        if f.delay is not None and f.delay > n
    ]


def _some(world: World, *, met: bool) -> list[Row]:
    return [
        {"position": f.position}
        for f in world.facts
        if any(_within(f.delay, low, high) for low, high, _ in SPANS) == met
    ]


def _named(world: World) -> list[Row]:
    names = {"JFK": "Kennedy", "LGA": None}
    return [{"position": f.position, "name": names[f.origin]} for f in world.facts]


def _beside(world: World) -> list[Row]:
    return [
        {"position": f.position, "what": what, "n": n}
        for f in world.facts
        for what, n in (("delay", f.delay), ("third", f.position % 3))
    ]


def _flights(world: World) -> Iterable[tuple[str, list[Fact]]]:
    for flight in {f.flight for f in world.facts}:
        yield flight, sorted(_of(world, flight), key=lambda f: (f.time, f.position))


def _of(world: World, flight: str) -> list[Fact]:
    return [f for f in world.facts if f.flight == flight]


def _text(values: Iterable[str | None]) -> str | None:
    known = [each for each in values if each is not None]
    return ",".join(known) if known else None


def _lists(world: World) -> list[Row]:
    rows: list[Row] = []
    for flight, facts in _flights(world):
        falling = sorted(facts, key=lambda f: (f.delay is None, -(f.delay or 0)))
        rising = sorted(facts, key=lambda f: (f.delay is not None, f.delay or 0))
        by_two = sorted(facts, key=lambda f: (f.delay is None, f.delay or 0))
        by_two = sorted(by_two, key=lambda f: f.origin, reverse=True)
        carriers = sorted({f.carrier for f in facts if f.carrier is not None}, reverse=True)
        rows.append(
            {
                "flight": flight,
                "falling": _text(f.carrier for f in falling),
                "rising": _text(f.carrier for f in rising),
                "by_two": _text(f.carrier for f in by_two),
                "far": _text(f.origin for f in falling if f.distance > 0),
                "own": _text(carriers),
            }
        )
    return rows


def _totals(world: World) -> list[Row]:
    rows: list[Row] = []
    for flight, facts in _flights(world):
        known = [_GREATEST if f.delay == 3 else f.delay for f in facts if f.delay is not None]
        total = sum(known) if known and sum(known) <= _GREATEST else None
        delays = [f.delay for f in facts if f.delay is not None]
        rows.append(
            {
                "flight": flight,
                "total": total,
                "small": sum(delays) if delays else None,
                "mean": sum(delays) / len(delays) if delays else None,
            }
        )
    return rows


def _at(values: list[str | None], place: int) -> str | None:
    return values[place] if -len(values) <= place < len(values) else None


def _neighbours(world: World) -> list[Row]:
    rows: list[Row] = []
    for _, facts in _flights(world):
        for place, f in enumerate(facts):
            before = [g.carrier for g in facts[:place] if g.carrier is not None]
            behind = [g.carrier for g in facts[place + 1 :] if g.carrier is not None]
            rows.append(
                {
                    "position": f.position,
                    "last": _at(before, -1),
                    "last_but_one": _at(before, -2) or "none",
                    "next": _at(behind, 0),
                }
            )
    return rows


def _so_far(world: World) -> list[Row]:
    rows: list[Row] = []
    for _, facts in _flights(world):
        for f in facts:
            seen = [g for g in facts if g.time <= f.time]
            known = [g.carrier for g in seen if g.carrier is not None]
            rows.append(
                {
                    "position": f.position,
                    "newest": seen[-1].carrier,
                    "known": _at(known, -1),
                    "oldest": _at(known, 0),
                    "second": _at([g.carrier for g in seen], 1),
                    "second_known": _at(known, 1),
                }
            )
    return rows


def _any(held: Iterable[bool | None]) -> bool | None:
    found = [*held]
    return True if True in found else None if None in found else False


def _all(held: Iterable[bool | None]) -> bool | None:
    found = [*held]
    return False if False in found else None if None in found else True


def _compared(
    world: World, of: Callable[[Fact], list[int | None]], *, alike: bool = False
) -> list[Row]:
    def held(f: Fact, compare: Callable[[int, int], bool]) -> list[bool | None]:
        return [
            None if f.delay is None or other is None else compare(f.delay, other) for other in of(f)
        ]

    rows: list[Row] = []
    for f in world.facts:
        row: Row = {
            "position": f.position,
            "some": _any(held(f, lambda a, b: a > b)),
            "each": _all(held(f, lambda a, b: a <= b)),
        }
        if alike:
            row["other"] = _any(held(f, lambda a, b: a != b))
            row["same"] = _all(held(f, lambda a, b: a == b))
        rows.append(row)
    return rows


def _of_lga(world: World) -> list[Row]:
    values = [g.delay for g in world.facts if g.origin == "LGA"]
    return _compared(world, lambda _: values, alike=True)


def _of_own(world: World) -> list[Row]:
    return _compared(world, lambda f: [g.delay for g in _of(world, f.flight)])


def _among(world: World) -> list[Row]:
    of_lga = [g.delay for g in world.facts if g.origin == "LGA"]
    late = [g.delay for g in world.facts if g.delay is not None and g.delay > 0]

    def among(value: int | None, given: list[int | None]) -> bool:
        return value is not None and value in given

    def none(value: int | None, given: list[int | None]) -> bool:
        return not given or not (value is None or None in given or value in given)

    rows: list[Row] = []
    for f in world.facts:
        own = [g.delay for g in _of(world, f.flight)]
        more = None if f.delay is None else f.delay + 1
        rows.append(
            {
                "position": f.position,
                "some": among(f.delay, of_lga),
                "each": none(f.delay, of_lga),
                "late": among(f.delay, [*late]),
                "unknown": False,
                "own": among(more, own),
                "none_own": none(more, own),
                "neither": f.origin != "JFK" and none(f.delay, of_lga),
                "pair": any(
                    (f.delay, f.origin) == (g.delay, g.origin) and f.delay is not None
                    for g in world.facts
                    if g.distance == 1
                ),
                "both": f.origin == "JFK" or among(f.delay, of_lga),
            }
        )
    return rows


def _firsts(world: World) -> list[Row]:
    rows: list[Row] = []
    for f in world.facts:
        newest = max(world.facts, key=lambda f: f.position)
        late = [g for g in _of(world, f.flight) if g.delay is not None and g.delay > 0]
        late.sort(key=lambda g: (-(g.delay or 0), g.origin, g.time, g.position))
        worst = late[0].carrier if late else None
        given = {"newest": newest.carrier, "last": newest.position}
        rows.append({"position": f.position, "worst": worst, **given})
    return rows


def _numbers(world: World) -> list[Row]:
    first = [
        {"k": f.position, "n": f.delay, "d": None if f.delay is None else Decimal(f"{f.delay}.00")}
        for f in world.facts
    ]
    return [
        *first,
        *({"k": -1 - f.position, "n": f.position, "d": Decimal("3.00")} for f in world.facts),
    ]


def _of_partitions(world: World) -> list[Row]:
    rows: list[Row] = []
    for _, facts in _flights(world):
        by = [(f.delay, place, f) for place, f in enumerate(facts) if f.delay is not None]
        of_jfk = [each for each in by if each[2].origin == "JFK"]
        for place, f in enumerate(facts):
            near = {g.delay for g in facts[max(place - 1, 0) : place + 1]} - {None}
            rows.append(
                {
                    "position": f.position,
                    "carriers": len({g.carrier for g in facts} - {None}),
                    "near": len(near),
                    "worst": max(by)[2].carrier if by else None,
                    "least": min(of_jfk)[2].carrier if of_jfk else None,
                    "newest": facts[-1].carrier,
                    "origins": ",".join(sorted({g.origin for g in facts})),
                }
            )
    return rows


def _across_all(world: World) -> list[Row]:
    rows: list[Row] = []
    for flight, facts in _flights(world):
        row: Row = {"flight": flight}
        for origin, name in (("JFK", "JFK"), ("LGA", "other")):
            found = [f for f in facts if f.origin == origin]
            known = [f.delay for f in found if f.delay is not None]
            row |= {f"{name}_late": sum(known) if known else None, f"{name}_n": len(found) or None}
        rows.append(row)
    return rows


def _shares(world: World) -> list[Row]:
    counts = {flight: len(facts) for flight, facts in _flights(world)}
    total, most = sum(counts.values()), max(counts.values(), default=0)
    return [
        {"flight": flight, "share": n / total, "nearly": most - 1}
        for flight, n in counts.items()
        if n >= most - 1
    ]


_LGA = f"(SELECT delay {FROM} WHERE origin = 'LGA')"
_OWN = f"(SELECT g.delay {FROM} g WHERE g.flight = e.flight)"
_LISTED = (
    "SELECT flight, STRING_AGG(carrier, ',' ORDER BY delay DESC) AS falling, "
    "LISTAGG(carrier, ',') WITHIN GROUP (ORDER BY delay) AS rising, "
    "STRING_AGG(carrier, ',' ORDER BY origin DESC, delay NULLS LAST) AS by_two, "
    "STRING_AGG(origin, ',' ORDER BY delay DESC) FILTER (WHERE distance > 0) AS far, "
    f"STRING_AGG(DISTINCT carrier, ',' ORDER BY carrier DESC) AS own {FROM} GROUP BY flight"
)

WRITTEN = {
    "values, several met": _case(
        "spans",
        "position, name",
        f"SELECT e.position, coalesce(v.name, 'none') AS name FROM {STREAM} "
        f"LEFT JOIN {_SPANS} ON e.delay >= v.lo AND e.delay < v.hi",
        _spans,
    ),
    "values in front": _case(
        "less",
        "position, n",
        f"SELECT e.position, v.n FROM (VALUES (0), (1), (2)) v(n), {STREAM} WHERE e.delay > v.n",
        _less,
    ),
    "values, some met": _case(
        "within",
        "position",
        f"SELECT e.position FROM {STREAM} LEFT SEMI JOIN {_SPANS} "
        "ON e.delay >= v.lo AND e.delay < v.hi",
        lambda w: _some(w, met=True),
    ),
    "values, none met": _case(
        "beyond",
        "position",
        f"SELECT e.position FROM {STREAM} LEFT ANTI JOIN {_SPANS} "
        "ON e.delay >= v.lo AND e.delay < v.hi",
        lambda w: _some(w, met=False),
    ),
    "values of WITH": _case(
        "with_values",
        "position",
        "WITH v(code, name) AS (VALUES ('JFK', 'Kennedy'), ('LGA', NULL)) "
        f"SELECT e.position, v.name FROM {STREAM} JOIN v ON v.code = e.origin",
        _named,
    ),
    "values of SELECTs": _case(
        "selected_values",
        "position",
        "WITH v AS (SELECT 'JFK' AS code, 'Kennedy' AS name UNION ALL SELECT 'LGA', NULL) "
        f"SELECT e.position, w.name FROM v w JOIN {STREAM} ON w.code = e.origin",
        _named,
    ),
    "values of SELECTs by name": _case(
        "named_values",
        "position",
        f"SELECT e.position, v.name FROM {STREAM} JOIN (SELECT 'JFK' AS code, 'Kennedy' AS name "
        "UNION ALL BY NAME SELECT NULL AS name, 'LGA' AS code) v ON v.code = e.origin",
        _named,
    ),
    "values beside a row": _case(
        "beside",
        "position, what",
        f"SELECT e.position, t.what, t.n FROM {STREAM} CROSS JOIN LATERAL "
        "(VALUES ('delay', e.delay), ('third', CAST(e.position % 3 AS INT))) AS t(what, n)",
        _beside,
    ),
    "unpivot behind USING": _case(
        "unpivoted_joined",
        "position, what",
        f"SELECT position, f.what, f.n FROM {STREAM} JOIN "
        f"(SELECT position, delay, CAST(position % 3 AS INT) AS third {FROM}) "
        "UNPIVOT INCLUDE NULLS (n FOR what IN (delay, third)) f USING (position)",
        _beside,
    ),
    "unpivot of a log behind USING": _case(
        "unpivoted_log",
        "position, what",
        f"SELECT position, f.what, CAST(f.n AS INT) AS n FROM {STREAM} JOIN {STREAM[:-2]} "
        "UNPIVOT (n FOR what IN (delay, distance)) f USING (position) WHERE f.what = 'delay'",
        lambda w: [r for r in _beside(w) if r["what"] == "delay" and r["n"] is not None],
    ),
    "stack": _case(
        "stacked",
        "position, what",
        "SELECT position, stack(2, 'delay', delay, 'third', CAST(position % 3 AS INT)) "
        f"AS (what, n) {FROM}",
        _beside,
    ),
    "lists in an order": _case("lists", "flight", _LISTED, _lists),
    "totals or NULL": _case(
        "totals",
        "flight",
        f"SELECT flight, TRY_SUM(CASE WHEN delay = 3 THEN {_GREATEST} ELSE delay END) AS total, "
        f"try_sum(delay) AS small, TRY_AVG(delay) AS mean {FROM} GROUP BY flight",
        _totals,
    ),
    "neighbours that are known": _case(
        "known_neighbours",
        "position",
        f"SELECT position, LAG(carrier) IGNORE NULLS OVER {_BY_TIME} AS last, "
        f"LAG(carrier, 2, 'none') IGNORE NULLS OVER {_BY_TIME} AS last_but_one, "
        f"LEAD(carrier IGNORE NULLS) OVER {_BY_TIME} AS next {FROM}",
        _neighbours,
    ),
    "known so far": _case(
        "so_far",
        "position",
        f"SELECT position, LAST_VALUE(carrier) OVER {_BY_TIME} AS newest, "
        f"LAST_VALUE(carrier) IGNORE NULLS OVER {_BY_TIME} AS known, "
        f"FIRST_VALUE(carrier, true) OVER {_BY_TIME} AS oldest, "
        f"NTH_VALUE(carrier, 2) OVER {_BY_TIME} AS second, "
        f"NTH_VALUE(carrier, 2) IGNORE NULLS OVER {_BY_TIME} AS second_known {FROM}",
        _so_far,
    ),
    "any and all as values": _case(
        "quantified",
        "position",
        f"SELECT position, delay > ANY {_LGA} AS some, delay <= ALL {_LGA} AS each, "
        f"delay <> ANY {_LGA} AS other, delay = ALL {_LGA} AS same {FROM}",
        _of_lga,
    ),
    "any and all of its own": _case(
        "quantified_own",
        "position",
        f"SELECT e.position, e.delay > ANY {_OWN} AS some, CASE WHEN e.delay <= ALL {_OWN} "
        f"THEN true WHEN NOT e.delay <= ALL {_OWN} THEN false END AS each FROM {STREAM}",
        _of_own,
    ),
    "in rows as a value": _case(
        "among",
        "position",
        f"SELECT e.position, e.delay IN {_LGA} AS some, NOT e.delay IN {_LGA} AS each, "
        f"e.delay = ANY (SELECT delay {FROM} WHERE delay > 0) AS late, "
        f"(delay IN {_LGA}) IS NULL AS unknown, e.delay + 1 IN {_OWN} AS own, "
        f"delay + 1 NOT IN {_OWN} AS none_own, NOT (origin = 'JFK' OR delay IN {_LGA}) AS neither, "
        f"(delay, origin) IN (SELECT delay, origin {FROM} WHERE distance = 1) AS pair, "
        f"NOT (origin <> 'JFK' AND NOT delay IN {_LGA}) AS both FROM {STREAM}",
        _among,
    ),
    "the first of other rows": _case(
        "firsts",
        "position",
        f"SELECT e.position, (SELECT g.carrier {FROM} g WHERE g.flight = e.flight AND g.delay > 0 "
        "ORDER BY g.delay DESC, g.origin LIMIT 1) AS worst, "
        f"(SELECT carrier {FROM} ORDER BY position DESC LIMIT 1) AS newest, "
        f"(SELECT position {FROM} ORDER BY 1 DESC LIMIT 1) AS last FROM {STREAM}",
        _firsts,
    ),
    "union of numbers": _case(
        "numbers",
        "k",
        f"SELECT position AS k, delay AS n, CAST(delay AS DECIMAL(5, 2)) AS d {FROM} UNION ALL "
        f"SELECT -1L - position, position, 3 {FROM}",
        _numbers,
    ),
    "of whole partitions": _case(
        "of_partitions",
        "position",
        "SELECT position, COUNT(DISTINCT carrier) OVER (PARTITION BY flight) AS carriers, "
        "COUNT(DISTINCT delay) OVER (PARTITION BY flight ORDER BY occurred_at ROWS BETWEEN 1 "
        "PRECEDING AND CURRENT ROW) AS near, MAX_BY(carrier, delay) OVER (PARTITION BY flight) AS "
        "worst, MIN_BY(carrier, delay) FILTER (WHERE origin = 'JFK') OVER w AS least, "
        "ANY_VALUE(carrier) OVER w AS newest, STRING_AGG(DISTINCT origin, ',') OVER w AS origins "
        f"{FROM} WINDOW w AS (PARTITION BY flight)",
        _of_partitions,
    ),
    "all columns of a pivot": _case(
        "across_all",
        "flight",
        f"SELECT * FROM (SELECT flight, origin, delay {FROM}) "
        "PIVOT (SUM(delay) AS late, COUNT(*) AS n FOR origin IN ('JFK', 'LGA' AS other)) p",
        _across_all,
    ),
    "totals of WITH": _case(
        "above_mean",
        "flight",
        f"WITH a AS (SELECT flight, COUNT(*) AS n {FROM} GROUP BY flight), "
        "b AS (SELECT SUM(n) AS total, MAX(n) AS most FROM a) "
        "SELECT a.flight, a.n / b.total AS share, (SELECT most - 1 FROM b) AS nearly "
        "FROM b, a WHERE a.n >= b.most - 1",
        _shares,
    ),
    "any and all of values": _case(
        "quantified_values",
        "position",
        "SELECT position, delay > ANY (ARRAY(0, CAST(NULL AS INT), 2)) AS some, "
        f"delay <= ALL (0, CAST(NULL AS INT), 2) AS each {FROM}",
        lambda w: _compared(w, lambda _: [0, None, 2]),
    ),
    "any and all of none": _case(
        "quantified_none",
        "position",
        "SELECT position, delay = ANY (ARRAY()) AS some, delay <> ALL (ARRAY()) AS each "
        f"{FROM} WHERE delay > ALL (ARRAY())",
        lambda w: _compared(w, lambda _: []),
    ),
}
