"""What tests leave behind of the databases that they capture."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from kernel.errors import Unavailable
from tests.support.sources import databases


def test_a_slot_whose_reader_takes_its_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect speaks of a deleted connector no more while its task still leaves the database."""
    asked: list[str] = []

    def retire(_: str, name: str) -> bool:
        asked.append(name)
        if len(asked) < 3:
            raise Unavailable(f"slot {name} is still read by pid 7")
        return True

    connect = SimpleNamespace(delete=lambda _: None, await_gone=lambda _, timeout_s: None)
    stack: Any = SimpleNamespace(required=lambda _: "")
    monkeypatch.setattr(databases, "ConnectClient", lambda _: nullcontext(connect))
    monkeypatch.setattr(databases, "retire_slot", retire)
    databases.leave(stack, "w", "shop", "")
    assert len(asked) == 3
    assert len({*asked}) == 1


def test_a_database_that_does_not_answer_is_left_to_whom_it_is_dropped_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def retire(*_: str) -> bool:
        raise Unavailable("PostgreSQL does not answer")

    connect = SimpleNamespace(delete=lambda _: None, await_gone=lambda _, timeout_s: None)
    stack: Any = SimpleNamespace(required=lambda _: "")
    monkeypatch.setattr(databases, "ConnectClient", lambda _: nullcontext(connect))
    monkeypatch.setattr(databases, "retire_slot", retire)
    databases.leave(stack, "w", "shop", "")
