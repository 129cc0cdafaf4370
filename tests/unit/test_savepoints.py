"""A savepoint is read after everything else about its epoch is gone, and costs what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from kernel.errors import Conflict, InvalidRequest, NotFound
from kernel.positions import Epoch
from lake.attempt_files import remove_left
from lake.layout import Lake
from lake.savepoint_states import SavepointState, kept_as
from lake.savepoint_tables import KeptTable, kept_table
from lake.savepoints import UNFINISHED_AFTER, SavepointBook
from lake.tables import TableAt, Tables
from lake.upkeep.compaction import Upkeep
from pipeline.commit.manifest import Manifest
from pipeline.commit.retention import forget_epochs
from pipeline.current.fold_policy import FoldPolicy
from pipeline.installs.old_generations import remove_old_generations
from pipeline.position.progress import Progress
from projections.run.catalog import DROPPED
from projections.serve.query import ask
from projections.serve.savepoints import costs, create, drop
from tests.property.test_query_at_epochs import forget
from tests.support.lake.bulk import NAME, HandLake, some
from tests.support.lake.folding import SOURCE, TABLE, Done, state_of
from tests.support.lake.handmade import HandMade, words

LOG = "log/events/0b0f7a0e-0000-4000-8000-000000000001"
CURRENT, TYPED = "current/shop.public.orders", "typed/events.thing.told"
REPORT = "projection/report"
TABLES = (LOG, CURRENT, TYPED, REPORT)
SQL = f"""SELECT (SELECT count(*) FROM "{LOG}") AS logged,
  (SELECT count(*) FROM current.shop.public.orders) AS orders,
  (SELECT count(*) FROM typed."events.thing.told" WHERE id > 0) AS told,
  (SELECT sum(id) FROM report WHERE _epoch <= 99) AS reported"""
AT_2, AT_4 = [2, 2, 2, 3], [4, 4, 4, 10]
NEVER = timedelta(0)


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    """Two epochs that all tables have."""
    handmade = HandMade(Lake.at(tmp_path / "größe lake"))
    handmade.deploy("report")
    for _ in range(2):
        go_on(handmade)
    return handmade


def go_on(made: HandMade, *, report: bool = True) -> Epoch:
    n = made.next_epoch
    row = words((n, f"w{n}"), epoch=n)
    epoch = made.epoch(logs={LOG: row, CURRENT: row})
    made.derive({TYPED: row}, epoch)
    if report:
        made.run("report", words(*((i, f"w{i}") for i in range(1, n + 1)), epoch=n), epoch)
    return epoch


def found(made: HandMade, *, epoch: int | None = None, savepoint: str | None = None) -> list[int]:
    answer = ask(made.lake, SQL, epoch=None if epoch is None else Epoch(epoch), savepoint=savepoint)
    return [*answer.rows.to_pylist()[0].values()]


def upkeep(made: HandMade) -> Upkeep:
    """Do what upkeep does, with a retention of nothing."""
    keeper = Upkeep(made.lake, retention=NEVER, current_bytes=0, derived=lambda: TABLES)
    keeper._at = {
        name: TableAt(version=DeltaTable(made.lake.path(name)).version(), as_of_epoch=0)
        for name in (LOG, CURRENT)
    }
    keeper.trim()
    keeper._vacuum()
    assert keeper.troubles == {}
    return keeper


def pass_retention(made: HandMade) -> None:
    """Go on to epoch 4, put files together, shorten every log and remove what is old."""
    go_on(made)
    for name in TABLES:
        DeltaTable(made.lake.path(name)).optimize.compact()
    go_on(made)
    for name in TABLES:
        forget(made.lake.path(name))
    upkeep(made)
    forget_epochs(made.lake, retention=NEVER, now=datetime.now(UTC) + timedelta(days=9))


def files(made: HandMade) -> dict[str, int]:
    return {str(f): f.stat().st_size for name in TABLES for f in _parquet(made.lake.path(name))}


def _parquet(path: str) -> list[Path]:
    return sorted(Path(path).glob("*.parquet"))


def test_p5_a_savepoint_is_read_whole_after_retention_and_shortened_logs(made: HandMade) -> None:
    taken = create(made.lake, "before")
    assert (taken.savepoint.epoch, taken.made) == (2, True)
    assert {*taken.tables} == {*TABLES}
    pass_retention(made)
    with pytest.raises(NotFound):
        found(made, epoch=2)
    assert found(made, savepoint="before") == AT_2
    assert found(made) == AT_4
    # What it alone held goes with it, though no log tells of these files any more.
    before = files(made)
    cost = costs(made.lake)[0]
    assert 0 < cost.held_bytes <= cost.bytes
    drop(made.lake, "before")
    upkeep(made)
    gone = {*before} - {*files(made)}
    assert sum(before[path] for path in gone) == cost.held_bytes
    assert costs(made.lake) == []
    with pytest.raises(NotFound, match="no savepoint before is kept"):
        found(made, savepoint="before")
    assert found(made) == AT_4


def test_a_savepoint_has_the_positions_of_its_epoch_after_the_manifest_forgot_it(
    made: HandMade,
) -> None:
    """Also beside one that an earlier version took, in a table without the column."""
    made.epoch(head=7)
    create(made.lake, "before", epoch=Epoch(2))
    later = create(made.lake, "later", epoch=Epoch(3), without=[TYPED, REPORT]).savepoint
    pass_retention(made)
    with pytest.raises(NotFound):
        Manifest(made.lake, Tables()).at(Epoch(3))
    assert later.heads == kept_as(made.lake, "later").heads == {"store": 7}
    assert kept_as(made.lake, "before").heads == {"store": 0}
    found = Tables().read(made.lake.path("savepoints"))
    assert found is not None
    older = Lake.at(Path(made.lake.root).parent / "older")
    write_deltalake(older.path("savepoints"), found.drop_columns(["heads", "noted"]))
    assert kept_as(older, "later").heads is None
    newest = SavepointBook(older, Tables()).take("newest", Epoch(3), [], heads={"store": 8})
    assert [kept_as(older, name).heads for name in ("later", "newest")] == [None, newest.heads]


def test_a_new_savepoint_costs_nothing_and_two_share_their_files(made: HandMade) -> None:
    create(made.lake, "one")
    assert costs(made.lake)[0].held_bytes == 0
    pass_retention(made)
    alone = costs(made.lake)[0].held_bytes
    kept = SavepointBook(made.lake, Tables())
    kept.take("two", Epoch(2), kept.tables_of(kept.named("one")))
    assert [cost.held_bytes for cost in costs(made.lake)] == [0, 0]
    assert drop(made.lake, "one")[1] == 0
    assert [cost.held_bytes for cost in costs(made.lake)] == [alone]
    assert found(made, savepoint="two") == AT_2


def test_one_that_expired_is_dropped_by_upkeep_and_others_stay(made: HandMade) -> None:
    now = datetime.now(UTC)
    create(made.lake, "short", expires_at=now + timedelta(seconds=-1))
    create(made.lake, "long", expires_at=now + timedelta(days=1))
    create(made.lake, "ever")
    upkeep(made)
    assert [cost.savepoint.name for cost in costs(made.lake)] == ["long", "ever"]
    assert SavepointBook(made.lake, Tables()).expire(now + timedelta(days=2)) == ["long"]
    assert found(made, savepoint="ever") == AT_2


def test_all_tables_are_of_the_greatest_epoch_that_all_have(made: HandMade) -> None:
    go_on(made, report=False)
    assert create(made.lake, "whole").savepoint.epoch == 2
    partial = create(made.lake, "partial", without=[REPORT])
    assert partial.savepoint.epoch == 3
    assert {*partial.tables} == {*TABLES} - {REPORT}
    with pytest.raises(NotFound, match="epoch 3, does not have projection/report"):
        found(made, savepoint="partial")
    assert create(made.lake, "first", epoch=Epoch(1)).savepoint.epoch == 1
    assert found(made, savepoint="first") == [1, 1, 1, 1]


def test_tables_that_came_since_are_not_in_a_savepoint_of_before(made: HandMade) -> None:
    """Whether a table that is behind draws the epoch back, or a time does."""
    later = "current/shop.public.later"
    made.epoch(logs={LOG: words((3, "w3")), later: words((3, "w3"))})
    before = made.manifest.at(Epoch(2)).at
    for name, at in (("behind", None), ("then", before)):
        taken = create(made.lake, name, at=at)
        assert (taken.savepoint.epoch, {*taken.tables}) == (2, {*TABLES})


def test_a_savepoint_of_a_time_is_asked_for_again_though_a_table_was_behind(made: HandMade) -> None:
    epoch = go_on(made, report=False)
    at = made.manifest.at(epoch).at
    assert create(made.lake, "then", at=at).savepoint.epoch == 2
    assert not create(made.lake, "then", at=at).made
    with pytest.raises(Conflict, match="there is a savepoint then already, of epoch 2"):
        create(made.lake, "then", at=made.manifest.at(Epoch(1)).at)


def test_a_savepoint_is_of_no_time_to_come_and_of_none_before_the_log(made: HandMade) -> None:
    for name in ("new", "known"):
        with pytest.raises(NotFound, match=r"is to come: it is .* newest epoch, 2, was committed"):
            create(made.lake, name, at=datetime.now(UTC) + timedelta(hours=1))
        with pytest.raises(NotFound, match="is before the first epoch that is known, 1, which"):
            create(made.lake, name, at=datetime(2013, 1, 1, tzinfo=UTC))
        if name == "new":
            create(made.lake, "known")


def test_all_tables_that_keep_a_savepoint_from_an_epoch_are_told_with_the_way(
    made: HandMade,
) -> None:
    for name in ("late", "later"):
        made.deploy(name)
    epoch = go_on(made)
    for name in ("late", "later"):
        made.run(name, words((1, "x"), epoch=epoch), epoch)
    options = ["projection/late", "projection/later"]
    late = r"projection/late has nothing as of epoch 2.*/later"
    with pytest.raises(NotFound, match=late) as told:
        create(made.lake, "before", epoch=Epoch(2))
    without = " ".join(f"--without {name}" for name in options)
    assert told.value.remedy.endswith(f"To do without: {without}")
    assert create(made.lake, "before", epoch=Epoch(2), without=options).made


def test_a_projection_that_was_dropped_draws_no_savepoint_back(made: HandMade) -> None:
    made.deployed.set_status("report", DROPPED)
    go_on(made, report=False)
    taken = create(made.lake, "later")
    assert (taken.savepoint.epoch, {*taken.tables}) == (3, {*TABLES} - {REPORT})


def test_a_name_is_taken_once_and_repeating_changes_nothing(made: HandMade) -> None:
    first = create(made.lake, "before")
    go_on(made)
    again = create(made.lake, "before")
    assert (again.made, again.savepoint, again.tables) == (False, first.savepoint, first.tables)
    assert not create(made.lake, "before", epoch=Epoch(2)).made
    refused = "there is a savepoint before already, of epoch 2"
    with pytest.raises(Conflict, match=refused):
        create(made.lake, "before", epoch=Epoch(3))
    with pytest.raises(Conflict, match=refused):
        create(made.lake, "before", without=[REPORT])
    drop(made.lake, "before")
    assert create(made.lake, "before").savepoint.epoch == 3


def test_a_name_whose_savepoint_has_expired_is_free(made: HandMade) -> None:
    """Upkeep has not been there yet."""
    now = datetime.now(UTC)
    first = create(made.lake, "daily", expires_at=now - timedelta(seconds=1)).savepoint
    go_on(made)
    taken = create(made.lake, "daily", expires_at=now + timedelta(days=1))
    assert (taken.made, taken.savepoint.epoch) == (True, 3)
    assert [cost.savepoint.id for cost in costs(made.lake)] == [taken.savepoint.id]
    assert taken.savepoint.id != first.id


def test_a_savepoint_is_not_taken_for_one_that_is_kept_for_another_time(made: HandMade) -> None:
    def asked(days: int | None) -> datetime | None:
        return None if days is None else datetime.now(UTC) + timedelta(days=days)

    for name, days, others in (("short", 1, (30, None)), ("ever", None, (1,))):
        assert create(made.lake, name, expires_at=asked(days)).made
        assert not create(made.lake, name, expires_at=asked(days)).made
        for other in others:
            with pytest.raises(Conflict, match=f"there is a savepoint {name} already, of epoch 2"):
                create(made.lake, name, expires_at=asked(other))


@pytest.mark.parametrize("name", ["", "Before", "1st", "a b", "a" * 64, "a/b", "a'b"])
def test_a_name_that_no_savepoint_can_have_is_refused(lake: Lake, name: str) -> None:
    with pytest.raises(InvalidRequest, match="is no name of a savepoint"):
        create(lake, name)


def test_an_epoch_some_of_which_is_gone_is_refused_and_holds_nothing(made: HandMade) -> None:
    tables = Tables()
    kept = [at_epoch_1(made, name) for name in TABLES]
    go_on(made)
    upkeep(made)
    book = SavepointBook(made.lake, tables)
    with pytest.raises(NotFound, match="of projection/report, which epoch 1 has, is not kept"):
        book.take("late", Epoch(1), kept)
    assert book.held() == {}
    assert [each.state for each in book.all()] == [SavepointState.DROPPED]
    assert book.expire() == ["late"]
    assert book.all() == []
    assert found(made, epoch=3) == [3, 3, 3, 6]


def at_epoch_1(made: HandMade, name: str) -> KeptTable:
    return kept_table(DeltaTable(made.lake.path(name), version=1), name)


def test_what_a_crash_left_half_taken_is_held_for_an_hour(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = SavepointBook(made.lake, Tables())

    def die(savepoint: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SavepointBook, "_kept", lambda self, savepoint: die(savepoint))
        with pytest.raises(KeyboardInterrupt):
            create(made.lake, "before")
    with pytest.raises(NotFound, match="no savepoint before"):
        found(made, savepoint="before")
    assert {*book.held()} == {*TABLES}
    assert create(made.lake, "before").made
    now = datetime.now(UTC)
    assert book.expire(now) == []
    assert book.expire(now + UNFINISHED_AFTER + timedelta(minutes=1)) == ["before"]
    assert found(made, savepoint="before") == AT_2


def test_one_savepoint_excludes_epochs_and_times(made: HandMade) -> None:
    create(made.lake, "before")
    with pytest.raises(InvalidRequest, match="exclude each other"):
        ask(made.lake, SQL, epoch=Epoch(1), savepoint="before")
    with pytest.raises(InvalidRequest, match="exclude each other"):
        create(made.lake, "other", epoch=Epoch(1), at=datetime.now(UTC))
    names = ask(made.lake, "SELECT name FROM savepoints WHERE state = 'kept'", savepoint="before")
    assert names.rows.to_pylist() == [{"name": "before"}]


def test_files_of_attempts_that_a_savepoint_has_stay(made: HandMade) -> None:
    """Executors' files carry their epoch's number; the log forgets which of them were a table's."""
    path = Path(made.lake.path(LOG))
    table = DeltaTable(str(path))
    kept = kept_table(table, LOG)
    name = "part-e1.abc-0.parquet"
    (path / name).write_bytes((path / next(iter(kept.sizes))).read_bytes())
    (path / "part-e1.left-0.parquet").write_bytes(b"x")
    row = kept.files.slice(0, 1)
    renamed = row.set_column(row.schema.get_field_index("path"), "path", [[name]])
    SavepointBook(made.lake, Tables()).take("before", Epoch(1), [replace(kept, files=renamed)])
    assert remove_left(made.lake, Tables(), LOG, 2, earlier=True) == 1
    assert (path / name).exists()


