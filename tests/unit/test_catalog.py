from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from kernel.errors import Conflict, InvalidRequest
from lake.layout import Lake
from lake.rows import SmallTables
from lake.tables import Tables
from projections.run.captured_tables import CapturedTable, render_tables
from projections.run.catalog import (
    CAPTURE,
    DROPPED,
    LIVE,
    LOST,
    PAUSED,
    PROJECTION,
    RETRY,
    SLOT,
    SOURCE,
    CatalogTables,
    DeployedCatalog,
    Entry,
)
from projections.run.relations import LakeCatalog, waits_for_input
from projections.sql.plans.plan import plan
from projections.sql.statements.parse import parse_script
from replay.deployment import apply
from replay.subject import Site
from schemas.incarnations import Incarnation, render_incarnation


def entry(name: str, status: str = LIVE) -> Entry:
    return Entry(kind=CAPTURE, name=name, generation=1, status=status, text='{"public.a": ["id"]}')


def test_what_several_deploy_at_the_same_moment_is_all_there(lake: Lake) -> None:
    DeployedCatalog(lake, Tables()).put([entry("first")])
    with ThreadPoolExecutor(4) as pool:
        names = [f"source{n}" for n in range(8)]
        list(pool.map(lambda n: DeployedCatalog(lake, Tables()).put([entry(n)]), names))
    deployed = DeployedCatalog(lake, Tables()).deployment()
    assert sorted(deployed.captures) == sorted(["first", *names])
    assert deployed.keys()["first.public.a"] == ("id",)


def test_the_newest_entry_counts(lake: Lake) -> None:
    catalog = DeployedCatalog(lake, Tables())
    catalog.put([entry("shop")])
    catalog.put([entry("shop", DROPPED)])
    assert catalog.deployment().captures == {}


def test_a_kind_that_a_later_version_brings_is_passed_over(lake: Lake) -> None:
    later = Entry(kind="later", name="report", generation=2, status=LIVE, text="no SQL at all")
    catalog = DeployedCatalog(lake, Tables())
    catalog.put([entry("shop"), later])
    deployed = catalog.deployment()
    assert ([*deployed.captures], deployed.projections) == (["shop"], {})


def test_what_is_kept_of_a_table_stands_beside_its_key(lake: Lake) -> None:
    catalog = DeployedCatalog(lake, Tables())
    tables = {
        "public.a": CapturedTable(keys=("id",), history=True),
        "public.b": CapturedTable(keys=(), soft_deletes=True),
    }
    text = render_tables(tables)
    catalog.put([Entry(kind=CAPTURE, name="new", generation=0, status=LIVE, text=text)])
    catalog.put([entry("old")])
    deployed = catalog.deployment()
    assert deployed.captures["new"] == tables
    assert deployed.captures["old"] == {"public.a": CapturedTable(keys=("id",))}
    assert deployed.keys() == {"new.public.a": ("id",), "new.public.b": (), "old.public.a": ("id",)}
    assert deployed.captured("new", "public.c") is None


def test_a_lost_slot_is_still_lost_for_who_comes_later(lake: Lake) -> None:
    incarnation = Incarnation(system="7", timeline=1, slots=2, since="0/1", lost="it was dropped")
    text = render_incarnation(incarnation)
    lost = Entry(kind=SLOT, name="shop", generation=2, status=LOST, text=text)
    DeployedCatalog(lake, Tables()).put([lost, entry("shop")])
    assert DeployedCatalog(lake, Tables()).deployment().slots == {"shop": incarnation}


@pytest.mark.parametrize("tables", [Tables, SmallTables])
def test_a_status_is_that_of_what_is_deployed_at_its_commit(
    lake: Lake, tables: type[CatalogTables], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swap that deploys another generation meanwhile is not undone by a pause."""
    pausing, swapping = DeployedCatalog(lake, tables()), DeployedCatalog(lake, Tables())
    first = Entry(kind=PROJECTION, name="report", generation=1, status=LIVE, text="old")
    pausing.put([first])
    look, met = pausing.entries, list[Entry]()

    def entries() -> list[Entry]:
        found = look()
        if not met:
            met.append(replace(first, generation=2, text="new"))
            swapping.put(met)
        return found

    monkeypatch.setattr(pausing, "entries", entries)
    paused = pausing.set_status("report", PAUSED)
    assert [paused] == swapping.entries() == [replace(met[0], status=PAUSED)]
    assert swapping.live(PROJECTION) == []
    version = swapping.version()
    pausing.set_status("report", PAUSED)
    assert swapping.version() == pausing.version() == version
    pausing.try_again("typed/shop.a")
    assert swapping.live(RETRY) == [
        Entry(kind=RETRY, name="typed/shop.a", generation=1, status=LIVE, text="")
    ]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("shop.public", "begin so are shop.public.items, shop.public.orders"),
        ("shop.public.order", ""),
        ("shop", "begin so are shop.public.items, shop.public.orders"),
        ("events", "begin so are events.flight.departed"),
    ],
)
def test_what_names_of_logs_begin_with_is_no_log_itself(lake: Lake, name: str, near: str) -> None:
    typed = ("events.flight.departed", "shop.public.items", "shop.public.orders")
    catalog = LakeCatalog(
        lake,
        Tables(),
        DeployedCatalog(lake, Tables()).deployment(),
        typed=[f"typed/{each}" for each in typed],
        fields={},
    )
    text = f"CREATE PROJECTION p WITH (key = 'id') AS SELECT id FROM STREAM {name}"
    with pytest.raises(InvalidRequest) as refused:
        plan(parse_script(text).projections[0], catalog)
    assert waits_for_input(refused.value) is (not near), "its rows may be yet to come"
    assert near in refused.value.message


def _told(name: str, item: str) -> str:
    return f"CREATE PROJECTION {name} WITH (key = 'id') AS SELECT id, {item} FROM STREAM events.a.b"


def test_a_text_that_is_refused_by_now_keeps_nothing_else_back(lake: Lake) -> None:
    site = Site(lake=lake)
    old = _told("old", "date_trunc('day', at, 'UTC') AS day")
    good = _told("good", "at")
    source = "CREATE SOURCE gone ON one.part"
    site.deployed.put(
        [
            Entry(kind=PROJECTION, name="old", generation=2, status=LIVE, text=old),
            Entry(kind=PROJECTION, name="good", generation=1, status=LIVE, text=good),
            Entry(kind=SOURCE, name="gone", generation=1, status=LIVE, text=source + ".of.it.all"),
        ]
    )
    deployment = site.deployed.deployment()
    assert [*deployment.declared] == ["good"]
    assert deployment.generations == {"good": 1, "old": 2}
    (_, error) = deployment.held["old"]
    assert "date_trunc does not take 3 arguments" in error.message
    statements = parse_script(f"{_told('other', 'at')}; {source}.t WITH (lateness = '1 hour')")
    with pytest.raises(Conflict, match="source gone is deployed with a text"):
        apply(site, statements.sources, ())
    with pytest.raises(Conflict, match="deployed with a text that is refused by now") as refused:
        apply(site, (), parse_script(_told("old", "at")).projections)
    assert "penstock projection drop old --yes" in refused.value.remedy
    assert site.deployed.set_status("old", DROPPED).status == DROPPED
    site.deployed.drop_source("gone")
    again = parse_script(f"{_told('old', 'at')}; {_told('other', 'at')}").projections
    done = apply(site, (), again)
    assert {each.name: each.outcome for each in done} == {"old": "created", "other": "created"}
    assert not site.deployed.deployment().unread
    assert sorted(site.deployed.deployment().declared) == ["good", "old", "other"]
