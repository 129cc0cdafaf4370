"""A question that is not answered is told in time, and not asked again meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from kernel.errors import Unavailable
from service.open_question import OpenQuestion


class Hanging:
    """Somebody who does not answer before it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.go_on = asyncio.Event()

    async def ask(self) -> int:
        self.asked += 1
        await self.go_on.wait()
        return self.asked


def test_who_asks_somebody_that_hangs_is_told_and_keeps_one_question_open() -> None:
    async def scene() -> None:
        other, question = Hanging(), OpenQuestion[int]("the database", answer_s=0.01)
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"the database has not answered for 0\.01 s"):
                await question.answer(other.ask)
        assert other.asked == 1
        other.go_on.set()
        assert await OpenQuestion[int]("it").answer(other.ask) == 2
        await asyncio.sleep(0)
        assert await question.answer(other.ask) == 3, "it is asked again once it has answered"

    asyncio.run(scene())


def test_what_a_question_raises_is_raised_to_who_asks() -> None:
    async def gone() -> int:
        raise Unavailable("the disk is full")

    async def scene() -> None:
        question = OpenQuestion[int]("the database")
        for _ in range(2):
            with pytest.raises(Unavailable, match="the disk is full"):
                await question.answer(gone)

    asyncio.run(scene())


def test_nobody_waits_for_an_answer_behind_the_end() -> None:
    async def scene() -> None:
        other, question = Hanging(), OpenQuestion[int]("the database", answer_s=0.01)
        with pytest.raises(Unavailable):
            await question.answer(other.ask)
        question.close()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scene())
