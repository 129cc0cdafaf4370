"""`corrections/<projection>`: rows that were final, and changed all the same.

A row of a final projection that had been given out, or that would have been, had it been there, and
that is another one now: a fact came later than its end, or a table that is joined changed. Each is
a row of the key, what the row was, what it is, and the inputs that brought it.

They are committed before the table is: by a guard of their own, once. Whoever dies in between
leaves an epoch that the next run takes in first, exactly up to there, so that nothing is written
twice and nothing is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Epoch
from lake.datasets import dataset_of
from lake.guarded_commits import mark_of
from lake.layout import Lake
from lake.table_columns import UTC_MICROS
from lake.tables import Tables, greatest
from lake.writer import ArrowWriter, Guard
from pipeline.typed.columns import EPOCH, TIME
from projections.run.input_rows import table_of
from projections.run.relations import LakeCatalog
from projections.run.targets import Target
from projections.sql.operators.shape import END, InputKind, Plan

SCHEMA = pa.schema(
    [
        ("projection", pa.string()),
        ("key", pa.string()),
        ("old", pa.string()),
        ("new", pa.string()),
        ("cause", pa.string()),
        ("epoch", pa.int64()),
        ("at", UTC_MICROS),
    ]
)
_Row = dict[str, object]


def corrected(
    changes: pa.Table, key: Sequence[str], before_us: int | None, *, unique: bool = False
) -> Iterator[tuple[_Row, _Row | None, _Row | None]]:
    """Yield key, old and new row of what had ended at a watermark before these changes.

    `changes` have the column `END` and weights. A row that ends later than that and takes the place
    of another of its key is none, but where keys are `unique`: it is then the same row, which a
    fact that came late made longer, as it does a session.
    """
    if before_us is None or END not in changes.schema.names:
        return
    ended = pc.or_(pc.less_equal(changes[END], before_us), pc.equal(changes["_w"], -1))
    gone: dict[tuple[object, ...], _Row] = {}
    came: dict[tuple[object, ...], _Row] = {}
    for row in changes.filter(ended).to_pylist():
        side = gone if row["_w"] < 0 else came
        side[tuple(row[name] for name in key)] = row
    later = {
        tuple(row[name] for name in key): row
        for row in changes.filter(pc.invert(ended)).to_pylist()
    }
    replaced = set() if unique else later.keys()
    if unique:
        came |= {each: row for each, row in later.items() if each in gone}
    for each in dict.fromkeys([*gone, *came]):
        if each not in replaced:
            yield dict(zip(key, each, strict=True)), gone.get(each), came.get(each)


class Corrections:
    """Writes the corrections of one lake's projections. For one thread."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)

    def begun(self, plan: Plan, target: Target) -> Epoch | None:
        """Return the newest epoch whose corrections are written; its rows may not be."""
        table = self._tables.open(self._path(plan)) if _is_corrected(plan, target) else None
        done = None if table is None else mark_of(table, _app(target))
        return None if done is None else Epoch(done)

    def write(
        self,
        plan: Plan,
        target: Target,
        catalog: LakeCatalog,
        changes: pa.Table | None,
        before_us: int | None,
        after: Epoch | None,
        epoch: Epoch,
    ) -> None:
        """Write what changes of a target, if any, correct of what had ended at `before_us`.

        Their cause came in the epochs (after, epoch]. A generation that is built beside the live
        one corrects nothing that anybody was given.
        """
        if changes is None or not _is_corrected(plan, target):
            return
        found = [*corrected(changes, plan.key, before_us, unique=plan.tree.unique)]
        if not found:
            return
        cause, now = self._cause(plan, catalog, before_us or 0, after or Epoch(0), epoch), _now()
        rows = [
            {
                "projection": plan.name,
                "key": _json(key),
                "old": None if old is None else _json(old),
                "new": None if new is None else _json(new),
                "cause": cause,
                "epoch": int(epoch),
                "at": now,
            }
            for key, old, new in found
        ]
        table = pa.Table.from_pylist(rows, SCHEMA)
        self._writer.append(self._path(plan), table, Guard(_app(target), epoch))

    def _cause(
        self, plan: Plan, catalog: LakeCatalog, before_us: int, after: Epoch, epoch: Epoch
    ) -> str:
        """Name the streams that brought rows older than the watermark, and tables that changed."""
        moment = pa.scalar(before_us, UTC_MICROS)
        new = (pc.field(EPOCH) > int(after)) & (pc.field(EPOCH) <= int(epoch))
        names: list[str] = []
        for one in plan.inputs:
            if one.kind is InputKind.STREAM:
                members = catalog.members(one.name)
                late = any(self._has(name, new & (pc.field(TIME) < moment)) for name in members)
            else:
                table = self._tables.open(self._lake.path(table_of(one)))
                late = table is not None and (greatest(table, EPOCH) or 0) > after
            names += [one.name] if late else []
        return ", ".join(dict.fromkeys(names))

    def _has(self, name: str, where: pc.Expression) -> bool:
        table = self._tables.open(self._lake.path(name))
        return table is not None and dataset_of(table).count_rows(filter=where) > 0

    def _path(self, plan: Plan) -> str:
        return self._lake.path(f"corrections/{plan.name}")


def _is_corrected(plan: Plan, target: Target) -> bool:
    return plan.final and target.name == f"projection/{plan.name}"


def _app(target: Target) -> str:
    return f"corrections/{target.app_id}"


def _json(row: _Row) -> str:
    shown = {name: _finite(value) for name, value in row.items() if not name.startswith("_")}
    return json.dumps(shown, ensure_ascii=False, default=_text, allow_nan=False)


def _finite(value: object) -> object:
    """Return a value without floats that JSON has no numbers for: they are texts."""
    match value:
        case float() if not math.isfinite(value):
            return json.dumps(value)
        case list():
            return [_finite(each) for each in value]
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case _:
            return value


def _text(value: object) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _now() -> datetime:
    return datetime.now(UTC)
