"""States whose files are too large for this process: executors run a query over some files each.

Executors hide the rows of their files that a layer stands over; the layers' own rows are few, and
are asked here. A query whose answers for parts of the rows add up has the same answer either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kernel.errors import TooLarge
from lake.collecting import Limit
from lake.executor_rows import RowTasks
from pipeline.verification.lake_state import LakeState, Layer
from pipeline.verification.state_query import StateQuery

PART_ROWS = 500_000
HASHES = Limit(what="the hashes of ranges", most_bytes=256 * 2**20)
_HIDDEN = "__hidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeStates:
    """Who asks states whose files have more than `most_bytes`."""

    most_bytes: int
    tasks: RowTasks

    def answers(self, query: StateQuery) -> list[pa.Table] | None:
        """Return what a query says of each part of a state; None where this process is to ask."""
        base = query.state.base
        if base is None or (files := self.files(base, query.wanted(base.schema))) is None:
            return None
        parts = tuple(parts_of(base, files))
        task = PartQuery(query=replace(query, state=_hiding(query)), parts=parts)
        try:
            found = self.tasks.of_parts(task, len(parts), HASHES)
        except TooLarge:
            return None
        if found is None:
            return None
        rest = [_of_layers(query).table()] if query.state.layers else []
        return [*found.values(), *rest]

    def files(self, rows: ds.Dataset, where: pc.Expression | None) -> list[ds.Fragment] | None:
        """Return the files that may have wanted rows; None where these are small or no files."""
        if not isinstance(rows, ds.FileSystemDataset):
            return None
        files = [*rows.get_fragments(where)]
        sizes = rows.filesystem.get_file_info([file.path for file in files])
        size = sum(info.size or 0 for info in sizes)
        return files if size > self.most_bytes else None


def parts_of(
    rows: ds.FileSystemDataset, files: Sequence[ds.Fragment], *, most: int = PART_ROWS
) -> list[ds.FileSystemDataset]:
    """Cut files into datasets of about `most` rows; a file of several row groups may be cut."""
    parts: list[list[ds.Fragment]] = [[]]
    held = 0
    for file in files:
        for group in file.split_by_row_group():
            count = sum(each.num_rows for each in group.row_groups)
            if parts[-1] and held + count > most:
                parts.append([])
                held = 0
            parts[-1].append(group)
            held += count
    return [
        ds.FileSystemDataset(part, rows.schema, rows.format, rows.filesystem)
        for part in parts
        if part
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartQuery:
    """Runs a query over one part of a state's files; see `PartRows`."""

    query: StateQuery
    parts: Sequence[ds.Dataset]

    def __call__(self, number: int) -> pa.Table:
        """Ask one part."""
        state = replace(self.query.state, base=self.parts[number])
        return replace(self.query, state=state).table()


def _hiding(query: StateQuery) -> LakeState:
    """Return a state without a base that hides the keys of all layers, and keeps their types."""
    state = query.state
    if not state.layers:
        return replace(state, base=None)
    keys = pa.concat_tables(_keys_of(state, layer) for layer in state.layers)
    columns = {
        name: keys[name] if name in state.key else pa.nulls(keys.num_rows, state.kind_of(name))
        for name in query.columns
    }
    hidden = pa.array([True] * keys.num_rows, pa.bool_())
    rows = pa.table({**columns, _HIDDEN: hidden})
    return replace(state, base=None, layers=(Layer(rows=rows, deleted=_HIDDEN),))


def _keys_of(state: LakeState, layer: Layer) -> pa.Table:
    rows = layer.rows if isinstance(layer.rows, pa.Table) else layer.rows.to_table()
    return rows.select(list(state.key)).cast(
        pa.schema([(name, state.kind_of(name)) for name in state.key])
    )


def _of_layers(query: StateQuery) -> StateQuery:
    """Return the query over the layers alone, types kept."""
    base = query.state.base
    assert base is not None, "a state without a base is small"
    return replace(query, state=replace(query.state, base=ds.dataset(base.schema.empty_table())))
