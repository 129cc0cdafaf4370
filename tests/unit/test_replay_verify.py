"""What a comparison of two generations finds, and what it leaves alone."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kernel.errors import Conflict, Incompatible, InvalidRequest, NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from lake.writer import Guard
from replay.book import ReplayBook, State
from replay.comparison import row_differences
from replay.differences import RowDifferences
from replay.generations import build_app, generation_name
from replay.report import page, refuse_other, write_report
from replay.verify import NOTHING, Expectation, GenerationComparison, Verdict, comparable, verify
from tests.support.lake.handmade import SQL, HandMade, words

NAME = "report"
LIVE = ((1, "a"), (2, "b"), (3, "c"))


@pytest.fixture
def made(lake: Lake) -> HandMade:
    """A live generation at epochs 1 and 2, deployed under its name."""
    handmade = HandMade(lake)
    handmade.deploy(NAME)
    for _ in range(3):
        handmade.epoch()
    handmade.run(NAME, words((1, "old")), 1)
    handmade.run(NAME, words(*LIVE), 2)
    handmade.run(NAME, words((9, "later")), 3)
    handmade.derive({"typed/events.thing.told": words((9, "later"), epoch=3)}, 3)
    return handmade


def compared(
    made: HandMade, built: pa.Table, expectation: Expectation = NOTHING
) -> GenerationComparison:
    made.build(NAME, built, 2)
    return verify(made.site, NAME, expectation=expectation)


def test_equal_rows_are_equal_whatever_their_order_and_hidden_columns(made: HandMade) -> None:
    built = words(*reversed(LIVE), epoch=7).select(["_epoch", "word", "id"])
    found = compared(made, built)
    assert found.equal
    assert found.accepted
    assert (found.rows.live_rows, found.rows.built_rows) == (3, 3)
    assert found.rows.live_hash == found.rows.built_hash
    assert ReplayBook(made.lake, made.tables).of(NAME)[-1].state is State.VERIFIED


def test_it_compares_at_the_epoch_up_to_which_the_generation_was_built(made: HandMade) -> None:
    replay = made.build(NAME, words((1, "old")), 1)
    assert comparable(made.site, replay)
    assert verify(made.site, NAME).equal
    replay = made.build(NAME, words((1, "old")), 4, generation=3)
    assert not comparable(made.site, replay)
    with pytest.raises(NotFound, match="no version at epoch 4"):
        verify(made.site, NAME)


def test_an_epoch_that_is_not_kept_is_told_with_what_to_do(made: HandMade) -> None:
    made.build(NAME, words(*LIVE), 2)
    stable = DeltaTable(made.lake.path(f"projection/{NAME}"))
    stable.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(NotFound, match=r"was at epoch 2, .* is not kept any more") as raised:
        verify(made.site, NAME)
    assert raised.value.remedy == f"Build it again: penstock replay apply {NAME}"


def test_missing_extra_and_differing_keys_are_told_apart(made: HandMade) -> None:
    found = compared(made, words((1, "a"), (2, "B"), (4, "d"), (5, "e")))
    assert not found.accepted
    assert (found.rows.missing, found.rows.extra, found.rows.differing) == (1, 2, 1)
    assert found.rows.live_hash != found.rows.built_hash
    assert [example["key"] for example in found.rows.examples] == ["2", "3", "4", "5"]
    assert found.rows.examples[0]["live"] == {"id": "2", "word": "b"}
    assert found.rows.examples[1]["built"] is None
    assert ReplayBook(made.lake, made.tables).of(NAME)[-1].state is State.DIFFERS


@pytest.mark.parametrize(
    ("added", "counts"), [((7, "g"), (1, 0)), ((3, "c"), (0, 1))], ids=["another key", "once more"]
)
def test_rows_that_somebody_else_added_to_the_live_table_are_seen(
    made: HandMade, added: tuple[int, str], counts: tuple[int, int]
) -> None:
    made.run(NAME, words(*LIVE), 4)
    write_deltalake(made.lake.path(f"projection/{NAME}"), words(added), mode="append")
    made.build(NAME, words(*LIVE), 4)
    found = verify(made.site, NAME)
    assert (found.rows.missing, found.rows.repeated_keys) == counts
    assert found.verdict is Verdict.ROWS


def test_a_key_that_comes_twice_is_never_accepted(made: HandMade) -> None:
    found = compared(made, words(*LIVE, (3, "c")))
    assert found.rows.repeated_keys == 1
    assert not found.accepted


def test_swapped_values_of_two_rows_do_not_cancel_out(made: HandMade) -> None:
    found = compared(made, words((1, "b"), (2, "a"), (3, "c")))
    assert found.rows.differing == 2


def test_null_is_not_the_word_null(made: HandMade) -> None:
    made.run(NAME, words((1, "NULL")), 4)
    made.build(NAME, pa.table({"id": [1], "word": pa.array([None], pa.string())}), 4)
    assert verify(made.site, NAME).rows.differing == 1


def test_columns_that_only_one_has_are_named(made: HandMade) -> None:
    built = words(*LIVE, more=[1, 2, 3]).drop_columns(["word"])
    found = compared(made, built)
    assert [(t.name, t.live, t.built) for t in found.types] == [
        ("word", "string", None),
        ("more", None, "long"),
    ]
    assert (found.rows.differing, found.verdict) == (0, Verdict.TYPES)


def test_hidden_columns_of_another_query_are_no_difference(made: HandMade) -> None:
    made.run(NAME, words(*LIVE, _partial_0=[1, 2, 3], _partial_1=["a", "b", "c"]), 4)
    kept = words(*LIVE, _partial_0=[7, 8, 9], _seq_hi=[1, 2, 3])
    made.build(NAME, kept, 4, text=SQL.format(name=NAME, key="id") + "-- anew")
    found = verify(made.site, NAME)
    assert found.equal
    assert found.columns == ("id", "word")
    # By the same query what both have is compared.
    made.build(NAME, kept, 4, generation=3)
    found = verify(made.site, NAME)
    assert (found.types, found.columns) == ((), ("id", "word", "_partial_0"))
    assert found.rows.differing == 3


def test_drift_of_floating_point_columns_is_measured(made: HandMade) -> None:
    made.run(NAME, words(*LIVE, mean=[0.1, 0.2, 0.3]), 4)
    made.build(NAME, words(*LIVE, mean=[0.1, 0.2, 0.30000000000000004]), 4)
    found = verify(made.site, NAME)
    assert found.rows.differing == 1
    (drift,) = found.rows.drift
    assert (drift.name, drift.rows, drift.key) == ("mean", 1, "3")
    assert drift.greatest == pytest.approx(5.5e-17, rel=0.1)
    assert (drift.live, drift.built) == ("0.3", "0.30000000000000004")


def test_exact_types_are_compared_exactly(made: HandMade) -> None:
    values: list[object] = [Decimal("1.10"), Decimal("1.20"), None]
    made.run(NAME, words(*LIVE, price=values, both=[{"a": 1}, {"a": None}, None]), 4)
    made.build(NAME, words(*LIVE, price=values, both=[{"a": 1}, {"a": None}, None]), 4)
    assert verify(made.site, NAME).equal


COUNTED = """CREATE PROJECTION report WITH (key = 'id') AS
SELECT id, MAX(word) AS word FROM STREAM events.thing.told GROUP BY id"""


@pytest.mark.parametrize(
    ("late_at", "text", "accepted"),
    [(2, COUNTED, True), (3, COUNTED, False), (2, COUNTED.replace("MAX", "MIN"), False)],
)
def test_late_rows_that_were_asked_for_make_a_declared_difference(
    made: HandMade, late_at: int, text: str, accepted: bool
) -> None:
    """Only where there are some up to the epoch, and the query is the live one's."""
    (entry,) = made.deployed.entries()
    made.deployed.put([replace(entry, text=COUNTED)])
    late = words((4, "late"), epoch=late_at, _late=[True])
    made.derive({"typed/events.thing.told": late}, 4)
    made.build(NAME, words(*LIVE, (4, "late")), 2, include_late=True, text=text, base_text=COUNTED)
    found = verify(made.site, NAME)
    assert found.declared is accepted
    assert (found.accepted, found.rows.extra) == (accepted, 1)
    expected = Expectation(rows="live.id IS NULL")
    assert verify(made.site, NAME, expectation=expected).verdict is Verdict.EXPECTED


