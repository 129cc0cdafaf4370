"""Rows leave Spark through one function, which knows how many may."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.tree import ROOT, parsed, sources

TAKES_ROWS = {"collect", "toArrow", "toPandas", "toLocalIterator", "tail"}
THE_ONE = "lake/collecting.py"


def takers() -> Iterator[str]:
    """Yield each call on a frame that brings rows to the driver, of the files that know Spark."""
    for path in sources():
        name = str(path.relative_to(ROOT))
        if name.split("/")[0] == "benchmarks" or "pyspark" not in path.read_text(encoding="utf-8"):
            continue
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Call(func=ast.Attribute(attr=attribute)) if attribute in TAKES_ROWS:
                    yield f"{name}: {attribute}"


def test_rows_come_to_the_driver_through_one_function() -> None:
    assert list(takers()) == [f"{THE_ONE}: toArrow"]
