"""Rows leave Spark through one function, which knows how many may."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.tree import ROOT, parsed, sources

SPARKS_OWN = {"toArrow", "toPandas", "toLocalIterator"}
TAKES_ROWS = {*SPARKS_OWN, "collect", "tail"}
"""Others have calls of these names, too: they count in files that know Spark."""
THE_ONE = "lake/collecting.py"


def takers() -> Iterator[str]:
    """Yield each use of a frame's method that brings its rows to the driver."""
    for path in sources():
        name = str(path.relative_to(ROOT))
        if name.split("/")[0] == "benchmarks":
            continue
        knows = "pyspark" in path.read_text(encoding="utf-8")
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Attribute(attr=attribute) if attribute in (
                    TAKES_ROWS if knows else SPARKS_OWN
                ):
                    yield f"{name}: {attribute}"


def test_rows_come_to_the_driver_through_one_function() -> None:
    assert list(takers()) == [f"{THE_ONE}: toArrow"]
