"""What DDL of the source means for its table in the lake: followed step by step, or held.

    log rows of a table + messages of DDL -> plan -> Planned(evolution, hold)

A change that leaves every value what it was is followed: `Evolution` brings older rows along. Any
other one holds the table where it stands, with the difference and the command that releases it;
other tables go on. Messages are read from the log and never from what the table holds now, so that
a repeated epoch plans the same.

Where the source has no event trigger there are no messages. Columns are then known by the schemas
of the rows: a renamed column is a new one beside one that ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.ddl.held_tables import Hold
from pipeline.ddl.steps import (
    NOTHING,
    Added,
    Dropped,
    Evolution,
    Order,
    Relabelled,
    Renamed,
    Retyped,
    Step,
    in_turn,
    shape_after,
)
from pipeline.order import high_of, low_of, places_of
from schemas.columns import envelope_shape, may_lack_key
from schemas.lake_columns import OF_CHANGES, captured_name, folded
from schemas.pg_exact import EXACT
from schemas.pg_text import text_to_lake
from schemas.pg_types import SourceColumn, lake_type
from schemas.records import Operation
from schemas.registry import SchemaLookup
from schemas.schema_change import (
    REWRITE_TYPE,
    SchemaChange,
    TableColumn,
)
from schemas.widening import common_type, followed_type, wider_type

Shape = dict[str, pa.DataType]
# The connector asks the database for the key, which may be ahead of the stream.
_KEYLESS = "a change came without its key, which was renamed or dropped right after it"
_UNTOLD = "its replica identity does not have its key: deletes come without it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A message about one table: its place, what it says, and what was known before (if any).

    `named` are the columns that earlier messages told of, without letter case. `hold` is set when
    the message itself ends the table as it was: dropped, renamed, taken over.
    """

    order: Order
    change: SchemaChange
    before: SchemaChange | None
    named: frozenset[str] = frozenset()
    hold: Hold | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """How to fold a table's rows: brought along by `evolution`; not at all with a `hold`."""

    evolution: Evolution
    hold: Hold | None = None


def plan(
    told: Sequence[Told], rows: pa.Table, stored: pa.Schema | None, schemas: SchemaLookup
) -> Planned:
    """Plan one table's fold.

    `told` are the messages about it, `rows` its log rows, both of the range to fold. `stored` are
    the table's columns at the last committed epoch, None for a table that is not there yet.
    """
    shape, begin = first_shape(rows, stored, schemas)
    steps: list[tuple[Order, tuple[Step, ...]]] = []
    for message in sorted(told, key=lambda message: message.order):
        if message.order < begin:
            continue
        found = message.hold or (_compared(message, shape) if shape else ())
        if isinstance(found, Hold):
            return Planned(evolution=NOTHING, hold=found)
        if found:
            steps.append((message.order, found))
            shape = shape_after(shape, found)
    return _fitted(Evolution(steps=tuple(steps)), rows, shape, schemas)


def first_shape(
    rows: pa.Table, stored: pa.Schema | None, schemas: SchemaLookup
) -> tuple[Shape, Order]:
    """Return the columns from which a plan starts, and where in the stream they hold.

    What DDL did to a table before it had rows here concerns nobody.
    """
    if stored is not None:
        return {item.name: item.type for item in stored}, (-1, -1)
    for order, shape in shapes_of(rows, schemas):
        return shape, order
    return {}, (-1, -1)


def _compared(message: Told, shape: Shape) -> tuple[Step, ...] | Hold:
    """Turn the difference between two descriptions of a table into steps, or a hold."""
    after = message.change.by_attnum()
    before = known_columns(message, shape)
    if isinstance(before, Hold):
        return before
    reason = _unfollowed(message, before, after)
    if reason is not None:
        return hold_of(message, reason)
    steps: list[Step] = []
    for attnum, old in before.items():
        new = after.get(attnum)
        if old.name not in shape:
            continue  # Excluded at the source.
        if new is None:
            steps.append(Dropped(old.name))
            continue
        found = _column_steps(message, old, new, shape)
        if isinstance(found, Hold):
            return found
        steps.extend(found)
    added = _added(message, before, shape)
    return added if isinstance(added, Hold) else in_turn([*steps, *added])


def _added(message: Told, before: Mapping[int, TableColumn], shape: Shape) -> list[Step] | Hold:
    """Return the steps of columns that a message is the first to tell of, or a hold."""
    if message.before is None:
        return []  # What is not here may be excluded; rows will tell.
    steps: list[Step] = []
    for attnum, new in message.change.by_attnum().items():
        if attnum in before:
            continue
        if any(old.attnum == attnum for old in message.before.columns):
            return hold_of(
                message, f"column {new.name} was generated: its values were not captured"
            )
        if came_untold(message, new.name, shape):
            if new.default or new.missing is not None:
                return hold_of(message, f"column {new.name} came before any DDL told of it")
            continue
        step = _first_told(message, new)
        if isinstance(step, Hold):
            return step
        steps.append(step)
    return steps


