"""Which tables generations are of, by the names that users give. It loads no pyarrow."""

from __future__ import annotations

DERIVED = ("typed", "current", "history")
"""Kinds of tables that are made of the log."""


def derived_name(name: str) -> str | None:
    """Return the table that is named as in `typed.events.order.placed`; None for a projection."""
    kind, dot, rest = name.partition(".")
    return f"{kind}/{rest}" if dot and kind in DERIVED else None


def stable_name(name: str) -> str:
    """Return the name of the table that generations of a projection, or a derived table, are of."""
    return derived_name(name) or f"projection/{name}"
