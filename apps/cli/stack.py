"""penstock up, down, status, logs, doctor, reset: the local stack."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.accounts import after_start, standing_still, while_starting
from apps.capture import capture_site
from apps.cli.commands import CommandCall, commands
from apps.cli.options import JsonOption, NewWorkspaceOption
from apps.cli.output import emit, table, tell, without_password
from kernel.errors import EXIT_UNHEALTHY, InvalidRequest, Misconfigured, Unavailable
from stack import logs
from stack.plan import LOCAL_PARTS, Part, Probe
from stack.ports import DEFAULT_BASE, MAX_BASE, MIN_BASE, NAMES
from stack.status import log_files
from stack.status import status as status_of

if TYPE_CHECKING:
    from stack import doctor
    from stack.planning import UpOptions

PortBase = Annotated[
    int,
    typer.Option(
        min=MIN_BASE, max=MAX_BASE, help="First choice of ports: this one and the six after it."
    ),
]
APPLICATIONS = ("service", "pipeline")
"""The parts that are our own programs; the rest are other people's servers."""
_SILENT_S = 240.0
"""Of the service and the pipeline: whoever answers nobody for so long does not come back."""
_NEEDED = {
    "postgres.dsn": ("postgres", APPLICATIONS),
    "registry.url": ("registry", APPLICATIONS),
    "kafka.bootstrap": ("kafka", ("pipeline",)),
}
"""By setting: the part that provides it, and who needs it."""