def _first_told(message: Told, new: TableColumn) -> Added | Hold:
    if message.change.rewritten and new.default and new.missing is None:
        return hold_of(message, f"each row got a value of its own in the new column {new.name}")
    value = None
    if new.missing is not None:
        read = text_to_lake([new.column], pa.table({new.name: [new.missing]}))
        if EXACT in read.schema.names:
            return hold_of(message, f"the default of {new.name} fits no column of the lake")
        value = read[new.name][0].as_py()
    return Added(new.name, lake_type(new.column), value)


def came_untold(message: Told, name: str, shape: Shape) -> bool:
    """Say whether rows brought a column that no message has told of until now.

    What the lake has of it is theirs. A column that was told of and dropped is no such one.
    """
    if message.before is None or folded(name) in message.named:
        return False
    return folded(name) in {folded(each) for each in shape}


def known_columns(message: Told, shape: Shape) -> dict[int, TableColumn] | Hold:
    """Return the columns before the change; without an earlier message, by their names."""
    if message.before is not None:
        return message.before.by_attnum()
    after = message.change.by_attnum()
    known = {attnum: column for attnum, column in after.items() if column.name in shape}
    renamed = after.get(message.change.renamed)
    if renamed is None or renamed.name in shape:
        return known
    gone = [name for name in shape if name not in {column.name for column in after.values()}]
    gone = [name for name in gone if name not in OF_CHANGES]
    if len(gone) != 1:
        return hold_of(
            message, f"a column is called {renamed.name} now; its name before is unknown"
        )
    old = replace(renamed, column=replace(renamed.column, name=captured_name(gone[0])))
    return known | {renamed.attnum: old}


def _unseen(change: SchemaChange) -> str | None:
    """Say why changes of a table's rows would not tell from now on what became of each."""
    if change.persistence == "u":
        return "it is unlogged now: its changes are not in the WAL"
    if change.identity in ("i", "n"):
        return "its replica identity is neither DEFAULT nor FULL: deletes come without its key"
    if change.deferrable:
        return "its primary key is DEFERRABLE: an update may give a row the key of another"
    return None


def _unfollowed(
    message: Told, before: Mapping[int, TableColumn], after: Mapping[int, TableColumn]
) -> str | None:
    """Name what in a change of the whole table cannot be followed."""
    change, known = message.change, message.before
    if (reason := _unseen(change)) is not None:
        return reason
    if known is not None and known.key:
        names = {
            column.name: after[attnum].name for attnum, column in before.items() if attnum in after
        }
        key = tuple(names.get(name, name) for name in known.key)
        if change.key_alone and not known.key_alone:
            key = key[: len(change.key)]
        if set(key) != set(change.key):
            return f"its primary key was ({', '.join(key)}) and is ({', '.join(change.key)})"
    if change.rewritten & REWRITE_TYPE:
        retyped = any(
            before[attnum].column != after[attnum].column for attnum in before.keys() & after.keys()
        )
        if change.using or not retyped:
            return "its values were computed anew (USING)"
    if change.type_kind == "c":
        return "a composite type of its columns has other attributes"
    if known is not None and known.partitions - change.partitions:
        return "a partition was taken away, with its rows"
    if known is not None and change.unlogged - known.unlogged:
        return "a partition is unlogged: its changes are not in the WAL"
    arrived = change.partitions - (known.partitions if known is not None else frozenset())
    if change.filled is not None and arrived & change.filled:
        return "a partition was attached that had rows"
    return None


def _column_steps(
    message: Told, old: TableColumn, new: TableColumn, shape: Shape
) -> list[Step] | Hold:
    steps: list[Step] = []
    stored = shape[old.name]
    if old.name != new.name:
        if came_untold(message, new.name, shape):
            return hold_of(message, f"column {new.name} came before any DDL told of it")
        steps.append(Renamed(old.name, new.name))
    # Another one leaves new rows. What was not told (there were no triggers then) may have, too.
    renamed = message.change.tag == "ALTER TYPE" and not message.change.rewritten & REWRITE_TYPE
    kind = followed_type(_as_called_now(old, new, renamed), new.column)
    if kind is None:
        return hold_of(message, f"column {new.name} was {old.declared} and is {new.declared}")
    target = stored_type(old, kind, stored)
    if target is None:
        return hold_of(message, f"column {new.name} is {stored}, which {new.declared} cannot hold")
    if target != stored:
        steps.append(Retyped(new.name, target))
    labels = {
        label: new.labels[oid]
        for oid, label in old.labels.items()
        if oid in new.labels and new.labels[oid] != label
    }
    if labels and (new.column.is_array or new.column.kind != "e"):
        return hold_of(message, f"values of {new.name} are called otherwise: {labels}")
    if labels:
        steps.append(Relabelled(new.name, labels))
    return steps


