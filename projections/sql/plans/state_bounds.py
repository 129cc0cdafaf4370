"""How much the operators of a plan keep between runs: in symbols, and in numbers where measured.

What was given out may have to be put right at any time: by a late row, by a version that changed.
So an operator keeps the rows of its inputs for as long as the log has them. That is bounded where
they are those of a table or of another projection, one for each key, and grows with every row of a
stream and every version otherwise. Rows that wait for the watermark are kept for a length of event
time alone. Queries of one step keep nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlglot import exp

from projections.sql.operators.patterns import MatchSkip
from projections.sql.operators.presence import right_rows
from projections.sql.operators.shape import InputKind, Plan, Strategy
from projections.sql.operators.tree import (
    Exploded,
    Final,
    Grouped,
    Join,
    JoinKind,
    Match,
    Newest,
    Node,
    Over,
    Scan,
    Sessions,
    UnionAll,
    Windowed,
    expressions_of,
    inputs_of,
)
from projections.sql.operators.uniqueness import meets_one_at_most
from projections.sql.plans.adding import known_of_facts
from projections.sql.plans.changing_groups import changing_of
from projections.sql.words.catalog import Column
from projections.sql.words.durations import duration_of, in_us, in_words_us

REMEDY = (
    "it grows for as long as the projection is kept, on disk beyond pipeline.state_memory_bytes: "
    "read fewer columns, leave rows out by WHERE before this operator, or read a projection of one "
    "step, which keeps no state and has one row of each key, in place of the stream"
)
_GROWING = (InputKind.STREAM, InputKind.HISTORY)
_BESIDE_BYTES = 32
"""Beside its own columns a row has those of its order, and how often it is there."""
_TEXT_BYTES, _WITHIN = 16, 12
"""DuckDB's text: so much, and its bytes behind it where it is longer than that."""
_NESTED_BYTES = 64
_WIDTHS = {
    **dict.fromkeys(("BOOLEAN", "TINYINT"), 1),
    "SMALLINT": 2,
    **dict.fromkeys(("INT", "FLOAT", "DATE"), 4),
}
_CALLED: Mapping[type, str] = {
    Grouped: "groups",
    Sessions: "sessions",
    Over: "functions over rows",
    Match: "matches of a pattern",
    Newest: "newest row of each key",
}
_DAY_S = 86_400

Measures = Mapping[tuple[InputKind, str], "InputMeasure"]
Lateness = Callable[[str], timedelta]
"""How late rows of a stream may be, by the name by which a plan reads it."""
NOT_MEASURED: Measures = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputMeasure:
    """What was measured of an input: its rows, and how many a second of their event time has.

    `per_second` is None where their times do not tell. `text_bytes`: those of a text, on average.
    """

    rows: int
    per_second: float | None = None
    text_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptInput:
    """Rows of one input among those that an operator keeps.

    Each is there `times` times at most, and as often for each of `factors`, which nothing bounds.
    """

    kind: InputKind
    name: str
    times: int = 1
    factors: tuple[str, ...] = ()

    def symbols(self, what: str) -> str:
        """Return how many there are, where a row of the input counts as `what`."""
        times = [str(self.times)] if self.times > 1 else []
        return " * ".join([*times, f"{what}({self.name})", *self.factors])


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBound:
    """What one operator keeps of its rows: `rows` of `inputs`, under `columns`.

    `reach_us`: how far their end may be behind their time, where they are kept until the watermark
    has passed it; None where they are kept as long as the log has them.
    """

    operator: str
    rows: str
    inputs: tuple[KeptInput, ...]
    columns: tuple[Column, ...]
    reach_us: int | None = None

    @property
    def bounded(self) -> bool:
        """Say whether it stops growing while inputs do not."""
        growing = any(each.kind in _GROWING for each in self.inputs)
        return self.reach_us is not None or not growing

    def span_us(self, lateness: Lateness, name: str) -> int:
        """Return how much event time of a stream is kept."""
        return (self.reach_us or 0) + in_us(lateness(name))

    def formula(self, lateness: Lateness) -> str:
        """Return how many rows are kept at most, in symbols."""
        if self.reach_us is None:
            return " + ".join(each.symbols("rows") for each in self.inputs)
        return " + ".join(
            f"{each.symbols('rate')} * {in_words_us(self.span_us(lateness, each.name))}"
            for each in self.inputs
        )

    def row_bytes(self, measures: Measures) -> int:
        """Return about how much one row takes."""
        known = [measures.get((each.kind, each.name)) for each in self.inputs]
        text = max((each.text_bytes for each in known if each is not None), default=0.0)
        return _BESIDE_BYTES + sum(_width(each.type, text) for each in self.columns)

    def kept(self, lateness: Lateness, measures: Measures) -> float | None:
        """Return about how many rows are kept at most; None where an input was not measured."""
        return _sum(self._kept_of(each, lateness, measures) for each in self.inputs)

    def daily(self, measures: Measures) -> float | None:
        """Return how many rows a day of event time adds; None where that was not measured."""
        growing = [each for each in self.inputs if each.kind in _GROWING]
        rates = (_rate(each, measures) for each in growing)
        return _sum(None if rate is None else rate * _DAY_S for rate in rates)

    def rate(self, measures: Measures) -> float | None:
        """Return how many rows come in a second of event time; None where it was not measured."""
        daily = self.daily(measures)
        return None if daily is None else daily / _DAY_S

    def _kept_of(self, part: KeptInput, lateness: Lateness, measures: Measures) -> float | None:
        found = measures.get((part.kind, part.name))
        if self.reach_us is None:
            return None if found is None else float(found.rows * part.times)
        rate = _rate(part, measures)
        return None if rate is None else rate * self.span_us(lateness, part.name) / 1e6


