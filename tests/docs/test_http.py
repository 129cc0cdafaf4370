"""The page on HTTP names every route, problem and metric that there is, and no other."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from fastapi import APIRouter
from fastapi.routing import APIRoute

import service
from eventstore.metadata import SILENT
from service.metrics import ServiceMetrics
from service.openapi import APPEND_PATHS
from service.problems import KINDS
from tests.architecture.tree import ROOT

PAGE = (ROOT / "docs/reference/http.md").read_text()
SERVICE = ROOT / "service"


def routers() -> list[APIRouter]:
    """Return the router of every module of the service that has one."""
    names = [f"service.{each.name}" for each in pkgutil.iter_modules(service.__path__)]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__")]
    return [
        module.router for module in modules if isinstance(vars(module).get("router"), APIRouter)
    ]


def test_every_route_is_documented() -> None:
    routes = {
        f"{method} {route.path_format}"
        for router in routers()
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods
    }
    routes |= {f"POST {path}" for path in APPEND_PATHS}
    documented = set(re.findall(r"`((?:GET|POST|PUT|DELETE) /[\w/{}-]*)", PAGE))
    assert {route.replace("{event_id}", "{id}") for route in routes} == documented


def test_every_problem_is_documented() -> None:
    refused = re.compile(r'refusal\(\s*\d+,\s*"([a-z-]+)"')
    known = {kind for _, _, kind, _ in KINDS} | {"method-not-allowed"}
    for path in Path(SERVICE).glob("*.py"):
        known |= set(refused.findall(path.read_text()))
    section = PAGE.partition("## Problems")[2]
    documented = set(
        re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\| ([^|]+)\|", section, re.M)))
    )
    # `conflict` names what has no problem of its own; no route of this version raises it.
    assert documented == known - {"conflict"}


def test_every_metric_is_documented() -> None:
    lines = ServiceMetrics().render().decode().splitlines()
    known = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    known = {name for name in known if not name.endswith("_created")}
    documented = set(re.findall(r"`(penstock_\w+)", PAGE)) - {SILENT}
    assert documented == known
