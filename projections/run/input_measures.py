"""What is measured of a plan's inputs, so that `explain` says how much its operators keep.

Rows are counted by the log of their tables. How many a second of event time has, and how long texts
are, follows from those that came last: a table of many years is not read for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lake.datasets import dataset_at, dataset_of, scanner_of, schema_of
from lake.file_actions import actions_of
from lake.layout import Lake
from lake.tables import Tables
from projections.run.input_rows import DELETED, table_of
from projections.run.relations import LakeCatalog
from projections.sql.operators.shape import InputKind, Plan
from projections.sql.operators.tree import Scan, scans
from projections.sql.plans.state_bounds import InputMeasure, Measures

SAMPLE_ROWS = 200_000
"""Rows of the newest files whose times are read, at least, where there are so many."""
_TEXT_ROWS = 2_000
_FEW = 20
_EDGE = 0.05
"""Of the times on either side so much is left out: one odd row would make any span a century."""


def measured(lake: Lake, tables: Tables, plan: Plan, catalog: LakeCatalog) -> Measures:
    """Return what was measured of the inputs that have a table, by kind and name."""
    found: dict[tuple[InputKind, str], InputMeasure] = {}
    for scan in scans(plan.tree):
        stream = scan.kind is InputKind.STREAM
        names = catalog.members(scan.name) if stream else [table_of(scan)]
        opened = (tables.open(lake.path(name)) for name in names)
        if known := [table for table in opened if table is not None]:
            found[scan.kind, scan.name] = _measure(scan, known)
    return found


def _measure(scan: Scan, known: Sequence[DeltaTable]) -> InputMeasure:
    time = {InputKind.STREAM: "_time", InputKind.HISTORY: "valid_from"}.get(scan.kind)
    times = [each for table in known for each in _times(table, time)]
    if scan.kind is InputKind.LATEST:
        valid = pc.field("valid_to").is_null() & ~pc.field(DELETED)
        rows = sum(dataset_of(table).count_rows(filter=valid) for table in known)
    else:
        rows = sum(table.count() for table in known)
    texts = [_text_bytes(table, scan) for table in known]
    return InputMeasure(
        rows=rows,
        per_second=_per_second(pa.chunked_array(times, pa.int64()).to_numpy()),
        text_bytes=max(texts, default=0.0),
    )


def _times(table: DeltaTable, time: str | None) -> Iterator[pa.Array]:
    """Yield the times of the rows that came last, in microseconds since 1970."""
    if time is None or time not in schema_of(table).names:
        return
    rows = scanner_of(dataset_at(table, _newest(table)), None, [time]).to_table()[time]
    for chunk in rows.drop_null().chunks:
        yield chunk.cast(pa.timestamp("us", chunk.type.tz)).cast(pa.int64())


def _newest(table: DeltaTable) -> list[str]:
    """Return the paths of the files that came last, up to `SAMPLE_ROWS`."""
    actions = actions_of(table)
    by = "max._epoch" if "max._epoch" in actions.column_names else "modification_time"
    paths: list[str] = []
    count = 0
    for row in actions.sort_by([(by, "descending")]).to_pylist():
        if count >= SAMPLE_ROWS:
            break
        paths.append(row["path"])
        count += row["num_records"] or 0
    return paths


def _per_second(times: np.ndarray) -> float | None:
    """Return how many rows a second of event time has; None where they have one time."""
    if len(times) < 2:
        return None
    edge = _EDGE if len(times) >= _FEW else 0.0
    first, last = np.quantile(times, [edge, 1 - edge])
    seconds = float(last - first) / 1e6
    return None if seconds <= 0 else (len(times) - 1) * (1 - 2 * edge) / seconds


def _text_bytes(table: DeltaTable, scan: Scan) -> float:
    """Return how many bytes the texts of an input have on average, by a few of them."""
    kinds = {each.name: each.type for each in schema_of(table)}
    own = [
        each.name for each in scan.columns if pa.types.is_string(kinds.get(each.name, pa.null()))
    ]
    if not own:
        return 0.0
    rows = scanner_of(dataset_at(table, _newest(table)[:1]), None, own).head(_TEXT_ROWS)
    sizes = [pc.mean(pc.binary_length(rows[name])).as_py() or 0.0 for name in own]
    return float(sum(sizes) / len(sizes))
