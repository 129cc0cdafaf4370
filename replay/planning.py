"""What a replay would do, before it does anything."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Epoch
from projections.log import storage
from projections.log.datasets import dataset_of
from projections.log.typed_columns import LATE
from replay.book import ReplayBook
from replay.subject import (
    Site,
    Subject,
    entry_of,
    input_tables,
    noted_epoch,
    subject_of,
    typed_head,
)

FAST_ROWS_PER_S, SLOW_ROWS_PER_S = 200_000, 15_000
"""Between a plain newest-row projection and an as-of join, on two cores."""
START_S = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSize:
    """One table that is read. `late`: rows that were closed as late."""

    name: str
    rows: int
    bytes: int
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What would change, what it costs and how to go back. Times in seconds, as a range.

    `late_rows`: rows that only `--include-late` brings in. `free_bytes` None: not a local lake.
    """

    name: str
    live_generation: int
    generation: int
    same_query: bool
    include_late: bool
    epochs: tuple[int, int]
    inputs: tuple[InputSize, ...]
    late_rows: int
    live_rows: int
    live_bytes: int
    needed_bytes: int
    free_bytes: int | None
    seconds: tuple[int, int]
    not_rebuilt: tuple[str, ...]
    go_back: str


def plan_replay(
    site: Site, name: str, *, text: str | None = None, include_late: bool = False
) -> ReplayPlan:
    """Say what `replay apply` would do. Reads statistics only, changes nothing."""
    subject = subject_of(site, name, text)
    inputs = tuple(_size(site, table) for table in input_tables(subject))
    rows = sum(item.rows for item in inputs)
    live = _size(site, f"projection/{name}")
    needed = 2 * max(live.bytes, 1)
    return ReplayPlan(
        name=name,
        live_generation=subject.entry.generation,
        generation=next_generation(site, name),
        same_query=text is None or text.strip() == subject.entry.text.strip(),
        include_late=include_late,
        epochs=(1, build_epoch(site, subject)),
        inputs=inputs,
        late_rows=sum(item.late for item in inputs) if subject.plan.stateful else 0,
        live_rows=live.rows,
        live_bytes=live.bytes,
        needed_bytes=needed,
        free_bytes=storage.free_bytes(site.lake.root),
        seconds=(START_S + rows // FAST_ROWS_PER_S, 2 * START_S + rows // SLOW_ROWS_PER_S),
        not_rebuilt=tuple(item.name for item in inputs),
        go_back=f"penstock replay rollback {name}",
    )


def next_generation(site: Site, name: str) -> int:
    """Return a generation number that was never used for this projection."""
    used = [replay.generation for replay in ReplayBook(site.lake, site.tables).of(name)]
    return max([entry_of(site, name).generation, *used]) + 1


def build_epoch(site: Site, subject: Subject) -> Epoch:
    """Return the epoch to build up to: the live generation's, so that both can be compared."""
    noted = noted_epoch(site, subject.entry.name, subject.entry.generation)
    head = typed_head(site)
    return head if noted is None else Epoch(min(noted, head))


def _size(site: Site, name: str) -> InputSize:
    table = site.tables.open(site.lake.path(name))
    if table is None:
        return InputSize(name=name, rows=0, bytes=0, late=0)
    actions = pa.table(table.get_add_actions())
    dataset = dataset_of(table)
    late = dataset.count_rows(filter=pc.field(LATE)) if LATE in dataset.schema.names else 0
    return InputSize(
        name=name,
        rows=pc.sum(actions["num_records"]).as_py() or 0,
        bytes=pc.sum(actions["size_bytes"]).as_py() or 0,
        late=late,
    )
