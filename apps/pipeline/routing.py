"""Which topics ingest reads, and how the records of each are decoded."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from cdc.decode import ChangeDecoder
from eventstore.decode import EventDecoder
from pipeline.decode.records import Decoder
from pipeline.decode.topic_decoder import TopicDecoder
from projections.run.catalog import Deployment
from schemas.identifiers import EVENTS, OUTBOX
from schemas.lookups import AskedOnce
from schemas.registry import ConfluentRegistry, SchemaLookup
from schemas.topic_records import TopicShape


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouter:
    """Finds the decoder of a topic. Picklable: it travels to Spark's workers.

    `captures` maps a captured source to the columns that hold its tables' event time. `external`
    are the topics of declared sources, by name. Topics of the sources `without` are not read.
    """

    prefix: str
    registry_url: str
    captures: Mapping[str, Mapping[str, str]]
    external: Mapping[str, TopicShape] = field(default_factory=dict)
    without: frozenset[str] = field(default=frozenset())

    def decoder(self, topic: str) -> Decoder | None:
        """Return the decoder of a topic; None for one that nothing claims."""
        if topic in self.external:
            return TopicDecoder(self.external[topic], self._schemas)
        name = topic.removeprefix(self.prefix)
        source, _, _ = name.partition(".")
        if source == EVENTS:
            return EventDecoder(self._schemas)
        if source in self.captures:
            return ChangeDecoder(
                source=source,
                topic_prefix=self.prefix,
                schemas=self._schemas,
                event_times=dict(self.captures[source]),
            )
        return None

    @property
    def _schemas(self) -> SchemaLookup:
        return AskedOnce(ConfluentRegistry(self.registry_url))

    def pattern(self) -> str:
        """Return a regular expression, for Java as for Python, of every topic that is read.

        It is anchored: Spark looks for it anywhere in a topic's name.
        """
        names = {OUTBOX: EVENTS} | {name: name for name in sorted(self.captures)}
        read = [re.escape(topics) for name, topics in names.items() if name not in self.without]
        own = [f"{re.escape(self.prefix)}({'|'.join(read)})\\..+"] if read else []
        others = [
            re.escape(topic)
            for topic, shape in sorted(self.external.items())
            if shape.source not in self.without
        ]
        return f"^({'|'.join([*own, *others])})$"

    @property
    def owners(self) -> dict[str, str]:
        """Return the declared sources of external topics, by topic."""
        return {topic: shape.source for topic, shape in self.external.items()}

    @property
    def lanes(self) -> frozenset[str]:
        """The lanes whose topics are declared, whether there are any yet or not."""
        return frozenset({OUTBOX, *self.captures, *self.owners.values()})

    def leaving_out(self, sources: Collection[str]) -> TopicRouter:
        """Return a router that does not read these sources; `outbox` is the event store's."""
        return replace(self, without=frozenset(sources))


def router_of(deployment: Deployment, *, prefix: str, registry_url: str) -> TopicRouter:
    """Return the router for what is deployed."""
    captures = {name: deployment.event_times(name) for name in deployment.captures}
    return TopicRouter(
        prefix=prefix,
        registry_url=registry_url,
        captures=captures,
        external={shape.topic: shape for shape in deployment.topics.values()},
    )
