"""Brings the typed tables of external topics forward, for `derived`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kernel.positions import Epoch
from projections.log.attempts import Attempts
from projections.log.typed import TypedTables
from projections.log.typed_topics import typed_topic
from projections.run.endings import endings_of
from projections.runner.catalog import DeployedCatalog
from schemas.topic_records import TopicShape


class DerivedTopics:
    """Knows which topics are declared now. What a typed table lacks is in the log, however old."""

    def __init__(self, typed: TypedTables, deployed: DeployedCatalog) -> None:
        self._typed = typed
        self._deployed = deployed

    def lacks(self, known: Collection[str]) -> bool:
        """Say whether a topic was declared whose table is not among the known ones."""
        return any(shape.columns and name not in known for name, shape in self._declared().items())

    def bring(
        self,
        up_to: Epoch,
        made: Collection[str],
        held: Collection[str],
        *,
        moved: bool,
        due: Callable[[str], bool],
    ) -> Attempts:
        """Append the records up to an epoch to all tables but those held that are not `due`.

        Where no epoch was `moved` on, only tables that were not `made` yet take part.
        """
        attempts = Attempts()
        for name, shape in self._declared().items():
            if due(name) if name in held else moved or name not in made:
                with attempts.of(name):
                    at = self._typed.add_topic(shape, endings_of(shape), up_to)
                    attempts.done |= {} if at is None else {name: at}
        return attempts

    def _declared(self) -> Mapping[str, TopicShape]:
        shapes = self._deployed.deployment().topics.values()
        return {typed_topic(shape.source): shape for shape in shapes}
