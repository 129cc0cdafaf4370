"""What each kind of DDL does to a table of the lake, or why it holds it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lake.layers import read_whole, tail_name
from lake.layout import Lake, current_name
from pipeline.current.fold_policy import FoldPolicy
from pipeline.ddl.held_tables import Hold
from pipeline.ddl.messages import tell
from pipeline.ddl.steps import (
    Added,
    Dropped,
    Relabelled,
    Renamed,
    Retyped,
    SetAside,
    Step,
    apply,
    touches_rows,
)
from pipeline.order import NEEDED
from schemas.pg_types import MOST_DIMENSIONS, SourceColumn
from schemas.schema_change import parse_schema_change
from schemas.widening import common_type, followed_type
from tests.support.sources import ddl_rows
from tests.support.sources.ddl_rows import SOURCE, TABLE, Column, Folding, Item

ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int32()),
        "mood": ["ok", None],
        "_exact": ['{"mood": "x", "id": "y"}', None],
        "__unchanged": pa.array([["mood"], None], pa.list_(pa.string())),
    }
)


def of(name: str, modifier: int = -1, kind: str = "b") -> SourceColumn:
    return SourceColumn(name="c", type=name, modifier=modifier, kind=kind)


def numeric(precision: int, scale: int) -> SourceColumn:
    return of("numeric", ((precision << 16) | (scale & 0x7FF)) + 4)


def test_a_renamed_column_is_renamed_wherever_it_is_named() -> None:
    rows = apply(ROWS, [Renamed("mood", "state")])
    assert rows.column_names == ["id", "state", "_exact", "__unchanged"]
    assert rows["_exact"].to_pylist() == ['{"id":"y","state":"x"}', None]
    assert rows["__unchanged"].to_pylist() == [["state"], None]


@pytest.mark.parametrize(
    ("step", "column", "values"),
    [
        (Added("n", pa.int64(), 7), "n", [7, 7]),
        (Added("l", pa.list_(pa.string()), ["a"]), "l", [["a"], ["a"]]),
        (Added("mood", pa.string()), "mood", [None, None]),
        (Relabelled("mood", {"ok": "fine"}), "mood", ["fine", None]),
        (Retyped("id", pa.decimal128(12, 2)), "id", [1, 2]),
        (SetAside("id", pa.int32()), "id__int32", [1, 2]),
        (Dropped("mood"), "mood", ["ok", None]),
    ],
)
def test_each_step_keeps_what_rows_had(step: Step, column: str, values: list[object]) -> None:
    assert apply(ROWS, [step])[column].to_pylist() == values
    empty = apply(ROWS.schema.empty_table(), [step])
    assert empty.schema.field(column).type == apply(ROWS, [step]).schema.field(column).type


def test_only_steps_that_change_values_write_rows_anew() -> None:
    assert not touches_rows([Added("n", pa.int64()), Dropped("id")], ROWS.schema)
    assert not touches_rows([Retyped("id", pa.int32()), Renamed("no", "yes")], ROWS.schema)
    assert touches_rows([Added("n", pa.int64(), 1)], ROWS.schema)
    assert touches_rows([Added("n", pa.int32()), Retyped("n", pa.int64())], ROWS.schema)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (of("int2"), of("int8"), pa.int64()),
        (of("int8"), of("int4"), pa.int64()),
        (of("int4"), numeric(12, 2), pa.decimal128(12, 2)),
        (of("int4"), numeric(8, 2), None),
        (of("int8"), of("numeric"), pa.string()),
        (numeric(10, 2), numeric(14, 3), pa.decimal128(14, 3)),
        (numeric(10, 2), numeric(10, 3), pa.decimal128(11, 3)),
        (numeric(10, 2), numeric(10, 1), None),
        (numeric(10, 2), of("numeric"), None),
        (numeric(7, 0), numeric(5, -2), None),
        (numeric(5, -2), numeric(7, 0), pa.decimal128(7, 0)),
        (numeric(5, -2), numeric(6, -2), pa.decimal128(8, 0)),
        (numeric(5, -2), numeric(6, -3), None),
        (of("int4"), numeric(8, -2), None),
        (of("float4"), of("float8"), pa.float64()),
        (of("float8"), of("float4"), None),
        (of("varchar", 24), of("varchar", 44), pa.string()),
        (of("varchar", 24), of("varchar", 14), None),
        (of("text"), of("varchar", 14), None),
        (of("mood", kind="e"), of("text"), pa.string()),
        (of("bpchar", 14), of("text"), None),
        (of("timestamp", 3), of("timestamp"), pa.timestamp("us")),
        (of("timestamp"), of("timestamp", 0), None),
        (of("timestamp"), of("timestamptz"), None),
        (of("int4"), of("text"), None),
        (of("json"), of("jsonb"), None),
    ],
)
def test_types_are_followed_where_every_value_stays(
    old: SourceColumn, new: SourceColumn, kind: pa.DataType | None
) -> None:
    assert followed_type(old, new) == kind


def test_common_types_of_the_lake() -> None:
    assert common_type(pa.int16(), pa.int64()) == pa.int64()
    assert common_type(pa.list_(pa.int32()), pa.list_(pa.int64())) == pa.list_(pa.int64())
    assert common_type(pa.decimal128(38, 0), pa.decimal128(38, 10)) is None
    assert common_type(pa.int32(), pa.string()) is None
    assert common_type(pa.null(), pa.string()) == pa.string()


def told(item: Item) -> list[Hold]:
    """Return the holds that the messages of a log tell of the table."""
    rows = [{**entry, "epoch": 1} for entry in item.log]
    columns = ["epoch", "transaction_id", "counts", *NEEDED]
    messages = pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows])
    found = tell(messages, {str(entry["transaction_id"]) for entry in item.log})
    return [message.hold for message in found.get(TABLE, []) if message.hold is not None]


def test_a_table_is_followed_by_its_oid() -> None:
    item = Item()
    item.tell("describe")
    item.table = "public.elsewhere"
    item.tell()
    item.table = TABLE
    item.tell("create", oid=8)
    assert [hold.reason for hold in told(item)] == [
        "it is called public.elsewhere now: later changes are not captured"
    ]
    item.table, other = "public.third", Item(log=item.log)
    other.table = "public.third"
    other.tell("create", oid=9)
    other.table = TABLE
    other.tell(oid=9)
    assert told(item)[-1].reason == "another table has its name now"


def test_rows_that_leave_with_a_partition_are_noticed() -> None:
    item = Item()
    item.tell("describe", partitions=[70, 71])
    item.tell("create", oid=72, root=7, schema="public", table="part")
    item.tell("drop", oid=72, schema="public", table="part")
    item.tell("drop", oid=99, schema="public", table="nobodys")
    assert [hold.reason for hold in told(item)] == [
        "its partition public.part was dropped, with its rows"
    ]


def test_a_partition_that_is_partitioned_has_no_rows_to_take_away(lake: Lake) -> None:
    item = Item()
    item.tell("describe", partitions=[70])
    item.write("c", 1)
    item.tell("create", oid=72, root=7, schema="public", table="some", partitions=[])
    item.tell("create", oid=73, root=7, schema="public", table="part")
    item.tell(partitions=[70, 73])
    item.write("c", 2)
    folding = Folding(lake, item)
    folding.run(item.log)
    assert folding.held == {}
    assert folding.rows() == item.expected()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"rewritten": 4, "using": True}, "its values were computed anew (USING)"),
        ({"rewritten": 4}, "its values were computed anew (USING)"),
        ({"persistence": "u"}, "it is unlogged now: its changes are not in the WAL"),
        (
            {"identity": "i"},
            "its replica identity is neither DEFAULT nor FULL: deletes come without its key",
        ),
        ({"key": ["a"]}, "its primary key was (id) and is (a)"),
        ({"type_kind": "c"}, "a composite type of its columns has other attributes"),
        ({"partitions": []}, "a partition was taken away, with its rows"),
        ({"unlogged": [70]}, "a partition is unlogged: its changes are not in the WAL"),
        ({"partitions": [70, 71], "filled": [71]}, "a partition was attached that had rows"),
    ],
)
def test_what_cannot_be_followed_is_held_from_its_epoch_on(
    more: dict[str, object], reason: str, lake: Lake
) -> None:
    item = Item()
    item.tell("describe", partitions=[70])
    item.add("a", "int4")
    item.tell("describe", partitions=[70])
    item.write("c", 1)
    folding = Folding(lake, item)
    folding.run(item.log)
    known = len(item.log)
    item.write("u", 1, {2: 5})
    item.tell(**{"partitions": [70], **more})
    item.write("c", 2)
    folding.run(item.log[known:])
    hold = folding.held[TABLE]
    assert (hold.reason, hold.from_epoch) == (reason, 2)
    # As of the epoch before: not even the rows ahead of the DDL are taken in alone.
    assert folding.rows() == [{"id": 1, "a": None}]
    assert Hold.from_json(hold.to_json()) == hold


def test_changes_of_which_the_key_is_not_told_hold_their_table(lake: Lake) -> None:
    """Also where no message of DDL says so: the source may have no event triggers."""
    item = Item()
    item.write("c", 1)
    folding = Folding(lake, item)
    folding.run(item.log)
    known = len(item.log)
    item.untold = True
    item.write("c", 2)
    item.write("d", 1)
    folding.run(item.log[known:])
    assert folding.held[TABLE].reason == (
        "its replica identity does not have its key: deletes come without it"
    )
    assert folding.rows() == [{"id": 1}]


def test_labels_inside_of_a_composite_type_that_are_called_otherwise_hold_its_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = SourceColumn(name="", type="felt", kind="c")
    monkeypatch.setitem(ddl_rows.TYPES, "felt", (kind, "string"))
    item = Item()
    column = item.add("f", "felt")
    column.labels = {"70": "ok"}
    item.tell("describe")
    item.write("c", 1, {2: "(ok)"})
    column.labels = {"70": "ok", "71": "sad"}
    item.tell(type_kind="e")
    item.write("c", 2, {2: "(sad)"})
    folding = Folding(lake, item)
    folding.run(item.log)
    assert not folding.held
    known = len(item.log)
    column.labels = {"70": "fine", "71": "sad"}
    item.tell(type_kind="e")
    folding.run(item.log[known:])
    assert folding.held[TABLE].reason == "values of f are called otherwise: {'ok': 'fine'}"


@pytest.mark.parametrize("kind", ["c", "r", "m"])
def test_a_composite_or_range_type_that_is_called_otherwise_holds_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name in ("pair", "couple", "another"):
        made = SourceColumn(name="", type=name, kind=kind)
        monkeypatch.setitem(ddl_rows.TYPES, name, (made, "string"))
    item = Item()
    column = item.add("p", "pair")
    item.tell("describe")
    item.write("c", 1, {2: "(1)"})
    column.type = "couple"
    item.tell(tag="ALTER TYPE")
    item.write("c", 2, {2: "(2)"})
    folding = Folding(lake, item)
    folding.run(item.log)
    assert [row["p"] for row in folding.rows()] == ["(1)", "(2)"]
    assert not folding.held
    known = len(item.log)
    column.type = "another"
    item.tell(rewritten=4)
    folding.run(item.log[known:])
    assert folding.held[TABLE].reason == "column p was couple and is another"


@pytest.mark.parametrize("told", [{"kind": "describe", "tag": "DESCRIBE"}, {"kind": "alter"}])
def test_a_composite_type_that_became_another_one_untold_holds_its_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, told: dict[str, str]
) -> None:
    """While there were no event triggers, say: the next message tells of no rewrite either."""
    for name in ("pair", "triple"):
        made = SourceColumn(name="", type=name, kind="c")
        monkeypatch.setitem(ddl_rows.TYPES, name, (made, "string"))
    item = Item()
    column = item.add("p", "pair")
    item.tell("describe")
    item.write("c", 1, {2: "(1,2)"})
    column.type = "triple"
    item.tell(**told)
    folding = Folding(lake, item)
    folding.run(item.log)
    assert folding.held[TABLE].reason == "column p was pair and is triple"


def test_a_column_that_a_key_only_includes_is_none_of_it_in_newer_messages(lake: Lake) -> None:
    """Older triggers told of it as one: those that are put in their place hold nothing."""
    item = Item()
    item.add("a", "int4")
    item.tell("describe", key=["id", "a"])
    item.write("c", 1, {2: 3})
    item.tell("describe", key_alone=True)
    item.write("c", 2, {2: 4})
    folding = Folding(lake, item)
    folding.run(item.log)
    assert not folding.held
    known = len(item.log)
    item.tell(key=["id", "a"], key_alone=True)
    folding.run(item.log[known:])
    assert folding.held[TABLE].reason == "its primary key was (id) and is (id, a)"


def test_a_key_that_rows_may_share_for_a_while_holds_its_table(lake: Lake) -> None:
    item = Item()
    item.tell("describe", deferrable=False)
    item.write("c", 1)
    item.tell(deferrable=True)
    folding = Folding(lake, item)
    folding.run(item.log)
    assert "its primary key is DEFERRABLE" in folding.held[TABLE].reason


def test_a_message_that_the_triggers_did_not_write_tells_nothing(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """Any role of the source's database may write one: none of them may stop the source."""
    item = Item()
    item.tell("describe")
    item.write("c", 1)
    column: dict[str, object] = item.columns[0].told()
    for odd in (
        *({"columns": 7}, {"version": None}, {"oid": "x", "partitions": 5}, {"oid": []}),
        *({"version": 1e400}, {"version": True}, {"version": "2"}, {"version": 1.5}),
        *({"version": 2, "table": None}, {"schema": "\ud800"}),
        *(
            {"kind": []},
            {"table": {}},
            {"partitions": [[]]},
            {"partitions": {"a": 1}},
            {"key": "id"},
        ),
        *({"columns": [column | {"labels": []}]}, {"columns": [column | {"labels": {"1": 2}}]}),
        *({"columns": [column | {"name": 5}]}, {"columns": [column, column | {"attnum": {}}]}),
        *({"columns": [column | {"missing": 5}]}, {"columns": [[]]}, {"root": "7"}),
    ):
        item.tell(**odd)
    for text in (
        "",
        f'{{"version": 1{"0" * 5000}}}',
        "null",
        "[]",
        "7",
        "{",
        "[" * 100_000,
        '{"version": NaN}',
        "\ufffd\x00",
    ):
        item.hear(text)
    item.add("a", "int4", "5")
    item.write("c", 2, {2: 6})
    folding = Folding(lake, item)
    folding.run(item.log)
    assert not folding.held
    assert sorted(row["a"] for row in folding.rows()) == [5, 6]
    assert "did not write" in caplog.text


