"""The table of a result, beside the goals: `python -m benchmarks.eventstore.report RESULT.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.eventstore.lines import GOALS, GROWTH_AIM, GROWTH_AT_MOST, LINES, Goal

_COLUMNS = (
    ("events_per_s", "events/s", "{:,.0f}"),
    ("p50_ms", "p50 ms", "{:,.2f}"),
    ("p99_ms", "p99 ms", "{:,.2f}"),
    ("server_cpu_us_per_event", "server µs", "{:,.1f}"),
    ("postgres_cpu_us_per_event", "postgres µs", "{:,.1f}"),
    ("client_cpu_us_per_event", "client µs", "{:,.1f}"),
)


def table(medians: Mapping[str, float], notes: Mapping[str, Any]) -> str:
    """Render medians by name (`<line>.<product>.<figure>`) as Markdown, then goals, then terms.

    The µs columns are processor time per event: of the serving process, of PostgreSQL, and of the
    driver, which for a store in process is the store itself.
    """
    parts = [_lines(medians), _goals(medians)]
    guarantees: Mapping[str, str] = notes.get("guarantees", {})
    parts.append("\n".join(f"- {name}: {text}" for name, text in guarantees.items()))
    if postgres := notes.get("postgres"):
        parts.append("PostgreSQL: " + ", ".join(f"{k}={v}" for k, v in sorted(postgres.items())))
    return "\n\n".join(part for part in parts if part)


def verdict(goal: Goal, value: float) -> str:
    """Say whether a value reaches the least, the aim, or neither."""
    sign = -1 if goal.lower else 1
    if goal.aim is not None and sign * value >= sign * goal.aim:
        return "aim reached"
    return "reached" if sign * value >= sign * goal.at_least else "missed"


def _lines(medians: Mapping[str, float]) -> str:
    head = ["what", "store", *(title for _, title, _ in _COLUMNS)]
    rows = [head, ["---"] * len(head)]
    for line in LINES:
        products = dict.fromkeys(
            name.split(".")[1] for name in medians if name.startswith(f"{line.name}.")
        )
        for product in products:
            values = (medians.get(f"{line.name}.{product}.{figure}") for figure, _, _ in _COLUMNS)
            shown = [
                "" if value is None else form.format(value)
                for value, (_, _, form) in zip(values, _COLUMNS, strict=True)
            ]
            rows.append([line.what, product, *shown])
    return _markdown(rows)


def _goals(medians: Mapping[str, float]) -> str:
    rows = [["goal", "store", "figure", "at least", "aim", "measured", "verdict"], ["---"] * 7]
    goals = [
        *GOALS,
        *(
            Goal(
                line=line,
                product=product,
                figure=figure,
                at_least=GROWTH_AT_MOST,
                aim=GROWTH_AIM,
                lower=True,
            )
            for line, product, figure in (name.split(".") for name in medians)
            if figure.endswith("_of_empty")
        ),
    ]
    for goal in goals:
        value = medians.get(f"{goal.line}.{goal.product}.{goal.figure}")
        if value is not None:
            aim = "" if goal.aim is None else f"{goal.aim:,g}"
            bounds = [f"{goal.at_least:,g}", aim, f"{value:,.2f}"]
            rows.append([goal.line, goal.product, goal.figure, *bounds, verdict(goal, value)])
    return _markdown(rows) if len(rows) > 2 else ""


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    figures = {name: spread["median"] for name, spread in document["figures"].items()}
    print(table(figures, document["notes"]))
