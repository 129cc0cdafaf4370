"""`infinity` and the moment that stands for it are one key: no row of them takes another along."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernel.errors import SchemaViolation
from kernel.positions import Epoch
from lake.datasets import dataset_of
from lake.executor_tasks import Executors, TasksHere
from lake.layers import read_whole
from lake.layout import Lake, current_name
from lake.table_columns import CHANGES
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.current import image_stager
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.tables import CurrentTables
from pipeline.installs.staging import Staging
from pipeline.log.large_folds import LogRows, slices
from schemas.pg_exact import EXACT
from schemas.pg_types import SourceColumn
from schemas.registry import MemoryRegistry
from schemas.wire import frame
from tests.support.lake.folding import AT

SOURCE, TABLE = "shop", "public.prices"
NAME = current_name(SOURCE, TABLE)
LAST, INFINITE, MINUS, FIRST = 2932896, 2**31 - 1, -(2**31), -719162
"""Days since 1970 as the connector sends them: 9999-12-31, both infinities, 0001-01-01."""
_DAY = {"type": "int", "connect.name": "io.debezium.time.Date"}
_ROW = [{"name": "id", "type": "long"}, {"name": "till", "type": _DAY}]
_VALUE = {"type": "record", "name": "Value", "fields": [*_ROW, {"name": "n", "type": "int"}]}
_ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", _VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ],
}
_KEY = {"type": "record", "name": "Key", "fields": _ROW}
COLUMNS = (
    SourceColumn(name="id", type="int8", not_null=True),
    SourceColumn(name="till", type="date", not_null=True),
    SourceColumn(name="n", type="int4"),
)
MERGED = FoldPolicy(direct_bytes=2**40)
TAILED = FoldPolicy(direct_bytes=-1, freshness_s=1e9, longest_s=1e9, share=1e9)
_PLAIN: dict[str, object] = {
    "table": TABLE,
    "total_order": 1,
    "snapshot": False,
    "committed_at": AT,
    "event_time": AT,
    "schema_id": 1,
    "key_schema_id": 2,
    "topic": "t",
    "partition": 0,
    "ingested_at": AT,
    "closed_late": False,
}
Did = tuple[str, int, int]
"""Operation, `till` in days, and `n`."""


def _bytes(number: int, schema: object, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return frame(number, out.getvalue())


def changes(done: Sequence[Did], first: int) -> pa.Table:
    """Lay changes of the row 1 out as log rows."""
    rows = []
    for order, (op, till, n) in enumerate(done, start=first):
        key = {"id": 1, "till": till}
        after = None if op == "d" else {**key, "n": n}
        rows.append(
            _PLAIN
            | dict.fromkeys(("lsn", "commit_order", "offset"), order)
            | {
                "operation": op,
                "transaction_id": str(order),
                "key": _bytes(2, _KEY, key),
                "value": _bytes(1, _ENVELOPE, {"before": None, "after": after, "op": op}),
            }
        )
    return pa.Table.from_pylist(rows, schema=CHANGES)


class Prices:
    """One captured table with the key (id, till), folded epoch by epoch."""

    def __init__(self, lake: Lake, policy: FoldPolicy, *, soft: bool = False) -> None:
        registry = MemoryRegistry()
        registry.register("prices-value", json.dumps(_ENVELOPE))
        registry.register("prices-key", json.dumps(_KEY))
        self.lake, self._epochs, self._order = lake, 0, 1
        self.current = CurrentTables(
            lake,
            Tables(),
            registry,
            policy=policy,
            soft_deletes=lambda source, table: soft,
            executors=Executors(tasks=TasksHere()),
        )

    def fold(self, *done: Did) -> None:
        """Fold changes as one epoch."""
        self._epochs += 1
        rows = changes(done, self._order)
        self._order += len(done)
        self.current.fold(SOURCE, TABLE, rows, Epoch(self._epochs))

    def fold_large(self, *done: Did) -> None:
        """Fold changes as a large transaction: unread, by executors."""
        self._epochs += 1
        tables, path = Tables(), self.lake.path(f"log/changes/{self._epochs}")
        log = tables.ensure(path, CHANGES)
        ArrowWriter(tables).append(path, changes(done, self._order), Guard("log", Epoch(1)))
        log.update_incremental()
        self._order += len(done)
        rows = LogRows(dataset_of(log), pc.scalar(True))
        self.current.fold_large(SOURCE, TABLE, rows, Epoch(self._epochs))

    def rows(self) -> list[tuple[str, int, str | None]]:
        """Return day, `n` and `_exact` of what is there."""
        found = read_whole(self.lake, Tables(), NAME)
        assert found is not None
        return sorted((str(r["till"]), r["n"], r.get(EXACT)) for r in found.to_pylist())


@pytest.fixture(params=[MERGED, TAILED], ids=["merged", "tailed"])
def prices(request: pytest.FixtureRequest, lake: Lake) -> Prices:
    return Prices(lake, request.param)


SAID = '{"till":"infinity"}'
BESIDE: dict[str, tuple[list[Did], list[Did]]] = {
    "the infinite one is there": ([("c", INFINITE, 1)], [("c", LAST, 2)]),
    "the last day is there": ([("c", LAST, 1)], [("c", INFINITE, 2)]),
    "both come at once": ([("c", 0, 1)], [("c", INFINITE, 2), ("c", LAST, 3), ("d", INFINITE, 0)]),
    "the first days": ([("c", MINUS, 1)], [("c", FIRST, 2)]),
    "the delete comes too late": (
        [("c", INFINITE, 1)],
        [("c", LAST, 2), ("d", INFINITE, 0), ("u", LAST, 3)],
    ),
}


@pytest.mark.parametrize(("before", "then"), BESIDE.values(), ids=BESIDE)
def test_p4_two_keys_that_are_one_here_are_refused_side_by_side(
    prices: Prices, before: list[Did], then: list[Did]
) -> None:
    prices.fold(*before)
    there = prices.rows()
    with pytest.raises(SchemaViolation, match=r"side by side, which are one key") as error:
        prices.fold(*then)
    assert "infinity" in error.value.message
    assert "resnapshot" in error.value.remedy
    assert prices.rows() == there


@pytest.mark.parametrize(("before", "then"), BESIDE.values(), ids=BESIDE)
def test_p4_they_are_refused_among_the_slices_of_a_large_transaction(
    prices: Prices, monkeypatch: pytest.MonkeyPatch, before: list[Did], then: list[Did]
) -> None:
    monkeypatch.setattr(image_stager, "slices", lambda rows: slices(rows, most=1))
    prices.fold(*before)
    there = prices.rows()
    with pytest.raises(SchemaViolation, match="side by side"):
        prices.fold_large(*then, ("c", 5, 5), ("c", 6, 6))
    assert prices.rows() == there


def test_a_large_transaction_may_have_one_behind_the_other(
    prices: Prices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_stager, "slices", lambda rows: slices(rows, most=1))
    prices.fold_large(("c", LAST, 1), ("c", 0, 2), ("c", 1, 3))
    prices.fold_large(("d", LAST, 0), ("c", INFINITE, 4), ("u", 0, 5), ("u", INFINITE, 6))
    assert prices.rows() == [
        *(("1970-01-01", 5, None), ("1970-01-02", 3, None)),
        ("9999-12-31", 6, SAID),
    ]


def test_one_of_them_may_follow_the_other(prices: Prices) -> None:
    """As a key that an UPDATE changes does: its old row is deleted, right before the new one."""
    prices.fold(("c", INFINITE, 1))
    prices.fold(("d", INFINITE, 0), ("c", LAST, 2))
    assert prices.rows() == [("9999-12-31", 2, None)]
    prices.fold(("u", LAST, 3))
    prices.fold(("d", LAST, 0))
    prices.fold(("c", INFINITE, 4), ("u", INFINITE, 5))
    assert prices.rows() == [("9999-12-31", 5, SAID)]
    prices.fold(("u", INFINITE, 6), ("c", MINUS, 7))
    assert prices.rows() == [
        ("0001-01-01", 7, '{"till":"-infinity"}'),
        ("9999-12-31", 6, SAID),
    ]
    prices.fold(("d", INFINITE, 0), ("c", LAST, 8), ("d", LAST, 0), ("d", MINUS, 0))
    assert prices.rows() == []


@pytest.mark.parametrize("policy", [MERGED, TAILED], ids=["merged", "tailed"])
@pytest.mark.parametrize("large", [False, True], ids=["few", "many"])
def test_p4_an_epoch_that_is_repeated_meets_no_key_of_its_own(
    lake: Lake, policy: FoldPolicy, large: bool
) -> None:
    """A process that died before the manifest named the epoch folds it once more."""
    done: list[Did] = [("c", LAST, 1), ("d", LAST, 0), ("c", INFINITE, 2), ("u", 0, 3)]
    prices = Prices(lake, policy)
    prices.fold(("c", 0, 1))
    fold = Prices.fold_large if large else Prices.fold
    fold(prices, *done)
    there = prices.rows()
    again = Prices(lake, policy)
    for repeated in (prices, again):
        repeated._epochs, repeated._order = 1, 2
        fold(repeated, *done)
        assert repeated.rows() == there
    again.fold(("u", INFINITE, 4))
    assert again.rows() == [("1970-01-01", 3, None), ("9999-12-31", 4, SAID)]


def test_a_deleted_row_that_is_kept_is_not_replaced_by_another(lake: Lake) -> None:
    prices = Prices(lake, MERGED, soft=True)
    prices.fold(("c", INFINITE, 1))
    prices.fold(("d", INFINITE, 0))
    with pytest.raises(SchemaViolation, match="side by side"):
        prices.fold(("c", LAST, 2))
    prices.fold(("c", INFINITE, 3))
    assert prices.rows() == [("9999-12-31", 3, SAID)]


@pytest.mark.parametrize(
    ("chunks", "met"),
    [
        ([["9999-12-31"], ["infinity"]], "infinity"),
        ([["-infinity", "0001-01-01"], ["2020-02-02"]], "-infinity"),
        ([["infinity", "2020-02-02"], ["-infinity"]], None),
        ([["9999-12-31", "0001-01-01"], []], None),
        ([["infinity"] * 5, ["9999-12-31"], ["infinity"]], "infinity"),
    ],
)
def test_p4_a_copy_with_two_such_keys_fails(
    tmp_path: Path, chunks: list[list[str]], met: str | None
) -> None:
    staging = Staging(
        Lake.at(tmp_path), id="i1", source=SOURCE, table=TABLE, columns=COLUMNS, keys=("id", "till")
    )
    for number, days in enumerate(chunks):
        texts = {"id": ["1"] * len(days), "till": days, "n": ["5"] * len(days)}
        shape = pa.schema([(name, pa.string()) for name in texts])
        staging.stage(number, 10, [pa.table(texts, schema=shape)])
    if met is None:
        staging.refuse_met_keys()
        return
    with pytest.raises(SchemaViolation, match=rf"till = {met}\b"):
        staging.refuse_met_keys()