def by_default(_: str) -> timedelta:
    """Return how late rows may be where nobody says it: as `pipeline.lateness_seconds` has it."""
    return timedelta(minutes=10)


def state_bounds(plan: Plan) -> tuple[StateBound, ...]:
    """Return what the operators of a plan keep, in the order in which `explain` prints these."""
    return tuple(_bounds(plan.tree)) if plan.strategy is Strategy.REGIONS else ()


def state_documents(
    bounds: Sequence[StateBound], lateness: Lateness, measures: Measures
) -> list[dict[str, object]]:
    """Return bounds as JSON-shaped documents; numbers are null where nothing was measured."""
    return [_document(each, lateness, measures) for each in bounds]


def state_lines(bounds: Sequence[StateBound], lateness: Lateness, measures: Measures) -> list[str]:
    """Return bounds as text for people."""
    lines: list[str] = []
    for each in bounds:
        kept = f"{each.operator} keeps {each.rows}: {each.formula(lateness)}"
        lines.append(kept if each.reach_us is not None else f"{kept}, while the log has them")
        lines.append(f"  {_numbers(each, lateness, measures)}")
        if not each.bounded:
            lines.append(f"  unbounded: {REMEDY}")
    return lines


def _document(bound: StateBound, lateness: Lateness, measures: Measures) -> dict[str, object]:
    size, kept, daily = bound.row_bytes(measures), bound.kept(lateness, measures), None
    if not bound.bounded:
        daily = bound.daily(measures)
    spans = [bound.span_us(lateness, each.name) for each in bound.inputs]
    return {
        "operator": bound.operator,
        "keeps": bound.rows,
        "inputs": [
            {
                "kind": each.kind.value,
                "name": each.name,
                "times": each.times,
                "factors": [*each.factors],
            }
            for each in bound.inputs
        ],
        "bounded": bound.bounded,
        "seconds": None if bound.reach_us is None else max(spans) / 1e6,
        "formula": bound.formula(lateness),
        "row_bytes": size,
        "rows_per_second": bound.rate(measures),
        "rows": None if kept is None else round(kept),
        "bytes": None if kept is None else round(kept * size),
        "rows_per_day": None if daily is None else round(daily),
        "bytes_per_day": None if daily is None else round(daily * size),
        "remedy": None if bound.bounded else REMEDY,
    }


def _numbers(bound: StateBound, lateness: Lateness, measures: Measures) -> str:
    """Say in one line how much that is, as far as it was measured."""
    size, kept, rate = bound.row_bytes(measures), bound.kept(lateness, measures), None
    if bound.reach_us is not None or not bound.bounded:
        rate = bound.rate(measures)
    each = f"{size} bytes each"
    more = "" if rate is None else f"at the measured {_short(rate)} rows/s "
    if kept is None:
        return f"not measured; about {each}"
    much = f"about {round(kept):,} rows, {in_bytes(kept * size)}"
    if bound.reach_us is not None:
        return f"{more}{much}; {each}"
    if rate is None:
        return f"now {much}; {each}"
    daily = rate * _DAY_S
    return (
        f"now {much}; {each}; {more}{round(daily):,} rows, {in_bytes(daily * size)} more for each "
        "day of event time"
    )


def in_bytes(size: float) -> str:
    """Return a size as people say it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{_short(size)} {unit}"
        size /= 1000
    return f"{_short(size)} TB"


def _short(number: float) -> str:
    """Return a number with three digits that count."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _sum(parts: Iterator[float | None]) -> float | None:
    total = 0.0
    for each in parts:
        if each is None:
            return None
        total += each
    return total


