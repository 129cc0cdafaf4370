"""Whoever connects to a database gives up some time: a server that is stopped never refuses."""

from __future__ import annotations

import ast

from tests.architecture.tree import name_of, parsed, sources

BOUNDED = {"eventstore/postgres/connect.py": "`conninfo` has the bound in the text"}
"""Calls without a bound of their own, each with the reason."""


def test_every_connection_to_postgresql_has_a_bound() -> None:
    found = set()
    for path in sources():
        name = name_of(path)
        if name.startswith(("benchmarks/", "examples/")):
            continue
        for node in ast.walk(parsed(path)):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).endswith(("psycopg.connect", "Connection.connect"))
                and not any(each.arg == "connect_timeout" for each in node.keywords)
            ):
                found.add(name)
    assert found == set(BOUNDED)