@pytest.mark.parametrize("dimensions", [7, 2**15 - 1, 10**30])
def test_an_array_has_no_more_dimensions_than_any_may_have(lake: Lake, dimensions: int) -> None:
    """A column may be declared with 32767, a message say anything: Arrow would end the process."""
    item = Item()
    item.tell("describe")
    item.write("c", 1)
    folding = Folding(lake, item)
    folding.run(item.log)
    known = len(item.log)
    column = Column(2, "a", "int4").told() | {"is_array": True, "dimensions": dimensions}
    item.tell(columns=[item.columns[0].told(), column])
    told = parse_schema_change(str(item.log[-1]["counts"]))
    assert told.columns[1].column.dimensions == MOST_DIMENSIONS
    item.write("c", 2)
    folding.run(item.log[known:])
    assert not folding.held
    assert folding.rows() == [{"id": 1, "a": None}, {"id": 2, "a": None}]


def test_a_message_of_a_later_version_holds_its_table_alone(lake: Lake) -> None:
    """The source goes on: anybody may have written it, in the name of any table."""
    item = Item()
    item.tell("describe")
    item.write("c", 1)
    folding = Folding(lake, item)
    folding.run(item.log)
    known = len(item.log)
    item.tell(version=7, table="nobodys")
    item.write("c", 2)
    folding.run(item.log[known:])
    assert not folding.held
    known = len(item.log)
    item.tell(version=7)
    item.write("c", 3)
    folding.run(item.log[known:])
    assert [*folding.held] == [TABLE]
    assert "a schema change of version 7" in folding.held[TABLE].reason
    assert len(folding.rows()) == 2


