"""The plan tree: a query as operators, each with the columns of its rows.

Every row has the three columns of `ORDER` beside the columns of its node: event time and the place
in its source's order. A stream's rows are told apart by them, a group has those of its newest row,
a pair of two streams those of its later row. Whoever has to choose among rows chooses by them, so
that the choice follows from the facts.

Expressions stand in `Map` and in the conditions of `Join` alone. All other nodes name columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sqlglot import exp

from projections.sql.operators.formulas import Formula, Pick
from projections.sql.operators.patterns import MatchSkip, Pattern
from projections.sql.operators.shape import InputKind
from projections.sql.operators.windows import WindowKind
from projections.sql.values.row_functions import PARTS_TYPE as PARTS_TYPE
from projections.sql.values.row_functions import Call as Call
from projections.sql.values.row_functions import Function as Function
from projections.sql.values.row_functions import Ordering as Ordering
from projections.sql.values.types import TEMPORAL
from projections.sql.words.catalog import Column, Relation
from projections.sql.words.nested_types import ElementColumn

WINDOW_START, WINDOW_END = "__window_start", "__window_end"
_WINDOW = (Column(name=WINDOW_START, type="TIMESTAMP"), Column(name=WINDOW_END, type="TIMESTAMP"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A column that an expression over the columns of the input gives."""

    name: str
    expression: exp.Expr
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The rows around one. ROWS: `before` and `after` are counts, RANGE: distances.

    None is unbounded. One below 0 is on the other side: an `after` of -2 ends two rows before the
    row. `by_value`: a RANGE that is told by distances from the value of its one ascending order, in
    microseconds of a time; without it RANGE reaches to the rows of equal order.
    """

    rows: bool
    before: int | None
    after: int | None
    by_value: bool = False


class JoinKind(StrEnum):
    """What a join gives for a row of its left side."""

    INNER = "INNER"
    LEFT = "LEFT"
    SEMI = "SEMI"
    ANTI = "ANTI"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scan:
    """Rows of an input: facts of a stream, or versions of a table, without deleted ones."""

    kind: InputKind
    relation: Relation
    view: str
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        """Return the relation's name."""
        return self.relation.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Map:
    """Rows that satisfy every condition, under new columns. Without state."""

    input: Node
    outputs: tuple[Computed, ...]
    where: tuple[exp.Expr, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the computed columns."""
        return tuple(Column(name=o.name, type=o.type) for o in self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windowed:
    """Each row once for each window that its time is in. Without state.

    Windows begin at `offset_us` behind 1970-01-01 UTC, and at each step from there.
    """

    input: Node
    kind: WindowKind
    time: str
    step_us: int
    size_us: int
    offset_us: int = 0

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the input's columns with the window's."""
        return (*self.input.columns, *_WINDOW)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exploded:
    """Each row once for each element of an array, or entry of a map, in `values`. Without state.

    `kept` are the columns of the input that are passed on. `outer`: a row without elements is given
    once, with NULL for them. `place` is the column with an element's place, counted from `first`.
    An entry has the fields `key` and `value`.
    """

    input: Node
    values: str
    entries: bool
    outer: bool
    kept: tuple[str, ...]
    place: str | None
    first: int
    elements: tuple[ElementColumn, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns that are passed on, the element's place and what is made of it."""
        return (*_named(self.input, self.kept), *self.own)

    @property
    def own(self) -> tuple[Column, ...]:
        """Return the columns that the element gives."""
        kind = "BIGINT" if self.first else "INT"
        place = () if self.place is None else (Column(name=self.place, type=kind),)
        return (*place, *(Column(name=each.name, type=each.type) for each in self.elements))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnionAll:
    """The rows of several inputs with equal columns. Without state."""

    inputs: tuple[Node, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns, which all inputs have."""
        return self.inputs[0].columns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouped:
    """One row for each group that has rows.

    `placed`: somebody asks for the place in time of a group's newest row. A group of rows that go
    again does not know it by what came and went.
    """

    input: Node
    keys: tuple[str, ...]
    calls: tuple[Call, ...]
    placed: bool = True

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the keys and the results."""
        return (*_named(self.input, self.keys), *(call.column for call in self.calls))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sessions:
    """One row for each session: rows of a key with less than `gap_us` from one to the next."""

    input: Node
    keys: tuple[str, ...]
    time: str
    gap_us: int
    calls: tuple[Call, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the keys, the session's window and the results."""
        return (*_named(self.input, self.keys), *_WINDOW, *(call.column for call in self.calls))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Over:
    """Every row, with what is computed from the rows around it."""

    input: Node
    partition: tuple[str, ...]
    order: tuple[Ordering, ...]
    frame: Frame | None
    calls: tuple[Call, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the input's columns and the results."""
        return (*self.input.columns, *(call.column for call in self.calls))

    @property
    def reach(self) -> tuple[int, int] | None:
        """How far a RANGE looks before a row and behind it; None for the whole partition."""
        if self.frame is None or not self.frame.by_value:
            return None
        before, after = self.frame.before, self.frame.after
        return None if before is None or after is None else (max(before, 0), max(after, 0))

    @property
    def timed(self) -> bool:
        """Whether its first order is a time."""
        kinds = {each.name: each.type for each in self.input.columns}
        return bool(self.order) and kinds[self.order[0].column] in TEMPORAL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Match:
    """One row for each match of a pattern in the rows of a partition, in the order of `time`.

    `conditions` are those of the variables; one without a condition takes any row. `within_us`
    bounds last minus first row. The search goes on where `skip` says, at the first or last row of
    `skip_to` if it names a variable. A match has the time and place of its last row. `each_row`:
    there is one row for each row of a match, over those up to it, with its time and place.
    """

    input: Node
    partition: tuple[str, ...]
    time: str
    pattern: Pattern
    conditions: tuple[tuple[str, Formula], ...]
    within_us: int | None
    skip: MatchSkip
    skip_to: str | None
    each_row: bool
    picks: tuple[Pick, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the partition, the times of the first and the last row, and the measures."""
        picks = (Column(name=each.name, type=each.type) for each in self.picks)
        return (*_named(self.input, self.partition), *_WINDOW, *picks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Join:
    """Pairs of rows with equal `pairs` for which every other condition of ON holds.

    `timed`: the right side's rows are facts, and the later row of a pair gives its time. `as_of`
    are the conditions of `rest` that choose a version: it begins at or before a time of the left
    row, the right side of the first, and ends after it. `every`: ON equates nothing, so that each
    row is compared with every one of the other side.
    """

    left: Node
    right: Node
    kind: JoinKind
    pairs: tuple[tuple[str, str], ...]
    rest: tuple[exp.Expr, ...]
    timed: bool
    as_of: tuple[exp.Expr, ...] = ()
    every: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the left side's columns, and for pairs the right side's."""
        alone = self.kind in (JoinKind.SEMI, JoinKind.ANTI)
        return self.left.columns if alone else (*self.left.columns, *self.right.columns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Newest:
    """One row of each whole key: the one of the latest event time.

    `unique`: there is only one by itself, so that only rows without a whole key are left out.
    """

    input: Node
    keys: tuple[str, ...]
    unique: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the input's columns."""
        return self.input.columns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Final:
    """The rows whose end, the column `END`, the watermark has passed."""

    input: Node

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the input's columns."""
        return self.input.columns


Stateless = Scan | Map | Windowed | Exploded | UnionAll
"""Nodes whose results follow from each row by itself."""


Recomputed = Grouped | Sessions | Over | Match | Newest
"""Nodes whose results are computed again, region by region."""


Node = Stateless | Recomputed | Join | Final


def inputs_of(node: Node) -> tuple[Node, ...]:
    """Return the nodes whose rows a node reads."""
    match node:
        case Scan():
            return ()
        case UnionAll():
            return node.inputs
        case Join():
            return (node.left, node.right)
        case _:
            return (node.input,)


def expressions_of(node: Node) -> tuple[exp.Expr, ...]:
    """Return the expressions that stand in a node."""
    if isinstance(node, Map):
        return (*(each.expression for each in node.outputs), *node.where)
    return node.rest if isinstance(node, Join) else ()


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all below it, inputs before those who read them."""
    for each in inputs_of(node):
        yield from walk(each)
    yield node


def scans(node: Node) -> tuple[Scan, ...]:
    """Return the inputs of a tree in the order in which the query names them."""
    return tuple(each for each in walk(node) if isinstance(each, Scan))


def is_stateful(node: Node) -> bool:
    """Say whether results of a node depend on several facts."""
    return isinstance(node, Grouped | Sessions | Over | Match) or (
        isinstance(node, Join) and node.timed
    )


def column(name: str) -> exp.Expr:
    """Return an expression that is one column of the input."""
    made: exp.Expr = exp.Column(this=exp.to_identifier(name, quoted=True))
    return made


def passed(columns: tuple[Column, ...]) -> tuple[Computed, ...]:
    """Return outputs that pass columns on as they are."""
    return tuple(Computed(name=c.name, expression=column(c.name), type=c.type) for c in columns)


def _named(node: Node, names: tuple[str, ...]) -> tuple[Column, ...]:
    known = {each.name: each for each in node.columns}
    return tuple(known[name] for name in names)
