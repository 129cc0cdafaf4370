"""Named places at which tests make a crash happen.

A failpoint does nothing unless armed, by `arm` in the same process or by the environment variable
`PENSTOCK_FAILPOINTS=name=action[@n][,…]`. Actions: `kill` (SIGKILL to this process: no cleanup, no
flush), `stop` (SIGSTOP: it stands still right there until it gets SIGCONT, while the test does
something to others), `hold` (this thread waits there until `disarm`), `raise` (raises `Crash`,
which nothing but a test catches). `@n` waits for the n-th hit.
All names are constants here, so that one page lists every crash point that is tested.
"""

from __future__ import annotations

import os
import signal
import threading

from kernel import loops

EPOCH_BEFORE_BIND = "epoch.before_bind"
EPOCH_AFTER_BIND = "epoch.after_bind"
EPOCH_AFTER_SCHEMAS = "epoch.after_schemas"
EPOCH_AFTER_QUARANTINE = "epoch.after_quarantine"
EPOCH_AFTER_LOG = "epoch.after_log"
EPOCH_AFTER_FOLD = "epoch.after_fold"
EPOCH_AFTER_MANIFEST = "epoch.after_manifest"
EPOCH_AFTER_OFFSETS = "epoch.after_offsets"
STAGED_BEFORE_COMMIT = "staged.before_commit"
EVOLVE_WHILE_WRITING = "evolve.while_writing"
EVOLVE_AFTER_COMMIT = "evolve.after_commit"
TYPED_AFTER_PART = "typed.after_part"
TYPED_AFTER_TOPIC = "typed.after_topic"
SNAPSHOT_AFTER_SLOT = "snapshot.after_slot"
SNAPSHOT_AFTER_CHUNK = "snapshot.after_chunk"
SNAPSHOT_BEFORE_ANNOUNCE = "snapshot.before_announce"
SNAPSHOT_AFTER_ANNOUNCE = "snapshot.after_announce"
INSTALL_BEFORE_SWAP = "install.before_swap"
INSTALL_AFTER_SWAP = "install.after_swap"
TAIL_AFTER_APPEND = "tail.after_append"
TAIL_AFTER_FOLD = "tail.after_fold"
LARGE_AFTER_SLICE = "large.after_slice"
LARGE_AFTER_MERGE = "large.after_merge"
AHEAD_AFTER_STAGE = "ahead.after_stage"
AHEAD_AFTER_MERGE = "ahead.after_merge"
AHEAD_AFTER_REWRITE = "ahead.after_rewrite"
TYPED_AFTER_APPEND = "typed.after_append"
HISTORY_BEFORE_COMMIT = "history.before_commit"
HISTORY_AFTER_FOLD = "history.after_fold"
PROJECTION_BEFORE_COMMIT = "projection.before_commit"
PROJECTION_AFTER_COMMIT = "projection.after_commit"
QUARANTINE_AFTER_OUTCOMES = "quarantine.after_outcomes"
PENDING_AFTER_APPEND = "pending.after_append"
AUTO_CDC_AFTER_REFUSED = "auto_cdc.after_refused"
AUTO_CDC_AFTER_FACTS = "auto_cdc.after_facts"
REPLAY_AFTER_PIECE = "replay.after_piece"
REPLAY_BEFORE_SLICE = "replay.before_slice"
REPLAY_AFTER_SLICE = "replay.after_slice"
REPLAY_AFTER_BUILD = "replay.after_build"
REPLAY_AFTER_CLAIM = "replay.after_claim"
REPLAY_AFTER_SWAP = "replay.after_swap"
REPLAY_AFTER_LIVE = "replay.after_live"
APPEND_BEFORE_COMMIT = "append.before_commit"
APPEND_AFTER_COMMIT = "append.after_commit"
LEASE_AFTER_TAKE = "lease.after_take"
DELIVER_BEFORE_RECORD = "deliver.before_record"
SINK_BEFORE_COMMIT = "sink.before_commit"
SINK_AFTER_COMMIT = "sink.after_commit"
ARCHIVE_AFTER_RECORD = "archive.after_record"
ARCHIVE_BEFORE_COMMIT = "archive.before_commit"
ARCHIVE_AFTER_COMMIT = "archive.after_commit"

ALL = tuple(
    value for name, value in sorted(globals().items()) if name.isupper() and isinstance(value, str)
)
EPOCH_STEPS = tuple(name for name in ALL if name.startswith("epoch."))
ARCHIVE_STEPS = tuple(name for name in ALL if name.startswith("archive."))


class Crash(BaseException):
    """A simulated crash. Not an `Exception`, so that no handler mistakes it for a failure."""


class _Armed:
    def __init__(self, action: str, countdown: int) -> None:
        self.action = action
        self.countdown = countdown


_lock = threading.Lock()
_let_go = threading.Event()
_armed: dict[str, _Armed] = {}


def arm(name: str, action: str = "raise", *, hit: int = 1) -> None:
    """Make failpoint `name` act on its `hit`-th pass from now."""
    if name not in ALL:
        raise ValueError(f"no failpoint {name!r}; there are: {', '.join(ALL)}")
    if action not in ("kill", "stop", "hold", "raise"):
        raise ValueError(f"no action {action!r}; there are: kill, stop, hold, raise")
    with _lock:
        _armed[name] = _Armed(action, hit)


def disarm() -> None:
    """Make every failpoint harmless again, and let go whoever is held at one."""
    global _let_go
    with _lock:
        _armed.clear()
        _let_go.set()
        _let_go = threading.Event()


def arm_from_environment() -> None:
    """Arm what `PENSTOCK_FAILPOINTS` names."""
    spec = os.environ.get("PENSTOCK_FAILPOINTS", "")
    for item in filter(None, (part.strip() for part in spec.split(","))):
        name, _, action = item.partition("=")
        action, _, nth = action.partition("@")
        arm(name, action or "kill", hit=int(nth or 1))


def hit(name: str) -> None:
    """Pass a failpoint: return at once unless a test armed it. It is a step of the loop at work."""
    loops.passed(name)
    if not _armed:
        return
    with _lock:
        armed = _armed.get(name)
        if armed is None:
            return
        armed.countdown -= 1
        if armed.countdown > 0:
            return
        del _armed[name]
        let_go = _let_go
    match armed.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hold":
            let_go.wait()
        case _:
            raise Crash(name)