def test_without_messages_columns_are_known_by_their_rows(lake: Lake) -> None:
    """A renamed column is a new one, a wider one widens, another type holds the table."""
    item = Item()
    item.columns.append(Column(2, "a", "int4"))
    item.columns.append(Column(3, "b", "int4"))
    item.write("c", 1, {2: 1, 3: 1})
    item.write("c", 2, {2: 2, 3: 2})
    folding = Folding(lake, item)
    folding.run(item.log)
    item.columns[1].name, item.columns[2].type = "z", "int8"
    item.write("u", 1, {2: 10, 3: 2**40})
    folding.run(item.log[2:])
    assert folding.rows() == [
        {"id": 1, "a": None, "b": 2**40, "z": 10},
        {"id": 2, "a": 2, "b": 2, "z": None},
    ]
    item.columns[1].type = "text"
    item.write("u", 1, {2: "ten", 3: 1})
    folding.run(item.log[3:])
    assert folding.held[TABLE].diff == ("z int32 -> z string",)


def test_a_column_that_is_generated_no_longer_holds_its_table(lake: Lake) -> None:
    """Older rows have values of it, which nobody sent."""
    item, twice = Item(), Column(2, "twice", "int4")
    item.tell("describe", columns=[item.columns[0].told(), {**twice.told(), "generated": "s"}])
    item.write("c", 1)
    item.columns.append(twice)
    item.tell()
    item.write("c", 2, {2: 4})
    folding = Folding(lake, item)
    folding.run(item.log)
    reason = "column twice was generated: its values were not captured"
    assert folding.held[TABLE].reason == reason


