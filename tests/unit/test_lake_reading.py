"""Slow reads of the lake wait for each other, and neither lookups nor feeds wait for them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kernel.errors import Unavailable
from service import lake_reading
from service.lake_reading import LakeReader


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