def brought(made: HandMade, rows: pa.Table, epoch: int) -> None:
    """Bring the built generation to an epoch of which its row in the book knows nothing."""
    path = made.lake.path(generation_name(NAME, 2))
    made.writer.overwrite(path, rows, Guard(build_app(NAME, 2), Epoch(epoch)))


def test_a_generation_that_was_brought_forward_and_not_noted_is_compared_where_it_stands(
    made: HandMade,
) -> None:
    replay = made.build(NAME, words(*LIVE), 2)
    brought(made, words((9, "later")), 3)
    assert comparable(made.site, replay)
    found = verify(made.site, NAME)
    assert (found.equal, found.epoch) == (True, 3)
    noted = ReplayBook(made.lake, made.tables).newest(NAME, State.VERIFIED)
    assert noted.epoch == 3
    brought(made, words((9, "later")), 4)
    assert not comparable(made.site, noted)
    with pytest.raises(NotFound, match="no version at epoch 4"):
        verify(made.site, NAME)


def test_a_generation_that_is_brought_forward_while_it_is_compared_is_compared_anew(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = made.build(NAME, words(*LIVE), 2)
    left = [1]

    def differences(*tables: DeltaTable, **options: Any) -> RowDifferences:
        found = row_differences(*tables, **options)
        if left:
            left.pop()
            brought(made, words((9, "later")), 3)
            now = replay.now(State.BUILT, epoch=Epoch(3))
            ReplayBook(made.lake, made.tables).record(now)
        return found

    monkeypatch.setattr("replay.verify.row_differences", differences)
    assert verify(made.site, NAME).epoch == 3
    assert ReplayBook(made.lake, made.tables).newest(NAME, State.VERIFIED).epoch == 3
    left.append(1)
    monkeypatch.setattr("replay.verify.ATTEMPTS", 1)
    replay = replay.now(State.BUILT, epoch=Epoch(2))
    ReplayBook(made.lake, made.tables).record(replay)
    with pytest.raises(Conflict, match="was brought to epoch 3 meanwhile"):
        verify(made.site, NAME)


def test_another_key_cannot_be_compared(made: HandMade) -> None:
    made.build(NAME, words(*LIVE, code=[1, 2, 3]), 2, key="code")
    with pytest.raises(Incompatible, match="key code"):
        verify(made.site, NAME)


def test_a_type_that_differs_is_a_verdict_of_its_own(made: HandMade) -> None:
    narrow = words(*LIVE).set_column(0, "id", pa.array([1, 2, 3], pa.int32()))
    found = compared(made, narrow)
    assert found.verdict is Verdict.TYPES
    assert not found.accepted
    assert [(t.name, t.live, t.built) for t in found.types] == [("id", "long", "integer")]
    assert (found.rows.missing, found.rows.extra, found.rows.differing) == (0, 0, 0)


def test_hidden_columns_are_part_of_the_contract_but_for_the_epochs_values(
    made: HandMade,
) -> None:
    made.run(NAME, words(*LIVE, _seq_hi=[1, 2, 3]), 4)
    made.build(NAME, words(*LIVE, epoch=9, _seq_hi=[1, 2, 7]), 4)
    found = verify(made.site, NAME)
    assert (found.rows.differing, found.types) == (1, ())
    made.build(NAME, words(*LIVE, epoch=9), 4, generation=3)
    assert verify(made.site, NAME).equal
    other = words(*LIVE, _seq_hi=[1, 2, 3]).drop_columns(["_epoch"])
    epochs = pa.array([4, 4, 4], pa.int32())
    made.build(NAME, other.append_column("_epoch", epochs), 4, generation=4)
    assert [t.name for t in verify(made.site, NAME).types] == ["_epoch"]


def test_differences_that_are_expected_are_accepted_and_no_others(made: HandMade) -> None:
    louder = Expectation(rows="built.word = upper(live.word)")
    found = compared(made, words((1, "A"), (2, "B"), (3, "C")), louder)
    assert (found.verdict, found.rows.expected) == (Verdict.EXPECTED, 3)
    assert not found.rows.drift, "what was expected is no drift"
    made.build(NAME, words((1, "A"), (2, "x"), (4, "D")), 2, generation=3)
    found = verify(made.site, NAME, expectation=louder)
    assert (found.verdict, found.rows.expected) == (Verdict.ROWS, 1)
    assert [e["key"] for e in found.rows.examples] == ["2", "3", "4", "1"]
    fewer = Expectation(rows="live.id = 3 AND built.id IS NULL")
    made.build(NAME, words((1, "a"), (2, "b")), 2, generation=4)
    assert verify(made.site, NAME, expectation=fewer).verdict is Verdict.EXPECTED
    with pytest.raises(InvalidRequest, match="--expect cannot be computed"):
        verify(made.site, NAME, expectation=Expectation(rows="built.nothing > 1"))


@pytest.mark.parametrize("sql", ["(SELECT count(*) FROM read_csv('/etc/passwd')) > 0", "true); --"])
def test_a_predicate_reads_the_two_rows_alone(made: HandMade, sql: str) -> None:
    with pytest.raises(InvalidRequest):
        compared(made, words((1, "A")), Expectation(rows=sql))


def test_a_column_that_is_expected_to_differ_may_come_go_and_change(made: HandMade) -> None:
    built = words((1, "x"), (2, "y"), (3, "z"), more=[1, 2, 3])
    found = compared(made, built, Expectation(columns=("word", "more")))
    assert (found.verdict, found.columns) == (Verdict.EXPECTED, ("id",))
    with pytest.raises(InvalidRequest, match="neither generation has a column words"):
        verify(made.site, NAME, expectation=Expectation(columns=("words",)))


def test_buckets_of_keys_give_the_same_as_all_at_once(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = words((1, "a"), (2, "B"), (4, "d"), (5, "e"))
    whole = compared(made, built)
    monkeypatch.setattr("replay.comparison.BUCKET_KEYS", 1)
    assert verify(made.site, NAME) == whole


def test_nested_and_odd_values_are_compared_exactly(made: HandMade) -> None:
    nested: list[object] = [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None]
    zeros = [0.0, float("nan"), 1.0]
    live = words(*LIVE, both=nested, zero=zeros)
    other = words(
        *LIVE,
        both=[{"a": 1, "b": ["x", None]}, {"a": None, "b": []}, None],
        zero=[-0.0, float("nan"), 1.0],
    )
    made.run(NAME, live, 4)
    made.build(NAME, other, 4)
    found = verify(made.site, NAME)
    assert {d.name: d.rows for d in found.rows.drift} == {"both": 2, "zero": 1}


def test_a_report_shows_what_was_found_and_escapes_it(made: HandMade, tmp_path: Path) -> None:
    narrow = words((1, "<b>"), (2, "b"), (3, "c")).drop_columns(["_epoch"])
    found = compared(made, narrow, Expectation(rows="live.id < 0"))
    shown = page(found)
    assert "types differ" in shown
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert "live.id &lt; 0" in shown
    write_report(found, tmp_path / "verify.json")
    told = json.loads((tmp_path / "verify.json").read_text())
    assert (told["verdict"], told["differing"]) == ("types differ", 1)
    assert told["types"] == [{"name": "_epoch", "live": "long", "built": None}]
    with pytest.raises(InvalidRequest, match=r"neither \.html nor \.json"):
        write_report(found, tmp_path / "verify.txt")
    with pytest.raises(InvalidRequest, match="cannot be written: there is no folder"):
        refuse_other(tmp_path / "no" / "verify.html")
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(InvalidRequest, match="cannot be written: Is a directory"):
        write_report(found, tmp_path / "taken.html")