def test_a_column_that_rows_brought_before_its_ddl_was_told_keeps_their_values(lake: Lake) -> None:
    item = Item()
    item.tell("describe")
    item.write("c", 1)
    item.columns.append(Column(2, "note", "text"))
    item.write("c", 2, {2: "x"})
    folding = Folding(lake, item)
    folding.run(item.log)
    known = len(item.log)
    item.tell("describe")
    item.write("c", 3, {2: "y"})
    folding.run(item.log[known:])
    assert folding.held == {}
    assert folding.rows() == item.expected()


@pytest.mark.parametrize(
    ("attnum", "missing"), [(2, None), (3, "x")], ids=["renamed", "with_a_default"]
)
def test_a_column_that_came_untold_holds_its_table_where_older_rows_have_values(
    attnum: int, missing: str | None, lake: Lake
) -> None:
    item = Item()
    item.columns.append(Column(2, "name", "text"))
    item.tell("describe")
    item.write("c", 1, {2: "a"})
    if attnum == 2:
        item.columns.pop()
    item.columns.append(Column(attnum, "title", "text", missing))
    item.write("c", 2, {attnum: "b"})
    folding = Folding(lake, item)
    folding.run(item.log)
    known = len(item.log)
    item.tell("describe")
    folding.run(item.log[known:])
    assert folding.held[TABLE].reason == "column title came before any DDL told of it"
    assert [row["title"] for row in folding.rows()] == [None, "b"]


