from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.runner.catalog import CAPTURE, DROPPED, LIVE, DeployedCatalog, Entry


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
