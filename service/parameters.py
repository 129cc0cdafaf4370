"""Query parameters: one that a route does not know is refused, with the nearest that it knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.routing import APIRoute

from service.problems import refusal


def check_parameters(query: bytes, known: Iterable[str] = ()) -> None:
    """Refuse parameters of a query string that are not among `known`."""
    if not query:
        return
    names = list(known)
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise refusal(
                400,
                "unknown-parameter",
                "The route has no such parameter",
                f"unknown parameter {name!r}",
                f"{hint}The route's parameters are: {', '.join(names) or 'none'}",
            )


def known_parameters(request: Request) -> None:
    """Check a request of any route, as a dependency of all of them."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    if request.scope["query_string"]:
        names = [field.alias for field in route.dependant.query_params]
        check_parameters(request.scope["query_string"], names)