def test_a_rename_is_known_without_an_earlier_message(lake: Lake) -> None:
    item = Item()
    item.columns.append(Column(2, "a", "int4"))
    item.write("c", 1, {2: 1})
    folding = Folding(lake, item)
    folding.run(item.log)
    item.columns[1].name = "z"
    item.tell(renamed=2)
    folding.run(item.log[1:])
    assert folding.rows() == [{"id": 1, "z": 1}]


def test_p4_a_row_right_behind_ddl_keeps_its_value_whatever_number_it_has(lake: Lake) -> None:
    """PostgreSQL may send it first where one of the two is within a savepoint."""
    item = Item()
    item.tell("describe")
    item.write("c", 1)
    item.add("a", "int4")
    item.write("c", 2, {2: 5})
    ddl, row = item.log[-2:]
    shared = {name: ddl[name] for name in ("transaction_id", "lsn", "commit_order")}
    row |= shared
    ddl["total_order"], row["total_order"] = 8, 7
    folding = Folding(lake, item)
    folding.run(item.log[:2])
    folding.run(item.log[2:])
    assert folding.rows() == item.expected() == [{"id": 1, "a": None}, {"id": 2, "a": 5}]


def test_an_excluded_column_stays_out(lake: Lake) -> None:
    """The triggers tell of every column of the source; the connector does not send all."""
    item = Item()
    item.write("c", 1)
    item.columns.append(Column(2, "secret", "text", missing="x"))
    item.tell("describe")
    item.columns[1].name = "hidden"
    item.tell(renamed=2)
    item.columns.pop()
    item.write("c", 2)
    folding = Folding(lake, item)
    folding.run(item.log[:1])
    folding.run(item.log[1:])
    assert folding.rows() == [{"id": 1}, {"id": 2}]


