"""Query parameters: one that a route does not know, or takes once and gets twice, is refused."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import get_args, get_origin
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.routing import APIRoute

from kernel.errors import InvalidRequest
from schemas.json_values import shown
from service.problems import refusal

_NUMBER = re.compile(r"-?[0-9]+")


def check_parameters(
    query: bytes, known: Iterable[str] = (), repeatable: Collection[str] = ()
) -> None:
    """Refuse parameters of a query string that are not among `known`, or that come more than once
    and are not `repeatable`: all but the last value would be left out without a word.
    """
    if not query:
        return
    names = list(known)
    seen: set[str] = set()
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name in seen and name not in repeatable:
            raise refusal(
                400,
                "repeated-parameter",
                "The route takes this parameter once",
                f"parameter {shown(name)} is there more than once",
                f"Give {name} one value.",
            )
        seen.add(name)
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise refusal(
                400,
                "unknown-parameter",
                "The route has no such parameter",
                f"unknown parameter {shown(name)}",
                f"{hint}The route's parameters are: {', '.join(names) or 'none'}",
            )


def known_parameters(request: Request) -> None:
    """Check a request of any route, as a dependency of all of them."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    if request.scope["query_string"]:
        fields = {field.alias: field.field_info for field in route.dependant.query_params}
        many = [name for name, info in fields.items() if _takes_many(info.annotation)]
        check_parameters(request.scope["query_string"], fields, many)
        numbers = {name for name, info in fields.items() if _takes(int, info.annotation)}
        _check_numbers(request.scope["query_string"], numbers)


def _check_numbers(query: bytes, numbers: Collection[str]) -> None:
    """Refuse what Python alone takes for a whole number: `1_0`, or one between blanks."""
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name in numbers and not _NUMBER.fullmatch(value):
            raise InvalidRequest(
                f"query.{name}: expected a whole number", remedy=f"Write {name} in digits alone."
            )


def _takes_many(annotation: object) -> bool:
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))


def _takes(kind: type, annotation: object) -> bool:
    return kind in (annotation, *get_args(annotation))
