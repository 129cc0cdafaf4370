"""Which topics ingest reads, and how the records of each are decoded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cdc.decode import ChangeDecoder
from eventstore.decode import decode_event
from projections.log.decode import Decoder
from projections.runner.catalog import Deployment
from schemas.registry import ConfluentRegistry

EVENTS = "events"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouter:
    """Finds the decoder of a topic. Picklable: it travels to Spark's workers.

    `captures` maps a captured source to the columns that hold its tables' event time.
    """

    prefix: str
    registry_url: str
    captures: Mapping[str, Mapping[str, str]]

    def decoder(self, topic: str) -> Decoder | None:
        """Return the decoder of a topic; None for one that nothing claims."""
        name = topic.removeprefix(self.prefix)
        source, _, _ = name.partition(".")
        if source == EVENTS:
            return decode_event
        if source in self.captures:
            return ChangeDecoder(
                source=source,
                topic_prefix=self.prefix,
                schemas=ConfluentRegistry(self.registry_url),
                event_times=dict(self.captures[source]),
            )
        return None

    def pattern(self) -> str:
        """Return a Java regular expression of every topic that is read."""
        sources = "|".join(re.escape(name) for name in (EVENTS, *sorted(self.captures)))
        return f"{re.escape(self.prefix)}({sources})\\..+"


def router_of(deployment: Deployment, *, prefix: str, registry_url: str) -> TopicRouter:
    """Return the router for what is deployed."""
    captures = {name: deployment.event_times(name) for name in deployment.captures}
    return TopicRouter(prefix=prefix, registry_url=registry_url, captures=captures)
