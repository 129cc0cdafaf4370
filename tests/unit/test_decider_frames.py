"""Messages between the service and the processes of users' code."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from eventstore.deciders.frames import exchange, packed, receive
from kernel.errors import DeciderFailed

MODULE = "loaded_elsewhere"


@pytest.fixture
def message() -> bytes:
    """Return a message with a class that exists in the other process alone."""
    module = ModuleType(MODULE)
    module.Theirs = type("Theirs", (), {"__module__": MODULE})
    sys.modules[MODULE] = module
    try:
        return packed(module.Theirs())
    finally:
        del sys.modules[MODULE]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_message_that_cannot_be_read_here_is_the_codes_error(
    message: bytes, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    theirs.sendall(message + packed("next"))
    with pytest.raises(DeciderFailed, match=f"cannot be read.*{MODULE}"):
        receive(ours)
    assert receive(ours) == "next"


def test_an_answer_that_cannot_be_read_here_is_the_codes_error(
    message: bytes, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    theirs.sendall(message)
    ours.setblocking(False)
    with pytest.raises(DeciderFailed, match=f"cannot be read.*{MODULE}"):
        asyncio.run(exchange(ours, packed("?")))
