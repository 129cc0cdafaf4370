"""A plan: everything that the supervisor needs to know about the parts, as plain data.

`control` computes it once (ports, files, command lines), the supervisor only carries it out; so the
supervisor knows nothing of Kafka or PostgreSQL and is tested with small scripts as parts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernel.errors import InvalidRequest

LOCAL_PARTS = ("postgres", "kafka", "registry", "connect")
"""The parts that the stack itself defines, in the order of starting."""

ProbeKind = Literal["http", "kafka", "postgres", "port"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How to tell that a part serves: an answer in its own protocol, on 127.0.0.1.

    `http` wants status 200 on `path`, `kafka` an answer to ApiVersions, `postgres` an answer to a
    start-up packet, `port` an accepted connection; each within `limit_s` seconds.
    """

    kind: ProbeKind
    port: int
    path: str = "/"
    limit_s: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command to be run before the part's first start; skipped when `creates` exists."""

    argv: tuple[str, ...]
    creates: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One supervised process tree. Times in seconds.

    `needs` are ready before it starts. `stop_signal` asks it to end; after `grace_s` it is killed.
    `uid` and `gid` are given when the supervisor is root and the part must not be. A part with a
    `niceness` (as of `nice`) lets others go first where processors are short. A running part whose
    `generation` is smaller than the plan's is stopped and started again. So is one that was ready
    and then gives no good answer for `hung_after_s`, or none at all for `silent_after_s`; None
    leaves it, shown as `unready`.
    """

    name: str
    argv: tuple[str, ...]
    probe: Probe | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    cwd: str | None = None
    version: str | None = None
    stop_signal: str = "SIGTERM"
    grace_s: float = 10.0
    start_timeout_s: float = 180.0
    hung_after_s: float | None = None
    silent_after_s: float | None = None
    uid: int | None = None
    gid: int | None = None
    niceness: int = 0
    generation: int = 0

    @property
    def port(self) -> int | None:
        """The port that it serves, if any."""
        return self.probe.port if self.probe else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """When to give up: more than `cap` deaths without `stable_s` of readiness in between.

    The pause before the n-th restart is `base_s * 2^(n-1)`, at most `most_s`.
    """

    cap: int = 5
    base_s: float = 0.5
    most_s: float = 15.0
    stable_s: float = 60.0

    def pause_s(self, death: int) -> float:
        """Return the pause after death number `death`, counted from 1."""
        return float(min(self.most_s, self.base_s * 2 ** (death - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """All parts of one workspace and the endpoints that they give.

    A later plan of a workspace has a greater `number`. A ready part is asked again every
    `health_pause_s` seconds.
    """

    parts: tuple[Part, ...]
    endpoints: Mapping[str, str | int] = field(default_factory=dict)
    restarts: Restarts = field(default_factory=Restarts)
    log_bytes: int = 8 * 1024 * 1024
    health_pause_s: float = 5.0
    number: int = field(default_factory=time.time_ns)

    def __post_init__(self) -> None:
        in_order(self.parts)

    def to_json(self) -> str:
        """Render for the plan file."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> StackPlan:
        """Read what `to_json` wrote."""
        raw = json.loads(text)
        return StackPlan(
            parts=tuple(_part(item) for item in raw["parts"]),
            endpoints=raw["endpoints"],
            restarts=Restarts(**raw["restarts"]),
            log_bytes=raw["log_bytes"],
            health_pause_s=raw["health_pause_s"],
            number=raw["number"],
        )


def in_order(parts: Iterable[Part]) -> list[Part]:
    """Return the parts so that each comes after those that it needs.

    Raises `InvalidRequest` for an unknown need, a name used twice or a circle.
    """
    given = list(parts)
    waiting = {part.name: part for part in given}
    if len(waiting) != len(given):
        raise InvalidRequest("two parts have the same name")
    for part in given:
        unknown = [name for name in part.needs if name not in waiting]
        if unknown:
            raise InvalidRequest(f"part {part.name} needs {unknown[0]}, which is not in the plan")
    ordered: list[Part] = []
    while waiting:
        free = [p for p in waiting.values() if not any(need in waiting for need in p.needs)]
        if not free:
            raise InvalidRequest(f"parts need each other in a circle: {', '.join(waiting)}")
        for part in free:
            ordered.append(waiting.pop(part.name))
    return ordered


def _part(raw: dict[str, Any]) -> Part:
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in raw.items()}
    probe = raw["probe"]
    fields["probe"] = Probe(**probe) if probe else None
    fields["steps"] = tuple(
        Step(argv=tuple(step["argv"]), creates=step["creates"]) for step in raw["steps"]
    )
    return Part(**fields)


def document_of(path: Path) -> dict[str, Any]:
    """Return the object that a file of ours holds; nothing where it is absent or damaged.

    What a crash or a full disk left of it is written anew by whom it belongs to.
    """
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file's content so that a reader sees the old or the new, never half."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.touch(mode=mode)
    fresh.write_text(text)
    fresh.replace(path)
