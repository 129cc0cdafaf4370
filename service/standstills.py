"""What stands still, of everything that ought to move: its cause, and the next command.

The pipeline's and the service's own account of themselves (`/health/ready`) is read here alone, so
that status, doctor, wait, metrics and alerts say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kernel.errors import FIX

_LOGS = "penstock logs pipeline"
_SERVICE_LOGS = "penstock logs service"
_MOVING = ("running", "waiting", "starting", "standby")
_OF_SOURCES = ("source", "gap", "connector", "copy", "slot", "verification", "table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """One thing that does not move. `lasting`: it will not by itself, soon at least."""

    component: str
    name: str
    cause: str
    command: str
    lasting: bool = False

    def __str__(self) -> str:
        what = self.name if self.name == self.component else f"{self.component} {self.name}"
        return f"{what} stands still: {self.cause}{FIX}{self.command}"

    def document(self) -> dict[str, object]:
        """Return it for JSON."""
        return asdict(self)


def of_pipeline(state: Mapping[str, Any]) -> list[Standstill]:
    """Read what the pipeline says of itself."""
    return [
        *_parts(state),
        *_tables(state),
        *_projections(state),
        *_sinks(state),
        *_sources(state),
        *_connectors(state),
    ]


def of_source(found: Iterable[Standstill], source: str) -> list[Standstill]:
    """Return what stands still of one source: itself, or any of its tables."""
    return [each for each in found if each.component in _OF_SOURCES and _is_of(each.name, source)]


def _is_of(name: str, source: str) -> bool:
    """Say whether a name is a source's, or that of a table of it: captured, or of its topic."""
    own = name.rpartition("/")[2]
    return own in (source, f"topics.{source}") or own.startswith(f"{source}.")


def of_service(state: Mapping[str, Any]) -> list[Standstill]:
    """Read what the service says: why it takes no appends, how deliveries and deciders stand, and
    which snapshot stays open.
    """
    found = [
        _told("service", each["part"], each["reason"], _SERVICE_LOGS)
        for each in state.get("reasons", ())
    ]
    found += [
        _told("delivery", each["name"], each.get("reason") or each["state"], "penstock status")
        for each in state.get("deliveries", ())
        if each["state"] not in ("running", "starting")
    ]
    deciders = state.get("deciders", {})
    if deciders.get("state") == "outdated":
        found.append(_told("deciders", "workspace", deciders["reason"], _SERVICE_LOGS))
    for each in deciders.get("stopped", ()):
        cause = f"calls that were killed: {each['calls']}, the last one {each['cause']}"
        found.append(_told("deciders", each["name"], cause, _SERVICE_LOGS))
    if snapshot := state.get("old_snapshot"):
        cause = f"open for {snapshot['age_s']:.0f} s: PostgreSQL can clean up nothing meanwhile"
        found.append(_told("snapshot", snapshot["holder"], cause, snapshot["ended_by"]))
    return found


def _parts(state: Mapping[str, Any]) -> Iterator[Standstill]:
    for part in ("ingest", "projecting"):
        own = state.get(part, {})
        if own.get("state", "running") not in _MOVING:
            lasting = own["state"] in ("failed", "paused", "stalled")
            yield _told(part, part, own.get("reason") or own["state"], _LOGS, lasting=lasting)
    for name, trouble in state.get("parts", {}).items():
        said = f"does not answer the pipeline: {trouble}"
        yield _told("part", name, said, f"penstock restart {name}")
    for name, trouble in state.get("loops", {}).items():
        yield _told("loop", name, trouble, _LOGS)
    for name, trouble in state.get("upkeep", {}).items():
        yield _told("upkeep", name, trouble, _LOGS)
    for name, trouble in state.get("lag_unknown", {}).items():
        yield _told("lag", name, trouble, _LOGS)


def _tables(state: Mapping[str, Any]) -> Iterator[Standstill]:
    for name, hold in state.get("held", {}).items():
        yield Standstill(
            component="table",
            name=name,
            cause=f"held since epoch {hold['from_epoch']}: {hold['reason']}",
            command=hold["command"],
            lasting=bool(hold.get("lasting", True)),
        )


def _projections(state: Mapping[str, Any]) -> Iterator[Standstill]:
    for name, each in state.get("projections", {}).items():
        if each.get("error"):
            command = f"penstock projection status {name}"
            yield _told("projection", name, each["error"], command)


def _sinks(state: Mapping[str, Any]) -> Iterator[Standstill]:
    for name, each in state.get("sinks", {}).items():
        if each["error"]:
            yield _told("sink", name, each["error"], f"penstock projection status {name}")


def _sources(state: Mapping[str, Any]) -> Iterator[Standstill]:
    """A source may stand still in several ways: each is named."""
    for name, reason in state.get("stuck", {}).items():
        yield _told("source", name, reason, f"penstock source status {name}", lasting=True)
    for name, reason in state.get("gaps", {}).items():
        yield _told("gap", name, reason, f"penstock source status {name}", lasting=True)
    for name, said in state.get("copies", {}).items():
        if said.startswith("waits:"):
            yield _told("copy", name, said, f"penstock source status {name}")
    for name, alarm in state.get("slot_alarms", {}).items():
        yield _told("slot", name, alarm, f"penstock source status {name}")
    for name, said in state.get("verify", {}).items():
        if isinstance(said, str):
            yield _told("verification", name, said, f"penstock source verify {name}")


def _connectors(state: Mapping[str, Any]) -> Iterator[Standstill]:
    failing = state.get("failing", {})
    for name, reason in failing.items():
        # One that runs at the moment may have been mended: nobody who waits is sent away for it.
        lasting = state.get("connectors", {}).get(name) != "running"
        yield _told("connector", name, reason, f"penstock source status {name}", lasting=lasting)
    for name, said in state.get("connectors", {}).items():
        if name not in failing and said not in ("running", "paused", "unassigned", "restarting"):
            yield _told("connector", name, said, f"penstock source status {name}")
    for name, said in state.get("silent", {}).items():
        # One that is paused or in trouble is silent for that reason.
        runs = state.get("connectors", {}).get(name) == "running"
        if runs and name not in failing and name not in state.get("gaps", {}):
            yield _told("connector", name, said, f"penstock source status {name}")


def _told(
    component: str, name: str, said: str, command: str, *, lasting: bool = False
) -> Standstill:
    cause, _, fix = said.partition(FIX)
    if fix and "penstock " not in fix:
        # Advice alone leads to no command.
        fix = f"{fix} See: {command}"
    return Standstill(
        component=component, name=name, cause=cause, command=fix or command, lasting=lasting
    )