def _rate(part: KeptInput, measures: Measures) -> float | None:
    found = measures.get((part.kind, part.name))
    if found is None or found.per_second is None:
        return None
    return found.per_second * part.times


def _bounds(node: Node) -> Iterator[StateBound]:
    yield from _own(node)
    for each in (node.left, right_rows(node)) if isinstance(node, Join) else inputs_of(node):
        yield from _bounds(each)


def _own(node: Node) -> Iterator[StateBound]:
    """Yield what a node itself keeps."""
    match node:
        case Join():
            for rows, side in (("left rows", node.left), ("right rows", right_rows(node))):
                yield StateBound(
                    operator=f"{node.kind.value.lower()} join",
                    rows=rows,
                    inputs=_inputs(side),
                    columns=side.columns,
                )
        case Final():
            yield StateBound(
                operator="final rows",
                rows="rows that wait for the watermark",
                inputs=_inputs(node.input),
                columns=node.input.columns,
                reach_us=_reach(node.input),
            )
        case Newest() if node.unique:
            return
        case Grouped() if (known := _known(node)) is not None:
            for rows, columns in known:
                yield StateBound(
                    operator=_CALLED[Grouped], rows=rows, inputs=_inputs(node), columns=columns
                )
        case Grouped() | Sessions() | Over() | Match() | Newest():
            for rows, kept in (("its input", node.input), ("what it gave out", node)):
                yield StateBound(
                    operator=_CALLED[type(node)],
                    rows=rows,
                    inputs=_inputs(kept),
                    columns=kept.columns,
                )


def _known(node: Grouped) -> Iterable[tuple[str, tuple[Column, ...]]] | None:
    """Return what is kept of groups that are not computed from all rows of theirs."""
    by = tuple(each for each in node.columns if each.name in node.keys)
    known, changing = known_of_facts(node), changing_of(node)
    if known is not None:
        facts = {each.name: each for each in known.of_facts.input.columns}
        apart = [(*by, facts[each]) for each in known.told_apart]
        columns, values = known.groups.columns, ("the values that it counts each once", apart)
    elif changing is not None:
        made = [(*by, each.argument) for each in changing.asked]
        columns, values = changing.groups.columns, ("the values that results are made of", made)
    else:
        return None
    return [("what it gave out", columns), *((values[0], each) for each in values[1])]


def _inputs(node: Node) -> tuple[KeptInput, ...]:
    """Return the inputs that a node's rows are of: each row of theirs gives one, at most."""
    match node:
        case Scan():
            return (KeptInput(kind=node.kind, name=node.name),)
        case UnionAll():
            return tuple(part for each in node.inputs for part in _inputs(each))
        case Windowed():
            windows = -(-node.size_us // node.step_us)
            below = _inputs(node.input)
            return tuple(replace(part, times=part.times * windows) for part in below)
        case Exploded():
            return _with("elements in a row", _inputs(node.input))
        case Match() if node.each_row and node.skip is not MatchSkip.PAST_LAST_ROW:
            return _with("matches of a row", _inputs(node.input))
        case Join():
            alone = node.kind in (JoinKind.SEMI, JoinKind.ANTI)
            left = _inputs(node.left)
            return left if alone or meets_one_at_most(node) else _with("pairs of a row", left)
        case _:
            return _inputs(node.input)


def _with(factor: str, parts: tuple[KeptInput, ...]) -> tuple[KeptInput, ...]:
    return tuple(replace(part, factors=(*part.factors, factor)) for part in parts)


def _reach(node: Node) -> int:
    """Return how far behind its facts a row may end (`finality`), in microseconds."""
    below = max((_reach(each) for each in inputs_of(node)), default=0)
    match node:
        case Windowed():
            return below + node.size_us
        case Sessions():
            return below + node.gap_us
        case Match():
            return below + (node.within_us or 0)
        case Join():
            lengths = (duration_of(part) for part in _intervals(node))
            return below + max((in_us(each) for each in lengths if each is not None), default=0)
        case _:
            return below


def _intervals(node: Join) -> Iterator[exp.Expr]:
    for each in expressions_of(node):
        yield from each.find_all(exp.Interval)


def _width(kind: str, text_bytes: float) -> int:
    """Return about how many bytes a value of a type takes."""
    if kind in ("STRING", "BINARY", ""):
        return _TEXT_BYTES + (round(text_bytes) if text_bytes > _WITHIN else 0)
    if "<" in kind:
        return _NESTED_BYTES
    if kind.startswith("DECIMAL("):
        return 8 if int(kind[len("DECIMAL(") :].partition(",")[0]) <= 18 else 16
    return _WIDTHS.get(kind, 8)
