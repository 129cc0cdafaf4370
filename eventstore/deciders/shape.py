"""Which states can be kept as JSON, and how: a value comes back exactly as it was, or not at all.

    annotation                          JSON
    str, int, float, bool, None         as they are; NaN and infinities are refused
    datetime (aware), date, time        ISO 8601 text
    Decimal, UUID                       text
    Enum, Literal                       its value
    list, tuple, set, frozenset of X    list (sets sorted)
    dict[str, X], Mapping[str, X]       object
    a dataclass                         object of its fields
    X | None                            X or null
    a union of dataclasses              object of its fields and "$type", the class's name
    dict, list, Any without more        JSON values

Values must have exactly the declared type: `True` is no int here, a tuple no list. Anything else
could come back as something else, and a snapshot may never differ from the events it stands for.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal, Union

import orjson

from eventstore.deciders.scalars import SCALARS, ScalarShape, describe_any
from kernel.errors import Misconfigured, SchemaViolation
from schemas.json_values import inside, misfit

TAG = "$type"


def shape_of(annotation: Any) -> ScalarShape:
    """Return the shape of a type. Raises `Misconfigured` for types that have none."""
    return _Shapes().of(annotation)


class _Shapes:
    """Dataclasses by class, so that types may hold themselves."""

    def __init__(self) -> None:
        self._known: dict[type, ScalarShape] = {}

    def of(self, annotation: Any) -> ScalarShape:
        if annotation is None:
            annotation = type(None)
        origin = typing.get_origin(annotation)
        arguments = typing.get_args(annotation)
        if annotation in SCALARS:
            return SCALARS[annotation]
        if annotation in (Any, object, dict, list, Mapping):
            return _json_shape(annotation)
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            return _choice({member.value: member for member in annotation})
        if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
            return self._dataclass(annotation)
        if origin is Literal:
            return _choice({value: value for value in arguments})
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if origin in _COLLECTIONS and arguments:
            return self._collection(origin, arguments)
        raise Misconfigured(
            f"{_name(annotation)} is no type that JSON can keep",
            remedy="Build states and commands of dataclasses, texts, numbers, times, lists and "
            "objects with text keys.",
        )

    def _collection(self, origin: Any, arguments: tuple[Any, ...]) -> ScalarShape:
        if origin in (dict, Mapping):
            if arguments[0] is not str:
                raise Misconfigured(
                    f"an object with keys of {_name(arguments[0])} has no JSON",
                    remedy="Use dict[str, …]: the keys of a JSON object are texts.",
                )
            return _object(self.of(arguments[1]))
        if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
            return _fixed_tuple([self.of(each) for each in arguments])
        return _items(origin, self.of(arguments[0]))

    def _union(self, arguments: tuple[Any, ...]) -> ScalarShape:
        some = [each for each in arguments if each is not type(None)]
        if len(some) == 1:
            inner = self.of(some[0])
        elif all(isinstance(each, type) and dataclasses.is_dataclass(each) for each in some):
            inner = _tagged({each.__name__: (each, self.of(each)) for each in some})
        else:
            raise Misconfigured(
                f"a union of {', '.join(map(_name, some))} is ambiguous in JSON",
                remedy="Make a union of dataclasses, or of one type and None.",
            )
        return _nullable(inner) if len(some) < len(arguments) else inner

    def _dataclass(self, kind: type) -> ScalarShape:
        if kind in self._known:
            return self._known[kind]
        fields: dict[str, tuple[ScalarShape, bool]] = {}
        made = self._known[kind] = _record(kind, fields)
        hints = typing.get_type_hints(kind)
        for each in dataclasses.fields(kind):
            optional = (
                each.default is not dataclasses.MISSING
                or each.default_factory is not dataclasses.MISSING
            )
            if not each.init:
                raise Misconfigured(
                    f"{kind.__name__}.{each.name} is no parameter of the dataclass",
                    remedy="Make it a property, so that the state can be read back from JSON.",
                )
            fields[each.name] = (self.of(hints[each.name]), optional)
        return made


_COLLECTIONS = (list, tuple, set, frozenset, dict, Mapping)


def _json_shape(annotation: Any) -> ScalarShape:
    def check(value: Any) -> Any:
        kind = dict if annotation is Mapping else annotation
        if kind in (dict, list) and type(value) is not kind:
            raise misfit(f"expected {_NOUNS[kind]}, found {describe_any(value)}")
        _check_json(value)
        return value

    return ScalarShape(check, check)


_NOUNS: Mapping[Any, str] = {dict: "an object", list: "a list"}


def _check_json(value: Any) -> None:
    match value:
        case dict() if type(value) is dict:
            for key, item in value.items():
                if type(key) is not str:
                    raise misfit(f"the key {key!r} is no text")
                _within(f".{key}", _check_json, item)
        case list() if type(value) is list:
            for index, item in enumerate(value):
                _within(f"[{index}]", _check_json, item)
        case _ if type(value) in (int, float):
            SCALARS[float].freeze(value)
        case _ if type(value) not in (str, bool, type(None)):
            raise misfit(f"{describe_any(value)} is no JSON value")


def _within(place: str, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except SchemaViolation as error:
        raise inside(error, place) from None


def _choice(choices: Mapping[Any, Any]) -> ScalarShape:
    if not all(type(value) in (str, int, bool) for value in choices):
        raise Misconfigured(
            f"the choices {', '.join(map(repr, choices))} have no exact JSON",
            remedy="Give Enum members and Literals texts or whole numbers as values.",
        )
    frozen = {(type(member), member): value for value, member in choices.items()}
    thawed = {(type(value), value): member for value, member in choices.items()}
    names = ", ".join(map(str, choices))

    def pick(known: Mapping[Any, Any], value: Any) -> Any:
        try:
            return known[type(value), value]
        except (KeyError, TypeError):
            raise misfit(f"expected one of {names}, found {describe_any(value)}") from None

    return ScalarShape(lambda value: pick(frozen, value), lambda value: pick(thawed, value))


def _nullable(inner: ScalarShape) -> ScalarShape:
    return ScalarShape(
        lambda value: None if value is None else inner.freeze(value),
        lambda value: None if value is None else inner.thaw(value),
    )


def _object(inner: ScalarShape) -> ScalarShape:
    def through(convert: Callable[[Any], Any], value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise misfit(f"expected an object, found {describe_any(value)}")
        if any(type(key) is not str for key in value):
            raise misfit("a key is no text")
        return {key: _within(f".{key}", convert, item) for key, item in value.items()}

    return ScalarShape(lambda v: through(inner.freeze, v), lambda v: through(inner.thaw, v))


def _items(origin: Any, inner: ScalarShape) -> ScalarShape:
    def freeze(value: Any) -> list[Any]:
        if type(value) is not origin:
            raise misfit(f"expected {origin.__name__}, found {describe_any(value)}")
        frozen = [_within(f"[{i}]", inner.freeze, item) for i, item in enumerate(value)]
        return sorted(frozen, key=orjson.dumps) if origin in (set, frozenset) else frozen

    def thaw(value: Any) -> Any:
        if type(value) is not list:
            raise misfit(f"expected a list, found {describe_any(value)}")
        return origin([_within(f"[{i}]", inner.thaw, item) for i, item in enumerate(value)])

    return ScalarShape(freeze, thaw)


def _fixed_tuple(shapes: list[ScalarShape]) -> ScalarShape:
    def through(kind: Any, value: Any, converts: list[Callable[[Any], Any]]) -> list[Any]:
        if type(value) is not kind or len(value) != len(converts):
            raise misfit(f"expected {len(converts)} items, found {describe_any(value)}")
        pairs = zip(converts, value, strict=True)
        return [_within(f"[{i}]", convert, item) for i, (convert, item) in enumerate(pairs)]

    return ScalarShape(
        lambda value: through(tuple, value, [shape.freeze for shape in shapes]),
        lambda value: tuple(through(list, value, [shape.thaw for shape in shapes])),
    )


def _record(kind: type, fields: Mapping[str, tuple[ScalarShape, bool]]) -> ScalarShape:
    def freeze(value: Any) -> dict[str, Any]:
        if type(value) is not kind:
            raise misfit(f"expected {kind.__name__}, found {describe_any(value)}")
        return {
            name: _within(f".{name}", shape.freeze, getattr(value, name))
            for name, (shape, _) in fields.items()
        }

    def thaw(value: Any) -> Any:
        if type(value) is not dict:
            raise misfit(f"expected an object, found {describe_any(value)}")
        for name in value:
            if name not in fields:
                raise misfit(
                    f"there is no such field; the fields are {', '.join(fields)}", f".{name}"
                )
        given = {}
        for name, (shape, optional) in fields.items():
            if name in value:
                given[name] = _within(f".{name}", shape.thaw, value[name])
            elif not optional:
                raise misfit("required, and missing", f".{name}")
        try:
            return kind(**given)
        except (ValueError, TypeError) as error:
            raise misfit(str(error)) from error

    return ScalarShape(freeze, thaw)


def _tagged(kinds: Mapping[str, tuple[type, ScalarShape]]) -> ScalarShape:
    names = ", ".join(kinds)

    def freeze(value: Any) -> dict[str, Any]:
        name = type(value).__name__
        if name not in kinds or kinds[name][0] is not type(value):
            raise misfit(f"expected one of {names}, found {describe_any(value)}")
        return {TAG: name, **kinds[name][1].freeze(value)}

    def thaw(value: Any) -> Any:
        if type(value) is not dict or value.get(TAG) not in kinds:
            raise misfit(f'expected an object with "{TAG}" one of {names}')
        rest = {key: item for key, item in value.items() if key != TAG}
        return kinds[value[TAG]][1].thaw(rest)

    return ScalarShape(freeze, thaw)


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
