"""The end of the demo: replays, figures, where the tables are, and what to try next."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from examples.flights.commands import Penstock
from examples.flights.comparison import TableComparison, compare
from examples.flights.freshness import Freshness
from examples.flights.narration import DemoCheck, Narration
from examples.flights.oracle import AWAITING_REPLAY, KEYS, Oracle
from examples.flights.tables import rows_of
from lake import storage
from lake.layout import Lake
from projections.serve.lake_tables import table_names


def as_check(title: str, found: TableComparison) -> DemoCheck:
    """Turn a comparison into a check."""
    return DemoCheck(title=title, holds=found.equal, found=found.describe(), samples=found.samples)


def hashes_agree(verified: Any, *, tables: Iterable[str]) -> list[DemoCheck]:
    """Turn the answer of `penstock source verify` into a check per table."""
    answers = {answer["table"].rpartition(".")[2]: answer for answer in verified["tables"]}
    return [
        DemoCheck(
            title=f"{name}: row hashes of source and mirror",
            holds=name in answers and bool(answers[name]["equal"]),
            found=_figures(answers.get(name)),
        )
        for name in tables
    ]


def rebuild(penstock: Penstock, narration: Narration) -> None:
    """Build every projection anew from the log and compare it with the live one."""
    for name in KEYS:
        penstock("replay", "plan", name)
        built = penstock("replay", "apply", name)
        generation = str(built["generation"])
        verified = penstock("replay", "verify", name, "--generation", generation, accept=(0, 1))
        narration.check(
            DemoCheck(
                title=f"{name}, rebuilt as generation {generation} = the live one",
                holds=bool(verified["equal"]),
                found=_figures(verified),
            )
        )
        penstock("replay", "cancel", name, "--generation", generation)


def include_late(penstock: Penstock, narration: Narration, lake: Lake, oracle: Oracle) -> None:
    """Let a replay bring in what came too late, and make the result the live one."""
    complete = oracle.tables()
    for name in sorted(AWAITING_REPLAY):
        built = penstock("replay", "apply", name, "--include-late")
        generation = str(built["generation"])
        penstock("replay", "verify", name, "--generation", generation)
        penstock("replay", "swap", name, "--generation", generation)
    for name, key in KEYS.items():
        found = compare(name, complete[name], rows_of(lake, f"projection/{name}"), key=key)
        narration.check(as_check(f"projection {name} = oracle with every event", found))


def figures(
    narration: Narration, lake: Lake, fresh: Sequence[Freshness], throughput: Mapping[str, float]
) -> None:
    """Print throughput, freshness, and where the tables lie."""
    narration.step("Figures")
    narration.figures |= {name: round(value, 3) for name, value in throughput.items()}
    narration.figures["freshness"] = {
        each.name: {"p50_s": round(each.p50_s, 3), "p95_s": round(each.p95_s, 3)} for each in fresh
    }
    narration.say(
        f"{throughput['events']:,.0f} events posted in {throughput['posting_s']:.1f} s "
        f"({throughput['events'] / throughput['posting_s']:,.0f}/s); from the first post until "
        f"every table had them {throughput['through_s']:.1f} s "
        f"({throughput['events'] / throughput['through_s']:,.0f}/s, a crash included)"
    )
    narration.say("From the commit of an event to a table that has it:")
    for each in fresh:
        narration.say(f"  {each.describe()} ({each.events:,} events)")
    narration.say(f"The tables lie in {lake.root}:")
    for name in table_names(lake):
        if name.startswith(("log/", "typed/", "current/", "history/", "projection/")):
            rows = int(DeltaTable(lake.path(name)).count())
            narration.say(f"  {name}  {rows:,} rows")


def try_next(folder: Path, lake: Lake) -> list[str]:
    """Return five commands that work with the stack stopped: the lake is plain Delta."""
    status, delays, weather = (
        lake.path(f"projection/{name}")
        for name in ("flight_status", "carrier_delays", "departure_weather")
    )
    return [
        _penstock(
            folder, "query", "SELECT status, count(*) AS flights FROM flight_status GROUP BY status"
        ),
        _penstock(
            folder,
            "query",
            "SELECT carrier, sum(departures) // 3 AS departures, max(max_delay_minutes) AS worst "
            "FROM carrier_delays GROUP BY carrier ORDER BY worst DESC",
        ),
        # The files themselves: deltalake's dataset calls back into Python from Arrow's threads, and
        # one that still does so while Python ends aborts it. Its list writes a blank as `%20`.
        _python(
            "import duckdb; from deltalake import DeltaTable; from urllib.parse import unquote; "
            f"files = [unquote(file) for file in DeltaTable({weather!r}).file_uris()]; "
            "weather = duckdb.read_parquet(files); "
            "print(duckdb.sql('SELECT visib, avg(departure_delay_minutes) AS delay, count(*) "
            "FROM weather GROUP BY visib ORDER BY visib'))"
        ),
        _python(
            "import polars; from deltalake import DeltaTable; from urllib.parse import unquote; "
            f"files = [unquote(file) for file in DeltaTable({status!r}).file_uris()]; "
            "flights = polars.read_parquet(files); "
            "print(flights.group_by('dest', 'status').len().head())"
        ),
        _python(
            "from deltalake import DeltaTable; "
            f"[print(c['version'], c['operation']) for c in DeltaTable({delays!r}).history(5)]"
        ),
    ]


def verdict(narration: Narration, folder: Path, lake: Lake, *, kept: bool) -> None:
    """Print the outcome and what to try next."""
    failures = narration.failures
    held = len(narration.checks) - len(failures)
    narration.step(
        f"All {held} checks hold" if not failures else f"{len(failures)} checks do NOT hold"
    )
    for check in failures:
        narration.say(f"NO  {check.title}: {check.found}")
    if kept:
        narration.say(f"The stack is still up. Stop it with: {_penstock(folder, 'down')}")
    if not storage.is_local(lake.root):
        return
    narration.say("To try next (they work with the stack stopped):")
    for command in try_next(folder, lake):
        narration.say(f"  {command}")


def _figures(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return "no answer"
    flat = (
        f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}"
        for key, value in answer.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool) and key != "table"
    )
    return ", ".join(flat)


def _penstock(folder: Path, *words: str) -> str:
    return shlex.join((_program("penstock"), *words, "--workspace", str(folder)))


def _python(code: str) -> str:
    # Double quotes are easier to read around code that has single ones.
    quoted = shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'
    return f"{shlex.quote(_program('python'))} -c {quoted}"


def _program(name: str) -> str:
    """Return how a user of this shell calls a program of our own environment."""
    ours = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).parent == ours.parent:
        return name
    return str(ours.relative_to(Path.cwd()) if ours.is_relative_to(Path.cwd()) else ours)
