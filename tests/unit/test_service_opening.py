"""A service tries to open its store until it is open."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from kernel.errors import Unavailable
from schemas.registry import MemoryRegistry
from service import runtime
from service.config import ServiceConfig


def test_a_store_is_opened_again_whatever_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServiceConfig(dsn="", registry_url="", workspace=tmp_path)
    service = runtime.Runtime(config, MemoryRegistry())
    errors = [OSError(errno.ENOMEM, "no room"), Unavailable("away", remedy="Wait.")]
    troubles = []

    async def open_() -> Any:
        troubles.append(service.trouble)
        if errors:
            raise errors.pop(0)
        return "opened"

    async def run() -> None:
        service.start()
        assert service._opening is not None
        await service._opening

    monkeypatch.setattr(service, "_open", open_)
    monkeypatch.setattr(runtime, "_OPEN_AGAIN_S", 0)
    asyncio.run(run())
    assert service.is_open
    assert troubles == ["starting", "OSError: [Errno 12] no room", "away (Wait.)"]
