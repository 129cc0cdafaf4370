"""Typed, current and history tables made of the raw log equal the live ones, and need none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from apps.cli import build as build_app
from kernel import failpoints
from kernel.errors import Conflict, NotFound, PenstockError
from lake.layout import Lake
from lake.tables import Tables
from pipeline.current.fold_policy import FoldPolicy
from replay.book import ReplayBook, State
from replay.cancel import cancel
from replay.derivations.derivation import Derivation
from replay.derivations.derivation_check import verify_derived
from replay.derivations.derivation_plan import plan_derivation
from replay.pages import short
from replay.verify import Expectation, Verdict
from schemas.debezium import PLACEHOLDER
from tests.support.lake.followed_item import HISTORY, FollowedItem
from tests.support.lake.telling import BreakingRegistry, ToldLake
from tests.support.sources.ddl_copies import copied
from tests.support.sources.ddl_rows import SOURCE, TABLE
from tests.support.sources.made_of_the_log import OF_ITEM, build, no_spark, site_of

PLACED = "typed.events.order.placed"


@pytest.fixture(autouse=True)
def _harmless_afterwards() -> Iterator[None]:
    yield
    failpoints.disarm()


def files_of(lake: Lake) -> set[Path]:
    return {*Path(lake.root).rglob("*")}


def lived(lake: Lake, *, soft: bool) -> FollowedItem:
    """Let a table live: values that updates leave alone, deletes, changes of its columns."""
    made = FollowedItem(lake, histories=[HISTORY], soft=soft)
    item = made.item
    item.tell("describe")
    name, size = item.add("name", "text"), item.add("size", "int4")
    for key in range(1, 8):
        item.write("c", key, {2: f"n{key}" * 3, 3: key})
    made.epoch()
    assert not made.bring().held
    for key in (1, 2, 3):
        item.write("u", key, {2: PLACEHOLDER, 3: 10 * key})
    item.write("d", 4)
    made.epoch()
    assert not made.bring().held
    name.name = "label"
    item.tell(renamed=2)
    item.write("u", 5, {2: PLACEHOLDER, 3: 50})
    item.write("d", 6)
    made.epoch()
    assert not made.bring().held
    item.drop(size)
    item.add("more", "text", missing="x")
    item.write("u", 7, {2: PLACEHOLDER, 4: "y"})
    item.write("c", 4, {2: "back", 4: "z"})
    made.epoch()
    assert not made.bring().held
    return made


@pytest.mark.parametrize("soft", [False, True], ids=["gone", "marked"])
@pytest.mark.parametrize("name", OF_ITEM)
def test_a_table_that_is_made_of_the_log_equals_the_live_one(
    lake: Lake, tmp_path: Path, name: str, soft: bool
) -> None:
    followed = lived(lake, soft=soft)
    site = site_of(lake, tmp_path, soft=soft)
    for other in {"typed", "current", "history"} - {name.partition(".")[0]}:
        shutil.rmtree(Path(lake.root) / other)  # Nothing that is derived is read.
    before = files_of(lake)
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE, hit=2)
    with pytest.raises(failpoints.Crash):
        build(site, followed.registry, name)
    done = build(site, followed.registry, name)
    last = followed.manifest.last()
    assert last is not None
    assert (done.state, done.epoch) == (State.BUILT, last.epoch)
    found = verify_derived(site, name)
    assert found.equal, (found.rows.drift, found.rows.examples)
    assert found.rows.live_rows == found.rows.built_rows > 0
    assert files_of(lake) == before


def test_a_current_table_whose_tail_has_rows_is_compared_with_both(
    lake: Lake, tmp_path: Path
) -> None:
    """Its base is of an earlier epoch; the tail has a new key, a changed one and a deleted one."""
    never = FoldPolicy(direct_bytes=-1, freshness_s=1e9, longest_s=1e9, share=1e9)
    followed, name = FollowedItem(lake, policy=never), f"current.{SOURCE}.{TABLE}"
    followed.item.tell("describe")
    followed.item.add("name", "text")
    for key in range(1, 6):
        followed.item.write("c", key, {2: f"n{key}"})
    followed.epoch()
    for operation, key in (("c", 6), ("u", 2), ("d", 3)):
        followed.item.write(operation, key, {2: "later"})
        followed.epoch()
    site = site_of(lake, tmp_path)
    assert followed.bring().epoch == build(site, followed.registry, name).epoch
    found = verify_derived(site, name)
    assert found.equal
    assert found.rows.live_rows == len(followed.current())
    base = Tables().open(lake.path(f"current/{SOURCE}.{TABLE}"))
    assert base is not None
    assert (base.transaction_version(f"current/{SOURCE}.{TABLE}") or 0) < found.epoch


def test_events_are_decoded_anew_and_rows_that_somebody_damaged_come_back(
    lake: Lake, tmp_path: Path
) -> None:
    told = ToldLake(lake)
    for epoch in range(4):
        for n in range(5):
            told.tell("placed", {"n": 5 * epoch + n, "item": "lamp"})
            told.tell("shipped", {"by": "post"})
        told.epoch()
    told.bring()
    site = site_of(lake, tmp_path)
    assert build(site, told.registry, PLACED).state is State.BUILT
    assert verify_derived(site, PLACED).equal
    there = Tables().read(site.place.path("typed/events.order.placed"))
    assert there is not None
    assert sorted(there["n"].to_pylist()) == list(range(20))
    live = Tables().open(lake.path("typed/events.order.placed"))
    assert live is not None
    live.update({"item": "'chair'"}, predicate="n = 7")
    assert build(site, told.registry, PLACED).generation == 2
    found = verify_derived(site, PLACED)
    assert (found.verdict, found.rows.differing) == (Verdict.ROWS, 1)
    assert verify_derived(site, PLACED, expectation=Expectation(columns=("item",))).accepted


def test_a_schema_that_is_lost_stops_a_table_of_the_log_until_it_is_found(
    lake: Lake, tmp_path: Path
) -> None:
    registry = BreakingRegistry()
    told = ToldLake(lake, registry=registry)
    for more in ({}, {"note": "in the second version"}):
        told.tell("placed", {"n": 1, **more})
        told.epoch()
    told.bring()
    site, book = site_of(lake, tmp_path), ReplayBook(Lake.named(tmp_path / "there"), Tables())
    lost = registry.latest("order.placed")
    assert lost is not None
    registry.broken[lost.id] = NotFound(f"the lake has not noted schema {lost.id}")
    for _ in range(2):
        with pytest.raises(PenstockError, match=f"has not noted schema {lost.id}"):
            build(site, registry, PLACED, most_rows=-1)
        (stopped,) = book.of(PLACED)
        assert (stopped.state, stopped.detail["rows"]) == (State.STOPPED, 1)
        assert short(stopped) == f"1 rows of the log: the lake has not noted schema {lost.id}"
        seen = Tables().read(site.place.path("typed/events.order.placed"))
        assert seen is not None
        assert seen.num_rows == 0, "what is not whole, readers do not see"
    registry.broken.clear()
    done = build(site, registry, PLACED)
    assert (done.state, done.detail["rows"]) == (State.BUILT, 2)
    assert float(str(done.detail["seconds"])) > float(str(stopped.detail["seconds"])) > 0
    assert verify_derived(site, PLACED).equal


def test_a_table_of_the_log_rests_goes_on_and_is_given_up(lake: Lake, tmp_path: Path) -> None:
    followed = lived(lake, soft=False)
    site, name = site_of(lake, tmp_path), OF_ITEM[0]
    book = ReplayBook(site.place, Tables())

    def pausing(_: object) -> None:
        with suppress(NotFound):
            book.pause(name)

    asked = Derivation(site, followed.registry, pausing, spark=no_spark, most_rows=1)
    assert asked.build(name).state is State.PAUSED
    assert plan_derivation(site, name).rows > 0
    assert build(site, followed.registry, name).state is State.BUILT
    assert verify_derived(site, name).equal
    with pytest.raises(Conflict, match="is the table at"):
        cancel(site, name)
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE)
    with pytest.raises(failpoints.Crash):
        build(site, followed.registry, name)
    with pytest.raises(Conflict, match="is being built"):
        Derivation(site, followed.registry, lambda _: None, spark=no_spark).build(name)
    assert cancel(site, name).state is State.CANCELLED
    assert verify_derived(site, name, generation=1).equal, "the one before is still the table"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("typed.shop.public.nothing", NotFound),
        (f"typed.{SOURCE}._truncates", NotFound),
        ("current.shop.nothing", NotFound),
    ],
)
def test_what_is_no_table_of_the_log_is_refused(
    lake: Lake, tmp_path: Path, name: str, error: type[Exception]
) -> None:
    followed = lived(lake, soft=False)
    with pytest.raises(error):
        build(site_of(lake, tmp_path), followed.registry, name)


@pytest.mark.parametrize("name", OF_ITEM)
def test_copied_rows_are_among_those_of_the_log(lake: Lake, tmp_path: Path, name: str) -> None:
    """Also where the manifest has forgotten the epoch that took the copy in."""
    followed = FollowedItem(lake, histories=[HISTORY])
    item = followed.item
    item.tell("describe")
    item.add("name", "text")
    for key in (1, 2, 3):
        item.write("c", key, {2: f"n{key}"})
    followed.announce(replace(copied(followed), number=0))
    for key in (2, 4):
        item.write("u" if key == 2 else "c", key, {2: "later"})
        followed.epoch()
        assert not followed.bring().held
    site = site_of(lake, tmp_path)
    build(site, followed.registry, name)
    assert verify_derived(site, name).equal
    manifest = Tables().open(lake.epochs)
    assert manifest is not None
    manifest.delete("epoch < 3")
    build(site, followed.registry, name)
    assert verify_derived(site, name).equal


@pytest.mark.parametrize("name", OF_ITEM)
def test_a_table_that_was_copied_and_never_changed_is_made_of_its_copy(
    lake: Lake, tmp_path: Path, name: str
) -> None:
    followed = FollowedItem(lake, histories=[HISTORY])
    followed.item.tell("describe")
    followed.item.rows = {1: {1: 1}, 2: {1: 2}}
    followed.announce(replace(copied(followed), number=0))
    for _ in range(2):
        followed.item.tell()  # A transaction behind what was read, and no row of the table.
        followed.epoch()
    assert not followed.bring().held
    site = site_of(lake, tmp_path)
    build(site, followed.registry, name)
    found = verify_derived(site, name)
    assert found.equal
    assert found.rows.built_rows == len(followed.item.rows)


def test_tables_of_the_log_are_planned_made_and_compared_by_commands(
    lake: Lake, tmp_path: Path
) -> None:
    """Without a stack: the lake has the schemas that its log was written by."""
    told = ToldLake(lake)
    for n in range(6):
        told.tell("placed", {"n": n})
    told.epoch()
    told.bring()
    (tmp_path / "penstock.toml").write_text(f'lake.path = "{lake.root}"\n')
    app, there = build_app(), ("--lake", str(tmp_path / "there"), "--workspace", str(tmp_path))

    def answer(*words: str) -> Any:
        result = CliRunner().invoke(app, ["replay", *words, *there, "--json"])
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    planned = answer("plan", PLACED)
    assert (planned["rows"], planned["epoch"], planned["live"]["rows"]) == (6, 1, 6)
    assert planned["place"] == str(tmp_path / "there/typed/events.order.placed")
    assert answer("apply", PLACED)["state"] == "built"
    assert answer("verify", PLACED)["equal"]
    assert [each["state"] for each in answer("status", PLACED)] == ["verified"]
    for words, remedy in [
        (("apply", PLACED, "--rate", "5", *there), "Leave out --rate"),
        (("apply", PLACED, *there[2:]), f"penstock replay apply {PLACED} --lake PLACE"),
        (("resume", PLACED, *there), f"penstock replay apply {PLACED} --lake {there[1]}"),
    ]:
        refused = CliRunner().invoke(app, ["replay", *words]).exception
        assert isinstance(refused, PenstockError)
        assert remedy in refused.remedy
