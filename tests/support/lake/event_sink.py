"""A lake whose projection has a category of events as its sink, and the store that has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from apps.settings import Setting
from tests.support.lake.topic_sink import SinkWorld


@dataclass
class EventWorld(SinkWorld):
    """Sinks as a pipeline's process has them, beside a service that is running."""

    service: httpx.Client
    category: str = "told"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in {
            "service.url": str(self.service.base_url).rstrip("/"),
            "service.token": "",
        }.items():
            self.settings.values[name] = Setting(value=value, origin="test")
        self.restart()

    @property
    def target(self) -> str:
        """What the statement says of its sink."""
        return f"event:{self.category}"

    def events(self) -> list[dict[str, Any]]:
        """Return all events of the sink, in the order of the store."""
        answer = self.service.get("/v1/events", params={"category": self.category, "limit": 1000})
        found: list[dict[str, Any]] = answer.raise_for_status().json()["events"]
        return found

    def told(self) -> list[tuple[str, str, str, bool]]:
        """Return what they say: stream, type, the row's word, and whether it is silent."""
        return [
            (
                each["stream"],
                each["type"],
                each["data"]["word"],
                each["metadata"].get("penstock_silent", False),
            )
            for each in self.events()
        ]
