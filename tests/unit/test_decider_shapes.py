"""States as JSON: what goes in comes back as it was, anything else is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.deciders.shape import shape_of
from kernel.errors import Misconfigured, SchemaViolation


class Colour(Enum):
    RED = "red"
    BLUE = 2


@dataclass(frozen=True)
class Leaf:
    name: str
    price: Decimal = Decimal(1)


@dataclass(frozen=True)
class Node:
    left: Node | None
    right: Node | None
    leaf: Leaf


@dataclass(frozen=True)
class Everything:
    text: str
    number: int
    fraction: float
    flag: bool
    nothing: None
    moment: datetime
    day: date
    clock: time
    money: Decimal
    id_: UUID
    colour: Colour
    kind: Literal["a", "b", 3]
    texts: list[str]
    pair: tuple[int, str]
    many: tuple[int, ...]
    some: set[int]
    frozen: frozenset[str]
    leaves: dict[str, Leaf]
    mapped: Mapping[str, list[int]]
    perhaps: Leaf | None
    either: Leaf | Node
    plain: dict[str, Any]
    anything: Any
    defaulted: list[int] = field(default_factory=list)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
LEAVES = st.builds(Leaf, name=st.text(), price=st.decimals(allow_nan=False, allow_infinity=False))
NODES = st.recursive(
    st.builds(Node, left=st.none(), right=st.none(), leaf=LEAVES),
    lambda inner: st.builds(Node, left=inner, right=st.none() | inner, leaf=LEAVES),
    max_leaves=4,
)
ZONES = st.just(UTC) | st.integers(-720, 720).map(lambda m: timezone(timedelta(minutes=m)))
NUMBERS = st.integers(-(2**63), 2**64 - 1)
EVERYTHING = st.builds(
    Everything,
    text=st.text(),
    number=NUMBERS,
    fraction=st.floats(allow_nan=False, allow_infinity=False) | NUMBERS,
    flag=st.booleans(),
    nothing=st.none(),
    moment=st.datetimes(timezones=ZONES).map(lambda moment: moment.replace(fold=0)),
    day=st.dates(),
    clock=st.times().map(lambda clock: clock.replace(fold=0)),
    money=st.decimals(allow_nan=False, allow_infinity=False),
    id_=st.uuids(),
    colour=st.sampled_from(Colour),
    kind=st.sampled_from(["a", "b", 3]),
    texts=st.lists(st.text(), max_size=3),
    pair=st.tuples(NUMBERS, st.text()),
    many=st.lists(NUMBERS, max_size=3).map(tuple),
    some=st.sets(NUMBERS, max_size=3),
    frozen=st.frozensets(st.text(), max_size=3),
    leaves=st.dictionaries(st.text(), LEAVES, max_size=2),
    mapped=st.dictionaries(st.text(), st.lists(NUMBERS, max_size=2), max_size=2),
    perhaps=st.none() | LEAVES,
    either=LEAVES | NODES,
    plain=st.dictionaries(st.text(), JSON, max_size=3),
    anything=JSON,
)
SHAPE = shape_of(Everything)


@given(EVERYTHING)
@settings(max_examples=40)
def test_every_state_comes_back_as_it_was(value: Everything) -> None:
    back = SHAPE.thaw(orjson.loads(orjson.dumps(SHAPE.freeze(value))))
    # The text tells 1 from 1.0 and True, which are equal to Python.
    assert (back, repr(back)) == (value, repr(value)) or _only_sets_differ(back, value)


def _only_sets_differ(back: Everything, value: Everything) -> bool:
    """Equal sets may be written in another order."""
    return back == value and len(repr(back)) == len(repr(value))


class Text(str):
    """A text that is more than a text."""


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, True),
        (int, 1.0),
        (int, 2**64),
        (float, math.nan),
        (float, math.inf),
        (float, True),
        (str, 1),
        (str, Text("a")),
        (bool, 1),
        (datetime, datetime(2013, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
        (datetime, datetime(2013, 1, 1, tzinfo=ZoneInfo("Europe/Oslo"))),
        (time, time(1, fold=1)),
        (date, datetime(2013, 1, 1, tzinfo=UTC)),
        (Decimal, Decimal("NaN")),
        (Decimal, 1),
        (list[int], (1,)),
        (tuple[int, ...], [1]),
        (tuple[int, int], (1,)),
        (dict[str, int], {1: 1}),
        (dict[str, int], {"a": "b"}),
        (dict, {"a": (1,)}),
        (dict, {"a": {1: 2}}),
        (dict, []),
        (Any, object()),
        (Any, Colour.RED),
        (Literal[1], True),
        (Colour, "red"),
        (Leaf, {"name": "a"}),
        (Leaf | Node, None),
        (Leaf, Leaf(name=1)),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(SchemaViolation):
        shape_of(annotation).freeze(value)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Leaf, {"price": "1"}, "$.name"),
        (Leaf, {"name": "a", "price": "x"}, "$.price"),
        (Leaf, {"name": "a", "prise": "1"}, "$.prise"),
        (Leaf, [], "$"),
        (Leaf | Node, {"name": "a"}, "$"),
        (list[Leaf], [{"name": "a"}, {"name": 1}], "$[1].name"),
        (dict[str, list[int]], {"a": [1, "b"]}, "$.a[1]"),
        (set[int], {"a": 1}, "$"),
        (datetime, "2013-01-01T00:00:00", "$"),
        (UUID, "no", "$"),
        (UUID, 7, "$"),
        (Decimal, "NaN", "$"),
        (Colour, "green", "$"),
        (Colour, [], "$"),
    ],
)
def test_complaints_say_where(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(SchemaViolation) as caught:
        shape_of(annotation).thaw(value)
    assert caught.value.fields["path"] == path


@dataclass(frozen=True)
class Derived:
    a: int
    b: int = field(init=False, default=1)


class Level(Enum):
    HALF = 0.5


@pytest.mark.parametrize(
    "annotation",
    [bytes, complex, int | str, Leaf | int, dict[int, int], Derived, Level, type, object()],
)
def test_types_without_an_exact_json_are_no_states(annotation: Any) -> None:
    with pytest.raises(Misconfigured):
        shape_of(annotation)


def test_numbers_are_taken_for_decimals_of_commands() -> None:
    shape = shape_of(Leaf)
    assert shape.thaw({"name": "a", "price": 12.5}) == Leaf("a", Decimal("12.5"))
    assert shape.thaw({"name": "a", "price": 12}) == Leaf("a", Decimal(12))
    assert shape.thaw({"name": "a"}) == Leaf("a")
