"""Soak everything: `python -m tests.soak --kills 50 --minutes 60 --odd-minutes 30 --seed 2013`.

First the store alone is tortured, for so many events; then the whole stack works for so long while
its parts are killed at random moments; then a stack takes odd sources and odd events for so long,
under kills as well. A part of which nothing is asked is left out. Prints seed and progress, ends
with a verdict, and writes everything into a file, with facts about the machine. Exits with 1 when a
promise was broken; with `--keep` the stack on which it was broken runs on for somebody to look.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from benchmarks.machine import facts
from stack.control import reset
from tests.soak.whole_run import Options, WholeRun, say
from tests.support.services.odd_run import OddOptions, OddRun, odd_database
from tests.support.services.port_blocks import PortBlock
from tests.support.services.whole_stack import captured_bank, start

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "results" / "make-soak.json"


def main() -> None:
    """Run all of it and judge."""
    given = arguments()
    machine = facts(ROOT)
    say(f"seed {given.seed}")
    tortured = torture(given.events, given.seed) if given.events else {"clean": True}
    options = Options(kills=given.kills, minutes=given.minutes, seed=given.seed)
    whole = {"failed": ""}
    if given.kills or given.minutes:
        whole = whole_stack(options, keep=given.keep)
    odd = odd_sources(given) if given.odd_minutes else {"failed": ""}
    holds = bool(tortured["clean"]) and not whole["failed"] and not odd["failed"]
    document = {
        "what": "make soak",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "holds": holds,
        "asked": vars(given) | {"out": None},
        "torture": tortured,
        "whole_stack": whole,
        "odd_sources": odd,
        "machine": machine,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    say(f"{'Every promise held.' if holds else 'A PROMISE WAS BROKEN.'} All of it: {given.out}")
    raise SystemExit(0 if holds else 1)


def torture(events: int, seed: int) -> dict[str, Any]:
    """Torture the store in a process of its own; return its verdict."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-torture-"))
    folder.chmod(0o711)
    out = folder / "result.json"
    words = [
        "--events",
        str(events),
        "--seed",
        str(seed),
        "--folder",
        str(folder),
        "--out",
        str(out),
    ]
    try:
        done = subprocess.run([sys.executable, "-m", "tests.torture", *words], check=False)
        if not out.exists():
            return {"clean": False, "failed": f"no verdict, exit status {done.returncode}"}
        verdict: dict[str, Any] = orjson.loads(out.read_bytes())
        return verdict
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def whole_stack(options: Options, *, keep: bool) -> dict[str, Any]:
    """Let a whole stack work and be killed."""
    with started() as workspace:
        result = WholeRun(captured_bank(workspace), options).run().document()
        return looked_at(workspace, result) if keep and result["failed"] else result


def odd_sources(given: argparse.Namespace) -> dict[str, Any]:
    """Let a whole stack take odd sources and events while its parts are killed."""
    options = OddOptions(seed=given.seed, minutes=given.odd_minutes, keep=given.keep)
    with started() as workspace:
        result = OddRun(odd_database(workspace), options, say).run().document()
        return looked_at(workspace, result) if given.keep and result["failed"] else result


@contextmanager
def started() -> Iterator[Path]:
    """Start a whole stack in a workspace of its own, and remove it behind the block."""
    workspace = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    try:
        start(workspace, "--port-base", str(int(PortBlock.SOAK)))
        yield workspace
    finally:
        reset(workspace)
        shutil.rmtree(workspace, ignore_errors=True)


def looked_at(workspace: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Let somebody look at a stack on which a promise was broken, until its marker is removed."""
    marker = workspace / "looked-at"
    marker.touch()
    say(f"{result['failed']}\nThe stack runs on. When you have seen it: rm {marker}")
    while marker.exists():
        time.sleep(1)
    return result


def arguments() -> argparse.Namespace:
    """Read the command line; what is left out is as `Options` has it."""
    usual = Options()
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=usual.kills)
    parser.add_argument("--minutes", type=float, default=usual.minutes)
    parser.add_argument("--odd-minutes", type=float, default=OddOptions().minutes)
    parser.add_argument("--events", type=int, default=1_000_000, help="0 leaves the torture out")
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--keep", action="store_true", help="let a stack run on that failed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
