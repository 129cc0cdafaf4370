"""One table that fails is held with its cause; others go on, and it lacks nothing in the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.errors import NotFound, Unavailable
from lake.layout import Lake
from projections.run.derived_tables import Brought
from projections.serve.query import ask
from tests.support.lake.telling import BreakingRegistry, ToldLake
from tests.support.services.tier import examples

TYPES = ("placed", "paid", "sent")
PLACES = ("schema lost", "schema away", "decoding", "log of the table", "folder of the table")


@contextmanager
def planted(told: ToldLake, place: str, victim: str) -> Iterator[None]:
    """Make one type's table fail at a place."""
    registry = told.registry
    assert isinstance(registry, BreakingRegistry)
    latest = registry.latest(f"order.{victim}")
    number = latest.id if latest is not None else 0
    path = Path(told.lake.path(f"typed/events.order.{victim}"))
    aside = path.with_name("aside")
    match place:
        case "schema lost":
            registry.broken[number] = NotFound("no such schema")
        case "schema away":
            registry.broken[number] = Unavailable("the registry is away")
        case "decoding":
            registry.broken[number] = '{"type": "record", "name": "x", "fields": 5}'
        case _ if place == "log of the table" and path.exists():
            shutil.copytree(path, aside)
            for entry in (path / "_delta_log").iterdir():
                entry.write_bytes(b"{torn")
        case _:
            if path.exists():
                path.rename(aside)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"a file where a folder should be")
    told.tables.forget_all()
    yield
    registry.broken.clear()
    if place not in PLACES[:3]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if aside.exists():
            aside.rename(path)
    told.tables.forget_all()


def tell(told: ToldLake, kinds: list[str]) -> None:
    for kind in kinds:
        told.tell(kind, {"n": told.position})
    told.epoch()


def values(told: ToldLake, kind: str) -> list[Any]:
    return [(row["position"], row["n"]) for row in told.rows(kind)]


@settings(max_examples=examples(4, matrix=8))
@given(
    place=st.sampled_from(PLACES),
    victim=st.sampled_from(TYPES),
    before=st.lists(st.sampled_from(TYPES), max_size=3),
    meanwhile=st.lists(st.lists(st.sampled_from(TYPES), max_size=3), min_size=1, max_size=3),
)
def test_others_go_on_and_a_released_table_lacks_nothing(
    place: str, victim: str, before: list[str], meanwhile: list[list[str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told = ToldLake(Lake.at(Path(folder)), registry=BreakingRegistry())
        kinds = [victim, *before]
        tell(told, kinds)
        if before:
            told.bring()
        with planted(told, place, victim):
            for more in meanwhile:
                tell(told, [victim, *more])
                kinds += [victim, *more]
                told.derived.try_now()
                brought = told.bring()
            for kind in TYPES:
                if kind != victim:
                    wanted = [(p, p - 1) for p, k in enumerate(kinds, 1) if k == kind]
                    assert values(told, kind) == wanted
            assert held(brought) == {f"typed/events.order.{victim}": 2 if before else 1}
            assert brought.epoch == len(meanwhile) + 1
        told.derived.try_now()
        assert held(told.bring()) == {}
        wanted = [(p, p - 1) for p, k in enumerate(kinds, 1) if k == victim]
        assert values(told, victim) == wanted
        ask(told.lake, f'SELECT count(*) FROM typed."events.order.{victim}"')


def held(brought: Brought) -> dict[str, int]:
    assert all(hold.reason for hold in brought.held.values())
    return {name: hold.from_epoch for name, hold in brought.held.items()}


def test_a_hold_outlives_the_process_and_its_table_is_behind_for_readers(lake: Lake) -> None:
    told = ToldLake(lake, registry=BreakingRegistry())
    tell(told, ["placed", "paid"])
    told.bring()
    with planted(told, "schema lost", "paid"):
        tell(told, ["placed", "paid"])
        told.bring()
        noted = told.manifest.projected()["typed"]
        assert noted.held["typed/events.order.paid"].reason == "no such schema"
        assert ask(lake, 'SELECT max(n) AS n FROM typed."events.order.placed"').rows["n"][0].as_py()
        with pytest.raises(NotFound, match=r"typed/events\.order\.paid is behind"):
            ask(lake, 'SELECT * FROM typed."events.order.paid"', epoch=noted.epoch)
    again = ToldLake(lake, registry=told.registry)
    assert held(again.bring()) == {}
    assert values(again, "paid") == [(2, 1), (4, 3)]
