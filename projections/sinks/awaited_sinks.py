"""Which sinks have not sent yet what their projections' tables had when somebody began to wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from kernel.errors import FIX
from lake.layout import Lake
from lake.rows import SmallTables
from projections.serve.standings import with_sinks
from projections.sinks.first_runs import has_run


@dataclass(slots=True)
class AwaitedSinks:
    """The version that each sink has to send, as of the first look; later ones are no concern."""

    lake: Lake
    tables: SmallTables
    _wanted: dict[str, int] = field(default_factory=dict)

    def missing(self, state: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Return a line for each sink that lacks something. `state`: what the pipeline says."""
        told: Mapping[str, Any] = {} if state is None else state.get("sinks", {})
        declared = with_sinks(self.lake, self.tables, known=frozenset(told))
        lines = (self._line(*each, told.get(each[0])) for each in declared.items())
        return tuple(line for line in lines if line is not None)

    def _line(self, name: str, generation: int, sink: Mapping[str, Any] | None) -> str | None:
        sent = None if sink is None else sink["version"]
        if name not in self._wanted:
            self._wanted[name] = self._newest(name, generation)
        wanted = self._wanted[name]
        if wanted < 0 or (sent is not None and sent >= wanted):
            return None
        if sink is None:
            return f"sink of {name}: the pipeline has not begun with it"
        reason = f" ({sink['error'].partition(FIX)[0]})" if sink["error"] else ""
        has = "nothing" if sent is None else f"version {sent}"
        return f"sink of {name}, {sink['target']}: {has} of {wanted} sent{reason}"

    def _newest(self, name: str, generation: int) -> int:
        """Return the version that a projection's table has now; -1 where no run has made one."""
        try:
            table = DeltaTable(self.lake.path(f"projection/{name}"))
        except TableNotFoundError:
            return -1
        return int(table.version()) if has_run(table, name, generation) else -1
