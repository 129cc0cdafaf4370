"""The workspace's lake as replays and deployments see it, with the stack up or down."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from apps.settings import Settings
from kernel.errors import Unavailable
from lake.layout import Lake

if TYPE_CHECKING:
    import pyarrow as pa

    from replay.subject import Site


def site_of(found: Settings, *, fields: bool = True, into: Lake | None = None) -> Site:
    """Name the lake, which need not be there; with `fields` ask the registry for columns.

    `into`: another lake that takes what is built.
    """
    # Commands import this module for their help too, which should not pay for what reads the lake.
    from replay.subject import Site

    return Site(
        lake=Lake.named(found.lake),
        fields=_fields(found) if fields else {},
        lateness=found.lateness,
        into=into,
    )


def _fields(found: Settings) -> Mapping[str, pa.Schema]:
    from projections.run.event_fields import EventFields
    from schemas.registry import ConfluentRegistry

    if url := found.text("registry.url"):
        with suppress(Unavailable), closing(ConfluentRegistry(url)) as registry:
            return EventFields(registry).columns()
    return {}
