"""The port of ingest to whoever knows which topics there are, and how their records are decoded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from pipeline.decode.records import Router


class ReadTopics(Router, Protocol):
    """Which topics are read, by lanes, and who decodes the records of each."""

    @property
    def prefix(self) -> str:
        """What the names of the workspace's own topics begin with."""
        ...

    @property
    def owners(self) -> Mapping[str, str]:
        """The declared sources of external topics, by topic."""
        ...

    @property
    def lanes(self) -> frozenset[str]:
        """The lanes whose topics are declared, whether there are any yet or not."""
        ...

    def pattern(self) -> str:
        """Return a regular expression, for Java as for Python, of every topic that is read."""
        ...

    def leaving_out(self, sources: Collection[str]) -> ReadTopics:
        """Return one that does not read these sources; `outbox` is the event store's."""
        ...
