"""What is measured: the lines of the table, their sizes and their goals."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

OURS, NAIVE, DEBEZIUM = "penstock", "naive_merge", "debezium"
KAFKA2DELTA = "kafka2delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much: rows, rates per second, seconds. `lines` None: all of them."""

    lines: frozenset[str] | None
    products: frozenset[str] | None
    table_rows: int
    seconds: float
    long_seconds: float
    catch_up_changes: int
    snapshot_rows: int
    rewritten_rows: int

    @staticmethod
    def of(options: Namespace) -> Scale:
        """Read the options of the command line (see `benchmarks.cdc.add_options`)."""
        small = 20 if getattr(options, "quick", False) else 1
        return Scale(
            lines=_names(getattr(options, "cdc_lines", None)),
            products=_names(getattr(options, "cdc_products", None)),
            table_rows=(getattr(options, "cdc_table_rows", None) or 1_000_000) // small,
            seconds=(getattr(options, "cdc_seconds", None) or 60.0) / (4 if small > 1 else 1),
            long_seconds=(getattr(options, "cdc_long_seconds", None) or 300.0) / small,
            catch_up_changes=(getattr(options, "cdc_changes", None) or 1_000_000) // small,
            snapshot_rows=2_000_000 // small,
            rewritten_rows=10_000_000 // small,
        )

    def wants(self, line: str, product: str) -> bool:
        """Say whether a product is to be measured on a line."""
        chosen = self.lines is None or line in self.lines
        return chosen and (self.products is None or product in self.products)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a figure should reach: bounded from below, or from above where `lower` is true."""

    figure: str
    what: str
    at_least: float
    aim: float | None
    lower: bool = False


GOALS = (
    Goal(
        figure=f"snapshot.{OURS}.rows_per_s",
        what="snapshot to a queryable table",
        at_least=200_000,
        aim=None,
    ),
    Goal(
        figure=f"snapshot.{OURS}.times_{DEBEZIUM}",
        what="snapshot, times Debezium's own",
        at_least=5,
        aim=None,
    ),
    Goal(
        figure=f"updates_1000.{OURS}.current_p95_s",
        what="1,000 updates/s: in `current` by name",
        at_least=1.0,
        aim=0.5,
        lower=True,
    ),
    Goal(
        figure=f"updates_1000.{OURS}.path_p95_s",
        what="1,000 updates/s: in `current` by path",
        at_least=1.5,
        aim=0.5,
        lower=True,
    ),
    Goal(
        figure=f"updates_1000.{OURS}.log_p95_s",
        what="1,000 updates/s: in the log",
        at_least=0.8,
        aim=0.3,
        lower=True,
    ),
    Goal(
        figure=f"updates_5000.{OURS}.current_p95_s",
        what="5,000 updates/s over 5 tables: in `current` by name",
        at_least=2.0,
        aim=1.0,
        lower=True,
    ),
    Goal(
        figure=f"catch_up.{OURS}.changes_per_s",
        what="catch-up after an outage",
        at_least=60_000,
        aim=120_000,
    ),
    Goal(
        figure=f"rewritten.{OURS}.times_less_than_naive",
        what="bytes rewritten, 1 % random updates of a large table: times less than naive",
        at_least=10,
        aim=None,
    ),
    Goal(
        figure=f"verify.{OURS}.at_rest_s_per_million",
        what="`source verify`, seconds per million rows",
        at_least=10.0,
        aim=None,
        lower=True,
    ),
)


def verdict(goal: Goal, value: float) -> str:
    """Say whether a value reaches the least, the aim, or neither."""
    sign = -1 if goal.lower else 1
    if goal.aim is not None and sign * value >= sign * goal.aim:
        return "aim reached"
    return "reached" if sign * value >= sign * goal.at_least else "missed"


def _names(text: str | None) -> frozenset[str] | None:
    return None if not text else frozenset(text.split(","))