def test_p4_a_table_with_a_tail_changes_its_columns(lake: Lake) -> None:
    """The tail is folded before the base is written anew, and no reader is led back behind it."""
    item = Item()
    item.tell("describe")
    item.add("a", "int4", "1")
    item.write("c", 1, {2: 1})
    folding = Folding(lake, item, FoldPolicy(direct_bytes=0, freshness_s=10_000.0))
    folding.run(item.log)
    known = len(item.log)
    item.write("u", 1, {2: 5})
    item.write("c", 2, {2: 6})
    folding.run(item.log[known:])
    name = current_name(SOURCE, TABLE)
    assert set(folding.at) == {name, tail_name(name)}
    known = len(item.log)
    item.columns[1].name = "b"
    item.tell()
    item.write("u", 2, {2: 7})
    folding.run(item.log[known:])
    after = folding.at | folding.current.moved()
    rows = read_whole(lake, folding.tables, name, at=after)
    assert rows is not None
    assert sorted(rows.to_pylist(), key=lambda row: row["id"]) == item.expected()
    known = len(item.log)
    item.write("u", 1, {2: 8})
    folding.run(item.log[known:])
    rows = read_whole(lake, folding.tables, name, at=folding.at)
    assert rows is not None
    assert sorted(rows.to_pylist(), key=lambda row: row["id"]) == item.expected()
    folding.current.close()


def test_a_renamed_label_is_renamed_in_every_row(lake: Lake) -> None:
    item = Item()
    item.columns.append(Column(2, "mood", "mood", labels={"8": "ok", "9": "sad"}))
    item.tell("describe")
    item.write("c", 1, {2: "ok"})
    item.write("c", 2, {2: "sad"})
    item.columns[1].labels = {"8": "fine", "9": "sad", "10": "happy"}
    item.tell(type_kind="e")
    item.write("c", 3, {2: "happy"})
    folding = Folding(lake, item)
    folding.run(item.log)
    assert [row["mood"] for row in folding.rows()] == ["fine", "sad", "happy"]


def test_an_enum_that_is_called_otherwise_holds_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("feeling", "another"):
        kind = SourceColumn(name="", type=name, kind="e")
        monkeypatch.setitem(ddl_rows.TYPES, name, (kind, "string"))
    item = Item()
    item.columns.append(Column(2, "mood", "mood", labels={"8": "ok", "9": "sad"}))
    item.tell("describe")
    item.write("c", 1, {2: "ok"})
    item.columns[1].type = "feeling"
    item.tell(type_kind="e")
    item.write("c", 2, {2: "sad"})
    folding = Folding(lake, item)
    folding.run(item.log)
    assert [row["mood"] for row in folding.rows()] == ["ok", "sad"]
    assert folding.held == {}
    known = len(item.log)
    item.columns[1].type, item.columns[1].labels = "another", {"18": "ok", "19": "sad"}
    item.tell()
    folding.run(item.log[known:])
    assert folding.held[TABLE].reason == "column mood was feeling and is another"
