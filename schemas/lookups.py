"""What one batch of records asks a registry, asked once."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel.errors import NotFound
from schemas.registry import SchemaLookup


@dataclass(frozen=True, slots=True)
class AskedOnce:
    """A lookup for the decoder of one batch. Picklable as the registry behind it is.

    An id that the registry does not have is asked for once: a producer that writes to another
    registry would else have each of its records wait for an answer, and with it all that are
    decoded behind them. The next batch asks again, as the schema may have come since.
    """

    registry: SchemaLookup
    _missing: dict[int, NotFound] = field(default_factory=dict, compare=False)

    def schema(self, schema_id: int) -> str:
        """See `SchemaLookup`."""
        missing = self._missing.get(schema_id)
        if missing is not None:
            raise missing.with_traceback(None)
        try:
            return self.registry.schema(schema_id)
        except NotFound as error:
            self._missing[schema_id] = error
            raise
