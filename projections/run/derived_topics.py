"""Brings the typed tables of external topics forward, for `derived`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kernel.positions import Epoch
from lake.attempts import Attempts
from pipeline.typed.tables import TypedTables
from pipeline.typed.topics import typed_topic
from projections.run.catalog import DeployedCatalog
from projections.run.endings import endings_of
from schemas.topic_records import TopicShape


class DerivedTopics:
    """Knows which topics are declared now. What a typed table lacks is in the log, however old."""

    def __init__(self, typed: TypedTables, deployed: DeployedCatalog) -> None:
        self._typed = typed
        self._deployed = deployed

    def lacks(self, made: Collection[str], held: Collection[str]) -> bool:
        """Say whether a topic was declared whose table was not made yet, or is of another one."""
        return self.declared_anew(held) or any(
            shape.columns and name not in made and name not in held
            for name, shape in self._declared().items()
        )

    def declared_anew(self, held: Collection[str]) -> bool:
        """Say whether a table that is not held has the rows of another declaration."""
        return bool(self._others(held))

    def unwanted(self, held: Collection[str], histories: Collection[str]) -> list[str]:
        """Return held tables, of topics and histories, that nobody asks for: no hold would end."""
        kinds = ("history/", typed_topic(""))
        wanted = {*histories, *self._declared()}
        return [name for name in held if name.startswith(kinds) and name not in wanted]

    def _others(self, held: Collection[str]) -> set[str]:
        """Return the tables, those held left out, that have the rows of another declaration."""
        found: set[str] = set()
        for name, shape in self._declared().items():
            if name in held:
                continue
            # What cannot be opened is held when it is brought forward.
            with Attempts().of(name):
                found |= {name} if self._typed.has_other_topic(shape) else set()
        return found

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

        Where no epoch was `moved` on, only those take part that were not `made` yet, or are of
        another declaration.
        """
        attempts = Attempts()
        others = self._others(held)
        for name, shape in self._declared().items():
            if due(name) if name in held else moved or name not in made or name in others:
                with attempts.of(name):
                    at = self._typed.add_topic(shape, endings_of(shape), up_to)
                    attempts.done |= {} if at is None else {name: at}
        return attempts

    def _declared(self) -> Mapping[str, TopicShape]:
        shapes = self._deployed.deployment().topics.values()
        return {typed_topic(shape.source): shape for shape in shapes}