def _as_called_now(old: TableColumn, new: TableColumn, renamed: bool) -> SourceColumn:
    """Return the old type under the name that it has now.

    Labels with their oids are one enum's. A composite or range type is the same one where a message
    tells that it is `renamed` at most.
    """
    kinds = {old.column.kind, new.column.kind}
    if kinds == {"e"}:
        known = bool(old.labels) and old.labels.keys() <= new.labels.keys()
    else:
        known = len(kinds) == 1 and kinds <= {"c", "r", "m"} and renamed
    if known:
        return replace(old.column, type=new.column.type)
    return old.column


def stored_type(old: TableColumn, kind: pa.DataType, stored: pa.DataType) -> pa.DataType | None:
    """Return the type that the lake's column has once its values are of `kind`.

    A masked or hashed column is of another type here than there: it stays. None where no type
    holds what the lake has: values that were wider than the source's own before the change.
    """
    if common_type(stored, lake_type(old.column)) != stored:
        return stored
    return wider_type(stored, kind)


def hold_of(message: Told, reason: str) -> Hold:
    """Hold a table at a message, with the columns before and after."""
    before = {c.attnum: c for c in message.before.columns} if message.before is not None else {}
    after = {c.attnum: c for c in message.change.columns}
    return Hold(
        order=message.order,
        reason=reason,
        diff=tuple(
            f"{_declared(before.get(attnum))} -> {_declared(after.get(attnum))}"
            for attnum in sorted(before.keys() | after.keys())
            if _declared(before.get(attnum)) != _declared(after.get(attnum))
        ),
    )


def _declared(column: TableColumn | None) -> str:
    return "nothing" if column is None else f"{column.name} {column.declared}"


def _fitted(evolution: Evolution, rows: pa.Table, shape: Shape, schemas: SchemaLookup) -> Planned:
    """Bring all rows and the table to common types; hold where there is none.

    With messages that changes nothing but narrower integers. Without them it is all that is known.
    """
    for keyless, reason in ((_keyless(rows), _KEYLESS), (_untold(rows, schemas), _UNTOLD)):
        if keyless.num_rows:
            at = min(places_of(keyless))
            return Planned(evolution=NOTHING, hold=Hold(order=at, reason=reason))
    if not evolution.steps and _of_the_columns(rows, shape, schemas):
        return Planned(evolution=evolution)
    types = dict(shape)
    needed: Shape = {}
    for order, own in shapes_of(rows, schemas):
        passed = tuple(step for at, steps in evolution.steps if at > order for step in steps)
        for name, kind in shape_after(own, passed).items():
            known = types.setdefault(name, kind)
            common = common_type(known, kind)
            if common is None:
                change = f"{name} {known} -> {name} {kind}"
                reason = f"column {name} was {known} and is {kind}"
                return Planned(
                    evolution=NOTHING, hold=Hold(order=order, reason=reason, diff=(change,))
                )
            if known != common or kind != common:
                needed[name] = types[name] = common
    return Planned(evolution=replace(evolution, types=needed))


def _of_the_columns(rows: pa.Table, shape: Shape, schemas: SchemaLookup) -> bool:
    """Say whether all columns of all rows are those of the table, as nearly always.

    Then it makes no difference in which order schemas came, which is dear to tell for many tables.
    """
    ids = pc.unique(rows["schema_id"]).to_pylist()
    return None not in ids and all(
        shape.get(item.name) == item.type
        for schema_id in ids
        for item in envelope_shape(schemas.schema(schema_id)).schema
    )


def _keyless(rows: pa.Table) -> pa.Table:
    """Return the rows that tell of one row of the source and do not say which."""
    if not rows["key_schema_id"].null_count:
        return rows.slice(0, 0)
    unnamed = pc.is_null(rows["key_schema_id"])
    return rows.filter(pc.and_(unnamed, pc.not_equal(rows["operation"], Operation.TRUNCATE.value)))


def _untold(rows: pa.Table, schemas: SchemaLookup) -> pa.Table:
    """Return the rows of which the connector says that their key may be missing in a delete."""
    ids = pc.unique(rows["key_schema_id"]).drop_null().to_pylist()
    untold = [each for each in ids if may_lack_key(schemas.schema(each))]
    return rows.filter(pc.is_in(rows["key_schema_id"], pa.array(untold, pa.int32())))


def shapes_of(rows: pa.Table, schemas: SchemaLookup) -> Iterable[tuple[Order, Shape]]:
    """Return each schema's columns with the place of its first row, in the stream's order."""
    valid = rows["key_schema_id"]
    keyed = rows.filter(pc.is_valid(valid)) if valid.null_count else rows
    if keyed.num_rows == 0:
        return []
    high, low = high_of(keyed), low_of(keyed)
    found: list[tuple[Order, Shape]] = []
    for schema_id in pc.unique(keyed["schema_id"]).to_pylist():
        own = pc.equal(keyed["schema_id"], schema_id)
        first = pc.min(pc.filter(high, own))
        firsts = pc.filter(low, pc.and_(own, pc.equal(high, first)))
        shape = envelope_shape(schemas.schema(schema_id)).schema
        order = (first.as_py(), pc.min(firsts).as_py())
        found.append((order, {item.name: item.type for item in shape}))
    return sorted(found, key=lambda each: each[0])
