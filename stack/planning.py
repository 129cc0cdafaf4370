"""Work out a plan: which parts, on which ports, with which files and command lines."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernel.errors import Conflict, InvalidRequest, Misconfigured
from stack import parts as definitions
from stack.accounts import postgres_place
from stack.jars import resolve
from stack.java import Java, find_java
from stack.plan import (
    LOCAL_PARTS,
    Part,
    Restarts,
    StackPlan,
    document_of,
    in_order,
    write_atomically,
)
from stack.ports import DEFAULT_BASE, choose
from stack.progress import Report
from stack.workspace import Workspace

BACKGROUND = ("connect", "pipeline")
"""Parts that come after those that take writes: what they do late is not lost."""
ExtraParts = Callable[[Mapping[str, int], Mapping[str, str]], Sequence[Part]]
"""Makes further parts from the chosen ports and the environment that they should get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `up` is asked for.

    `parts` of `LOCAL_PARTS`; `postgres_dsn` replaces the local PostgreSQL; `wanted_ports` by name
    of `ports.NAMES` beat `port_base`; `extra` makes parts of its own, for which `extra_ports` are
    chosen; the parts of `BACKGROUND` get `background_niceness`; `restarts` say when one that
    keeps dying is given up.
    """

    parts: tuple[str, ...] = LOCAL_PARTS
    postgres_dsn: str | None = None
    registry_database: str = definitions.REGISTRY_DATABASE
    port_base: int = DEFAULT_BASE
    wanted_ports: Mapping[str, int] = field(default_factory=dict)
    offline: bool = False
    mirror: str | None = None
    extra: ExtraParts | None = None
    extra_ports: tuple[str, ...] = ()
    background_niceness: int = 0
    restarts: Restarts = field(default_factory=Restarts)
    timeout_s: float = 600.0


def make_plan(workspace: Workspace, options: UpOptions, report: Report) -> StackPlan:
    """Return the plan for what is asked, together with what a running stack has already.

    Parts that run keep their definition and ports. Renders configuration files, makes the
    database password, fetches jars. Raises `Conflict` when a running stack uses another PostgreSQL.
    """
    running = workspace.read_plan() if workspace.supervisor_pid() else None
    kept = {part.name: part for part in running.parts} if running else {}
    if running:
        options = _agreeing(options, running, kept)
    local = _local_parts(options)
    ports = _choose_ports(workspace, options, local, kept)
    made = _Builder(workspace, options, local, ports, report).build()
    merged = {**{part.name: part for part in made}, **kept}
    endpoints = _endpoints(workspace, merged, ports, options)
    restarts = running.restarts if running else options.restarts
    return StackPlan(parts=tuple(in_order(merged.values())), endpoints=endpoints, restarts=restarts)


def _agreeing(options: UpOptions, running: StackPlan, kept: Mapping[str, Part]) -> UpOptions:
    """Take over which PostgreSQL a running stack uses."""
    dsn = None if "postgres" in kept else running.endpoints.get("postgres.dsn")
    if options.postgres_dsn and options.postgres_dsn != dsn:
        raise Conflict(
            "the stack runs already, with another PostgreSQL",
            remedy="Stop it first: penstock down",
        )
    return replace(options, postgres_dsn=None if dsn is None else str(dsn))


def _local_parts(options: UpOptions) -> tuple[str, ...]:
    unknown = set(options.parts) - set(LOCAL_PARTS)
    if unknown:
        raise InvalidRequest(f"no part {min(unknown)!r}; there are: {', '.join(LOCAL_PARTS)}")
    replaced = {"postgres"} if options.postgres_dsn else set()
    return tuple(name for name in LOCAL_PARTS if name in options.parts and name not in replaced)


class _Builder:
    """Makes the parts of one plan, fetching only what they need."""

    def __init__(
        self,
        workspace: Workspace,
        options: UpOptions,
        local: tuple[str, ...],
        ports: Mapping[str, int],
        report: Report,
    ) -> None:
        self.workspace, self.options, self.local = workspace, options, local
        self.ports, self.report = ports, report

    def build(self) -> list[Part]:
        """Return all parts, each after those that it needs."""
        made: list[Part] = []
        if "postgres" in self.local:
            place = postgres_place(self.workspace)
            made.append(
                definitions.postgres(place, self.ports["postgres"], password_file(self.workspace))
            )
        needs_jars = bool(set(self.local) - {"postgres"})
        java = find_java() if needs_jars or self.options.extra_ports else None
        if java is not None and needs_jars:
            made.extend(self._java_parts(java))
        if self.options.extra is not None:
            env = {} if java is None else {"JAVA_HOME": str(java.home)}
            extra = self.options.extra(self.ports, env)
            names = {part.name for part in (*made, *extra)}
            for part in extra:
                # What this stack does not run itself is somewhere else, by the settings.
                made.append(replace(part, needs=tuple(n for n in part.needs if n in names)))
        behind = self.options.background_niceness
        return [replace(p, niceness=behind) if p.name in BACKGROUND else p for p in made]

    def _java_parts(self, java: Java) -> list[Part]:
        jars = resolve(
            offline=self.options.offline, mirror=self.options.mirror, progress=self.report
        )
        around = definitions.Surroundings(
            folder=self.workspace.folder, ports=self.ports, jars=jars, java=java
        )
        made = []
        if "kafka" in self.local:
            made.append(definitions.kafka(around))
        if "registry" in self.local:
            needs: tuple[str, ...] = ("postgres",) if "postgres" in self.local else ()
            made.append(definitions.registry(around, self._registry_dsn(), needs))
        if "connect" in self.local:
            if "kafka" not in self.local:
                raise InvalidRequest("connect needs kafka: add it to --only")
            # Its connectors go on at once when it starts, and need all the others.
            needs = tuple(name for name in self.local if name != "connect")
            made.append(definitions.connect(around, needs))
        return made

    def _registry_dsn(self) -> str:
        database = self.options.registry_database
        if "postgres" in self.local:
            return definitions.local_dsn(
                self.ports["postgres"], password_file(self.workspace).read_text(), database
            )
        if not self.options.postgres_dsn:
            raise Misconfigured(
                "the registry keeps its schemas in PostgreSQL, and there is none",
                remedy="Add the part postgres, or name a server: --postgres DSN",
            )
        # Here, because it brings a database driver that no other command of the stack needs.
        from stack.external_postgres import prepare_external

        return prepare_external(self.options.postgres_dsn, database)


def _choose_ports(
    workspace: Workspace,
    options: UpOptions,
    local: tuple[str, ...],
    kept: Mapping[str, Part],
) -> dict[str, int]:
    """Return every port of the plan and remember them: the next start prefers the same ones."""
    file = workspace.folder / "ports.json"
    memory = document_of(file)
    remembered: dict[str, int] = memory.get("ports", {})
    holders = {"kafka_controller": "kafka"}
    held = {name: port for name, port in remembered.items() if holders.get(name, name) in kept}
    names = [*local, *options.extra_ports, *(["kafka_controller"] if "kafka" in local else [])]
    same = remembered if memory.get("base") == options.port_base else {}
    wanted = {**same, **options.wanted_ports}
    fresh = choose(options.port_base, wanted, tuple(n for n in names if n not in held))
    ports = {**held, **fresh}
    write_atomically(file, json.dumps({"base": options.port_base, "ports": {**same, **ports}}))
    return ports


def _endpoints(
    workspace: Workspace,
    parts: Mapping[str, Part],
    ports: Mapping[str, int],
    options: UpOptions,
) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    if "postgres" in parts:
        password = password_file(workspace).read_text()
        found["postgres.dsn"] = definitions.local_dsn(ports["postgres"], password)
    elif options.postgres_dsn:
        found["postgres.dsn"] = options.postgres_dsn
    if "kafka" in parts:
        found["kafka.bootstrap"] = f"127.0.0.1:{ports['kafka']}"
    for name in ("registry", "connect", "service", "pipeline"):
        if name in parts:
            found[f"{name}.url"] = f"http://127.0.0.1:{ports[name]}"
    for name in ("service", "pipeline"):
        if name in parts:
            found[f"{name}.port"] = ports[name]
    return found


def password_file(workspace: Workspace) -> Path:
    """Return the file of the workspace's own database password, made at first use, private."""
    file = workspace.folder / "password"
    if not file.exists():
        write_atomically(file, secrets.token_urlsafe(24), mode=0o600)
    return file
