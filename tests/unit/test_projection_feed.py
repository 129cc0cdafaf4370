"""A reader of a projection's changes: where its place leads nowhere, and where rows are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from kernel.errors import NotFound
from lake.layout import Lake
from service.lake_reading import LakeReader
from service.projection_feed import ChangeFeed
from tests.support.lake.handmade import HandMade, words

MEMORY = 2**22


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    """`a` and `b`, with a row each."""
    handmade = HandMade(Lake.at(tmp_path / "lake"))
    epoch = handmade.epoch()
    for name in ("a", "b"):
        handmade.deploy(name)
        handmade.run(name, words((1, f"of {name}"), epoch=epoch), epoch)
    return handmade


def told(
    made: HandMade, name: str, after: str = "", *, until: str, sizes: list[int] | None = None
) -> list[str]:
    """Follow a projection; return its messages up to one that has this text."""

    async def follow() -> list[str]:
        reader = LakeReader(made.lake.root, memory_bytes=MEMORY)
        config = SimpleNamespace(heartbeat_s=15.0)
        runtime: Any = SimpleNamespace(lake=reader, stopping=False, config=config)
        heard: list[str] = []
        try:
            async with aclosing(ChangeFeed(runtime, name, after).chunks()) as chunks:
                async for chunk in chunks:
                    heard += messages(chunk.body)
                    (sizes if sizes is not None else []).append(len(chunk.body))
                    if until in chunk.body.decode():
                        return heard
        except NotFound as error:
            heard.append(str(error))
        finally:
            await reader.stop()
        return heard

    return asyncio.run(follow())


def test_large_rows_are_sent_a_few_at_a_time(made: HandMade) -> None:
    rows = words(*((i, "x" * 100_000) for i in range(30)))
    made.run("a", rows, made.epoch())
    sizes: list[int] = []
    heard = told(made, "a", until="caught-up", sizes=sizes)
    assert len(heard) == 31
    assert max(sizes) < 400_000


def messages(body: bytes) -> Iterator[str]:
    return (message for message in body.decode().split("\n\n") if message)


def id_of(message: str) -> str:
    (found,) = (line for line in message.split("\n") if line.startswith("id: "))
    return found.removeprefix("id: ")


def test_rows_that_are_gone_end_the_feed_after_one_new_beginning(made: HandMade) -> None:
    table = DeltaTable(made.lake.path("projection/a"))
    for uri in table.file_uris():
        Path(uri.removeprefix("file://")).unlink()
    heard = told(made, "a", until="never")
    assert [message.split("\n")[0] for message in heard[:-1]] == ["event: reset"]
    assert "not kept any more" in heard[-1]


def test_a_place_in_another_projection_leads_nowhere(made: HandMade) -> None:
    *_, end = told(made, "a", until="caught-up")
    reset, row, *_ = told(made, "b", id_of(end), until="caught-up")
    # An empty id has a browser forget the one that it had.
    assert reset.split("\n")[:2] == ["event: reset", "id: "]
    assert '"word":"of b"' in row
    assert [m.split("\n")[0] for m in told(made, "a", id_of(end), until="caught-up")] == [
        "event: caught-up"
    ]


def test_a_lake_that_was_made_again_has_other_places(made: HandMade, tmp_path: Path) -> None:
    *_, end = told(made, "a", until="caught-up")
    again = HandMade(Lake.at(tmp_path / "again"))
    again.deploy("a")
    again.run("a", words((1, "anew")), again.epoch())
    reset, row, *_ = told(again, "a", id_of(end), until="caught-up")
    assert reset.startswith("event: reset")
    assert '"word":"anew"' in row