def up(
    workspace: NewWorkspaceOption = None,
    only: Annotated[
        str | None, typer.Option(help="Only these parts, with commas: postgres,kafka,…")
    ] = None,
    without: Annotated[str | None, typer.Option(help="All parts but these, with commas.")] = None,
    postgres: Annotated[
        str | None, typer.Option(metavar="DSN", help="Use this PostgreSQL instead of a local one.")
    ] = None,
    port_base: PortBase = DEFAULT_BASE,
    offline: Annotated[bool, typer.Option(help="Use cached jars only.")] = False,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="A Maven mirror to fetch jars from.")
    ] = None,
    foreground: Annotated[bool, typer.Option(help="Stay, and stop all on Ctrl-C.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for readiness.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Start the local stack, or attach to the one that runs; returns when all is ready."""
    from stack import control

    found = settings.load(workspace)
    parts = chosen_parts(only, without)
    check_needs(parts, found, postgres)
    options = stack_options(
        found,
        parts=parts,
        postgres_dsn=postgres,
        port_base=port_base,
        offline=offline,
        mirror=mirror,
        timeout_s=timeout,
    )

    if foreground:
        control.up_foreground(found.workspace, options, tell)
        return
    with explained(found.workspace):
        endpoints = control.up(found.workspace, options, tell)
    if {"connect", "service"} <= set(parts):
        _captures(settings.load(workspace))
    if "service" in parts:
        for each in after_start(settings.load(workspace)):
            tell(str(each))
    shown = {key: without_password(value) for key, value in endpoints.items()}
    rows = [[key, value] for key, value in shown.items()]
    emit(endpoints, as_json=as_json, text=table(["endpoint", "value"], rows))


@contextmanager
def explained(workspace: Path) -> Iterator[None]:
    """Add to the error of a stack that is late what our own programs say of themselves."""
    try:
        yield
    except Unavailable as late:
        known = settings.load(workspace)
        names = [name for name in APPLICATIONS if name in str(late.fields.get("late")).split()]
        said = [line for name in names for line in while_starting(known, name)]
        raise Unavailable(
            "; ".join([late.message, *said]), remedy=late.remedy, **late.fields
        ) from late


def _captures(found: settings.Settings) -> None:
    """Let events and captured tables flow; the service has made the event store by now."""
    from cdc.upkeep import lifecycle

    lifecycle.ensure_outbox(capture_site(found))
    for name, error in lifecycle.ensure_sources(capture_site(found)).items():
        if error is not None:
            tell(f"source {name} does not run: {error.message}\n  fix: {error.remedy}")


def stack_options(
    found: settings.Settings,
    *,
    parts: Sequence[str],
    postgres_dsn: str | None = None,
    port_base: int = DEFAULT_BASE,
    offline: bool = False,
    mirror: str | None = None,
    timeout_s: float = 600.0,
) -> UpOptions:
    """Turn settings and a choice of parts into what `stack.control.up` takes."""
    from stack.planning import UpOptions

    ours = tuple(name for name in APPLICATIONS if name in parts)
    wanted = {} if port_base != DEFAULT_BASE else _ports_from_settings(found)

    def applications(ports: Mapping[str, int], env: Mapping[str, str]) -> list[Part]:
        shared = {**env, "PENSTOCK_WORKSPACE": str(found.workspace)}
        return [_application(name, ports[name], shared) for name in ours]

    database = f"registry_{found.name}" if postgres_dsn else UpOptions().registry_database
    return UpOptions(
        parts=tuple(name for name in LOCAL_PARTS if name in parts),
        postgres_dsn=postgres_dsn,
        registry_database=database,
        port_base=port_base,
        wanted_ports=wanted,
        offline=offline,
        mirror=mirror,
        extra=applications,
        extra_ports=ours,
        background_niceness=_niceness(found),
        timeout_s=timeout_s,
    )


def chosen_parts(only: str | None, without: str | None) -> tuple[str, ...]:
    """Return the parts that `--only` and `--without` leave. Raises `InvalidRequest`."""
    everything = (*LOCAL_PARTS, *APPLICATIONS)
    chosen, dropped = _names(only), _names(without)
    unknown = sorted((chosen | dropped) - set(everything))
    if unknown:
        raise InvalidRequest(
            f"no part '{unknown[0]}'; there are: {', '.join(everything)}",
            remedy=f"Name some of them, with commas: penstock up --only {everything[0]}",
        )
    kept = [name for name in everything if only is None or name in chosen]
    left = tuple(name for name in kept if name not in dropped)
    if not left:
        raise InvalidRequest(
            "--only and --without leave no part to start",
            remedy=f"Leave one of the two out; the parts are: {', '.join(everything)}",
        )
    return left


def _names(text: str | None) -> set[str]:
    return {name.strip() for name in text.split(",")} if text else set()


def check_needs(parts: Sequence[str], known: settings.Settings, postgres: str | None) -> None:
    """Refuse our programs without what they cannot start without: they would try in vain.

    Raises `Misconfigured` where no lake can lie.
    """
    if not set(parts).isdisjoint(APPLICATIONS):
        _ = known.lake
    for key, (part, whose) in _NEEDED.items():
        lacking = [name for name in whose if name in parts]
        given = known.text(key) or (part == "postgres" and postgres)
        if lacking and part not in parts and not given:
            raise InvalidRequest(
                f"{lacking[0]} needs {part}, which is not among the parts to start",
                remedy=f"penstock up --only {','.join([part, *parts])}. Or set {key} in "
                f"{settings.CONFIG_FILE}.",
            )


def down(call: CommandCall) -> None:
    """Stop the local stack, in order."""
    from stack import control

    # Not by the settings: a mistake in their file keeps nobody from stopping what runs.
    ran = control.down(settings.root_of(call.workspace))
    call.answer({"stopped": ran}, text="stopped" if ran else "nothing was running")


def status(
    call: CommandCall,
    memory: Annotated[
        bool, typer.Option("--memory", help="Measure memory too, which takes a moment.")
    ] = False,
) -> None:
    """Show each part: state, process, port, version, restarts; and what stands still, and why.

    Exit code 5 unless all is ready. All parts of a `degraded` stack run, and something in it does
    not move.
    """
    known = call.settings
    found = status_of(known.workspace, memory=memory)
    still = standing_still(known)
    if still and found["state"] == "ready":
        found["state"] = "degraded"
    found["standing_still"] = [each.document() for each in still]
    columns = ["name", "state", "pid", "port", "version", "restarts"]
    columns[5:5] = ["memory_mb"] if memory else []
    parts = found["parts"]
    assert isinstance(parts, list)
    rows = [[*(part[column] for column in columns), why(part)] for part in parts]
    summary = f"{found['state']}, {found['memory_mb']} MB in all" if memory else str(found["state"])
    if found["killed"]:
        summary += " by a kill or a failure, not by penstock down. Start it again: penstock up"
    lines = [table([*columns, "reason"], rows), summary, *map(str, still)]
    call.answer(found, text="\n".join(lines) if rows or still else "stopped")
    if found["state"] != "ready":
        raise typer.Exit(EXIT_UNHEALTHY)


def why(part: Mapping[str, object]) -> object:
    """Return why a part is not ready; of one that was started again, when and how it ended."""
    reason, ended = part["reason"], part.get("ended")
    if not ended or ended == reason or part["state"] == "stopped":
        return reason
    how = f"ended at {part.get('ended_at')}: {str(ended).partition('; last lines')[0]}"
    return f"{reason}; {how}" if reason else how


def logs_(
    call: CommandCall,
    part: Annotated[str | None, typer.Argument(help="One part; all of them without.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines come.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many last lines.")] = 50,
) -> None:
    """Show the last lines of the parts' logs."""
    files = log_files(settings.root_of(call.workspace), part)
    if not files:
        print("there are no logs yet; they come with the stack: penstock up", file=sys.stderr)
        return
    for name, line in logs.tail(files, lines=lines, follow=follow):
        if call.as_json:
            print(json.dumps({"part": name, "line": line}), flush=True)
        else:
            print(line if part else f"{name}: {line}", flush=True)


def doctor_(workspace: NewWorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Check this machine: what is required, what was found, how to mend it."""
    from stack import doctor

    found = settings.load(workspace)
    checks = doctor.examine(
        found.workspace,
        ports={name: DEFAULT_BASE + rank for rank, name in enumerate(NAMES)}
        | _ports_from_settings(found),
        min_free_bytes=found.number("storage.min_free_bytes"),
    )
    checks += _moving(found)
    rows = [["ok" if c.ok else "NO", c.name, c.required, c.found, c.fix] for c in checks]
    emit(
        {"ok": all(check.ok for check in checks), "checks": [asdict(c) for c in checks]},
        as_json=as_json,
        text=table(["state", "check", "required", "found", "fix"], rows),
    )
    if not all(check.ok for check in checks):
        raise typer.Exit(EXIT_UNHEALTHY)


def _moving(found: settings.Settings) -> list[doctor.DoctorCheck]:
    """Turn what stands still into lines of the doctor; none while the stack is stopped."""
    from stack import doctor

    return [
        doctor.DoctorCheck(
            name=f"{each.component} {each.name}",
            required="moves",
            found=each.cause,
            ok=False,
            fix=each.command,
        )
        for each in standing_still(found)
    ]


def reset(
    call: CommandCall, yes: Annotated[bool, typer.Option("--yes", help="Really remove it.")] = False
) -> None:
    """Stop the stack and remove its databases, topics, schemas and logs. The lake stays."""
    found = call.settings
    root, lake = found.workspace, found.lake
    if not yes:
        what = f"This removes every event, topic and schema of the local stack in {root}."
        removes = str(root / ".penstock")
        call.refuse_unconfirmed(what, removes=removes)
    from stack import control

    removed = control.reset(root, lake=None if "://" in lake else Path(lake))
    call.answer(
        {"removed": [str(path) for path in removed]},
        text="\n".join(f"removed {path}" for path in removed) or "nothing to remove",
    )


def _application(name: str, port: int, env: Mapping[str, str]) -> Part:
    from stack.plan import Part

    needs = {
        "service": ("postgres", "registry"),
        "pipeline": ("postgres", "kafka", "registry"),
    }
    return Part(
        name=name,
        argv=(sys.executable, "-P", "-m", f"apps.{name}"),
        env={**env, f"PENSTOCK_{name.upper()}_PORT": str(port)},
        probe=Probe(kind="http", port=port, path="/health/ready"),
        needs=needs[name],
        # A start that is starved for time is not mended by another one.
        start_timeout_s=900,
        grace_s=20,
        # Behind the pipeline's own watchdog, whose end leaves all stacks in the log.
        silent_after_s=_SILENT_S,
    )


def _niceness(found: settings.Settings) -> int:
    niceness = found.number("stack.background_niceness")
    if not 0 <= niceness <= 19:
        raise Misconfigured(
            f"stack.background_niceness is {niceness}, must be 0 to 19",
            remedy="Mend it in penstock.toml; where it comes from: penstock config show stack",
        )
    return niceness


def _ports_from_settings(found: settings.Settings) -> dict[str, int]:
    return {name: found.number(f"{name}.port") for name in APPLICATIONS}


register = commands(up, down, status, logs_, doctor_, reset)
