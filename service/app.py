"""The application: routes, errors, the OpenAPI document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from kernel.errors import InvalidRequest, PenstockError
from schemas.complaints import complaint_of
from service import (
    command_routes,
    encoding,
    health,
    imports,
    lake_routes,
    lifecycle_routes,
    pages,
    projection_routes,
    reads,
    schema_routes,
    stream_routes,
    subscription_routes,
)
from service.edge import Edge
from service.head_requests import takes_head
from service.openapi import APPEND_PATHS, completed
from service.parameters import known_parameters
from service.problems import CONTENT_TYPE, HttpRefusal, Problem, problem_of, refusal
from service.requests import runtime_of
from service.runtime import Runtime

VERSION = "0.1.0"
_ROUTERS = (
    (reads.router, "events"),
    (imports.router, "events"),
    (encoding.router, "events"),
    (stream_routes.router, "streams"),
    (lifecycle_routes.router, "streams"),
    (schema_routes.router, "schemas"),
    (command_routes.router, "entities"),
    (subscription_routes.router, "subscriptions"),
    (projection_routes.router, "lake"),
    (lake_routes.router, "lake"),
    (health.router, "operation"),
)
_ROUTES = [
    route
    for router in (pages.router, *(router for router, _ in _ROUTERS))
    for route in router.routes
    if isinstance(route, APIRoute)
]


class Application(FastAPI):
    """Describes all routes in its OpenAPI document, the appends at the edge included."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI 3.1 document."""
        if self.openapi_schema is None:
            completed(super().openapi())
        assert self.openapi_schema is not None
        return self.openapi_schema


def build(runtime: Runtime) -> Edge:
    """Assemble the ASGI application of one service. Serving it starts and stops `runtime`."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        runtime.start()
        try:
            yield
        finally:
            await runtime.stop()

    app = Application(
        title="Penstock",
        version=VERSION,
        description="Append events, read them, follow them.",
        lifespan=lifespan,
        redoc_url=None,
        docs_url=None,
        redirect_slashes=False,
    )
    app.state.runtime = runtime
    for router, tag in _ROUTERS:
        app.include_router(router, tags=[tag], dependencies=[Depends(known_parameters)])
    app.include_router(pages.router)
    for kind in (PenstockError, HttpRefusal, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(Exception, _failed)
    app.add_exception_handler(ClientDisconnect, _unanswered)
    return Edge(app, runtime)


async def _answer(request: Request, error: Exception) -> Response:
    problem = problem_of(_translated(request, error))
    runtime_of(request).metrics.refusals.labels(problem.type).inc()
    return _told(problem)


async def _failed(_request: Request, error: Exception) -> Response:
    """Answer what is a fault of ours; it goes on to the edge, which counts and logs it."""
    return _told(problem_of(error))


def _told(problem: Problem) -> Response:
    headers = dict(problem.headers) | {"content-type": CONTENT_TYPE}
    return Response(problem.body(), status_code=problem.status, headers=headers)


async def _unanswered(_request: Request, _error: Exception) -> Response:
    """End a request whose body did not come to its end; the connection takes no answer."""
    return Response(status_code=400)


def _unrouted(path: str, error: HTTPException) -> HTTPException:
    """Return the error of a request without a route, by all that its path takes.

    The framework looks at one route alone, and not at the edge.
    """
    found = [route for route in _ROUTES if route.path_regex.match(path)]
    methods = {method for route in found for method in route.methods or ()}
    if {path, *(route.path for route in found)} & APPEND_PATHS.keys():
        methods.add("POST")
    if not methods:
        return error
    if "GET" in methods and takes_head(path):
        methods.add("HEAD")
    return HTTPException(405, headers={"allow": ", ".join(sorted(methods))})


def _translated(request: Request, error: Exception) -> Exception:
    """Turn the framework's own errors into ours."""
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        error = _unrouted(request.scope["path"], error)
    match error:
        case RequestValidationError():
            return InvalidRequest(complaint_of(error.errors()))
        case HTTPException(status_code=404):
            return refusal(404, "not-found", "There is no such thing", "no such path", "See /docs.")
        case HTTPException():
            return refusal(
                error.status_code,
                "method-not-allowed" if error.status_code == 405 else "http-error",
                str(error.detail),
                str(error.detail),
                "See /openapi.json.",
                *(error.headers or {}).items(),
            )
        case _:
            return error
