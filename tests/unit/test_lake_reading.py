"""Slow reads of the lake wait for each other, and neither lookups nor feeds wait for them."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from kernel.errors import Unavailable
from lake.layout import Lake
from projections.serve import lookups as served_rows
from projections.serve.keyed_rows import held
from service import lake_reading, projection_routes
from service.lake_reading import LakeReader
from tests.support.lake.handmade import SQL, HandMade, words
from tests.support.lake.swaps import swap


def test_slow_reads_are_bounded_and_hold_up_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_reading, "_MOST_SCANS", 9)

    async def ask() -> None:
        reader, ended = LakeReader(str(tmp_path), memory_bytes=0), threading.Event()
        try:
            slow = [asyncio.create_task(reader.scan(ended.wait)) for _ in range(9)]
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="9 slow reads"):
                await reader.scan(lambda: "refused")
            assert await reader.call(lambda: "looked up") == "looked up"
            assert await reader.follow(lambda: "fed") == "fed"
            # A client who leaves makes room, unless its read has begun.
            slow.pop().cancel()
            await asyncio.sleep(0)
            waited = asyncio.create_task(reader.scan(lambda: "in turn"))
            await asyncio.sleep(0)
            ended.set()
            assert await waited == "in turn"
            assert all(await asyncio.gather(*slow))
        finally:
            ended.set()
            await reader.stop()

    asyncio.run(ask())


def test_what_lookups_load_is_not_walked_through_again(tmp_path: Path) -> None:
    """It is seventy thousand objects: each walk through them stops all requests for 40 ms."""

    async def load() -> list[int]:
        reader, counts = LakeReader(str(tmp_path), memory_bytes=0), []
        try:
            for _ in range(2):
                kept = [[number] for number in range(1_000)]
                await reader.lookups()
                counts.append(gc.get_freeze_count())
                assert kept
        finally:
            await reader.stop()
        return counts

    before = gc.get_freeze_count()
    first, second = asyncio.run(load())
    assert first >= before + 1_000
    # Once: whatever is frozen is kept for good, were it garbage.
    assert second <= first


def test_nobody_waits_for_the_rows_of_a_new_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be all rows there are, as behind a swap: meanwhile those of before are answered."""
    made, may_read = HandMade(Lake.at(tmp_path / "lake")), threading.Event()
    made.deploy("report")
    made.run("report", words((1, "first")), made.epoch())

    async def ask() -> None:
        reader = LakeReader(made.lake.root, memory_bytes=2**20)
        try:
            served, rows = await reader.served("report", newest=True)
            lookups = await reader.lookups()
            assert rows is None
            await reader.scan(lambda: lookups.rows(served))
            first, rows = await reader.at_hand("report")
            while rows is None:
                await asyncio.sleep(0.01)
                first, rows = await reader.at_hand("report")
            monkeypatch.setattr(served_rows, "held", lambda *of: may_read.wait(60) and held(*of))
            made.run("report", words((1, "second")), made.epoch())
            newest, none = await reader.served("report", newest=True)
            assert (newest.epoch, none) == (2, None)
            again, rows = await reader.at_hand("report")
            assert again == first
            # Whoever must not step back says so: without a wait, too.
            told, _, applied = await reader.awaited("report", "store", 0, 0.0)
            assert (told, applied) == (newest, True)
            assert rows is not None
            assert rows.page(None, 9)["word"].to_pylist() == ["first"]
            may_read.set()
            while again != newest:
                await asyncio.sleep(0.01)
                again, rows = await reader.at_hand("report")
            assert rows is not None
            assert rows.page(None, 9)["word"].to_pylist() == ["second"]
        finally:
            may_read.set()
            await reader.stop()

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_an_epoch_behind_a_swap_is_read_while_all_of_its_rows_are_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is at hand meanwhile has another key; or the last look was before the swap."""
    made, may_read = HandMade(Lake.at(tmp_path / "lake")), threading.Event()
    made.deploy("report")
    made.run("report", words((1, "first"), (2, "first")), made.epoch())

    async def ask() -> None:
        reader = LakeReader(made.lake.root, memory_bytes=2**20)
        clients = SimpleNamespace(page=9)
        runtime = SimpleNamespace(lake=reader, config=SimpleNamespace(clients=clients))
        monkeypatch.setattr(projection_routes, "runtime_of", lambda _: runtime)

        async def read(epoch: int) -> tuple[int, list[str], list[str]]:
            answer = await projection_routes.read_rows(MagicMock(), "report", epoch=epoch)
            shown = json.loads(answer.body)
            assert shown["epoch"] == epoch
            return shown["generation"], shown["key"], [row["word"] for row in shown["rows"]]

        try:
            assert await read(1) == (1, ["id"], ["first", "first"])
            while (await reader.at_hand("report"))[1] is None:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(served_rows, "held", lambda *of: may_read.wait(60) and held(*of))
            monkeypatch.setattr(lake_reading, "STALE_S", 60.0)
            base = SQL.format(name="report", key="id")
            rows = words((1, "second"), epoch=2)
            made.build("report", rows, made.epoch(), key="word", base_text=base)
            swap(made.site, "report", lambda replay: replay)
            assert await read(2) == (2, ["word"], ["second"])
            assert (await reader.at_hand("report"))[0].generation == 1
            assert await read(2) == (2, ["word"], ["second"])
            assert await read(1) == (1, ["id"], ["first", "first"])
        finally:
            may_read.set()
            await reader.stop()

    asyncio.run(asyncio.wait_for(ask(), 120))