@pytest.mark.parametrize("policy", [None, FoldPolicy(direct_bytes=0, freshness_s=3600.0)])
def test_p4_a_captured_table_in_a_savepoint_is_the_sources_state_then(
    lake: Lake, policy: FoldPolicy | None
) -> None:
    """With its tail, and with the rows of a copy that was replaced since."""
    hand = HandLake(lake, policy=policy)
    hand.copy(*some(*range(8)))
    hand.epoch()
    hand.source.commit(Done("u", 3, name="then"), Done("d", 5))
    done = hand.epoch()
    create(lake, "then")
    hand.announce(hand.stage())
    hand.source.commit(Done("u", 3, name="later"), Done("c", 90))
    hand.epoch()
    last = hand.manifest.last()
    assert last is not None
    sql = f'SELECT * FROM current."{SOURCE}.{TABLE}"'
    for remove in (lambda: None, lambda: _remove_all(hand, last.tables, last.progress)):
        remove()
        rows = ask(lake, sql, savepoint="then").rows
        assert state_of(rows) == hand.source.at[done.cuts[SOURCE]]
    assert hand.state() == hand.source.state


def _remove_all(hand: HandLake, tables: Mapping[str, TableAt], progress: str) -> None:
    hand.current.settle(SOURCE, TABLE)
    later = datetime.now(UTC) + timedelta(days=30)
    taken = Progress.from_json(progress).installs
    remove_old_generations(
        hand.lake, Tables(), taken=taken, kept=dict(tables), retention=NEVER, now=later
    )
    keeper = Upkeep(hand.lake, retention=NEVER, current_bytes=0)
    keeper._at = dict(tables)
    forget(hand.lake.path(NAME))
    keeper._vacuum()
    assert keeper.troubles == {}
