"""Soak everything: `python -m tests.soak --kills 50 --minutes 60 --events 1000000 --seed 2013`.

First the store alone is tortured, for so many events; then the whole stack works for so long while
its parts are killed at random moments. Prints seed and progress, ends with a verdict, and writes
everything into a file, with facts about the machine. Exits with 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from benchmarks.machine import facts
from stack.control import reset
from tests.soak.whole_run import Options, WholeRun, say
from tests.support.services.port_blocks import PortBlock
from tests.support.services.whole_stack import captured_bank, start

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "results" / "make-soak.json"


def main() -> None:
    """Run both halves and judge."""
    given = arguments()
    machine = facts(ROOT)
    say(f"seed {given.seed}")
    tortured = torture(given.events, given.seed) if given.events else {"clean": True}
    options = Options(kills=given.kills, minutes=given.minutes, seed=given.seed)
    whole = whole_stack(options)
    holds = bool(tortured["clean"]) and not whole["failed"]
    document = {
        "what": "make soak",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "holds": holds,
        "asked": vars(given) | {"out": None},
        "torture": tortured,
        "whole_stack": whole,
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
        done = subprocess.run([sys.executable, "-m", "apps.torture", *words], check=False)
        if not out.exists():
            return {"clean": False, "failed": f"no verdict, exit status {done.returncode}"}
        verdict: dict[str, Any] = orjson.loads(out.read_bytes())
        return verdict
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def whole_stack(options: Options) -> dict[str, Any]:
    """Start a whole stack, let it work and be killed, and remove it."""
    workspace = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    try:
        start(workspace, "--port-base", str(int(PortBlock.SOAK)))
        return WholeRun(captured_bank(workspace), options).run().document()
    finally:
        reset(workspace)
        shutil.rmtree(workspace, ignore_errors=True)


def arguments() -> argparse.Namespace:
    """Read the command line; what is left out is as `Options` has it."""
    usual = Options()
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=usual.kills)
    parser.add_argument("--minutes", type=float, default=usual.minutes)
    parser.add_argument("--events", type=int, default=1_000_000, help="0 leaves the torture out")
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


if __name__ == "__main__":
    main()
