"""Torture a store and judge it: `python -m tests.torture --events 100000 --writers 16`.

Prints the verdict, writes everything to a file, and ends with 1 on any anomaly.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import fields
from pathlib import Path

import orjson

from apps.cli.output import report
from kernel.errors import PenstockError, exit_code
from tests.torture.database import stack_database
from tests.torture.options import KILLS, Options
from tests.torture.progress import to_stderr
from tests.torture.run import Verdict, torture

_DEFAULTS = {each.name: each.default for each in fields(Options)}


def main() -> None:
    """Run, print, and exit with 0 when no promise was broken."""
    options = _options(sys.argv[1:])
    # Whoever ends it, what it started ends too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with stack_database(options.folder / "database", to_stderr) as database:
            verdict = asyncio.run(torture(options, database, say=to_stderr, progress_to=sys.stderr))
    except PenstockError as error:
        report(error, as_json=False)
        raise SystemExit(exit_code(error)) from error
    out = options.out or options.folder / "result.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps(verdict.document(), option=orjson.OPT_INDENT_2) + b"\n")
    sys.stdout.write(f"{summary(verdict)}\nAll figures: {out}\n")
    raise SystemExit(0 if verdict.clean else 1)


def summary(verdict: Verdict) -> str:
    """Return the verdict for people."""
    board, figures = verdict.board, verdict.report.figures
    healed = [kill.healed_s for kill in board.kills if kill.healed_s is not None]
    lines = [
        f"{figures['events']:,} events stored in {figures['streams']:,} streams by "
        f"{figures['appends']:,} appends: {figures['accepted']:,} accepted, "
        f"{figures['refused']:,} refused, {figures['unknown']:,} unknown "
        f"({figures['unknown_but_done']:,} of these done)",
        f"{board.writing_s:.1f} s of writing, "
        f"{board.acknowledged / max(board.writing_s, 0.001):,.0f} events/s, "
        f"{len(board.kills)} kills, healed after {max(healed, default=0):.1f} s at most",
        f"{figures['events_shown_to_readers']:,} events shown to {figures['readers']} tailing "
        f"readers, {figures['conditions_judged']:,} conditions judged",
    ]
    if board.failed is not None:
        lines.append(f"FAILED: {board.failed}")
    for anomaly, count in verdict.report.anomalies.items():
        lines.append(f"ANOMALY {anomaly.name.lower()}, {count:,} times: {anomaly.value}")
        lines += [f"    {example}" for example in verdict.report.examples[anomaly]]
    if verdict.clean:
        lines.append("No event lost, doubled, skipped or reordered; every promise kept.")
    return "\n".join(lines)


def _options(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)

    def number(name: str, kind: type[int] | type[float], meaning: str) -> None:
        default = _DEFAULTS[name.replace("-", "_")]
        parser.add_argument(
            f"--{name}", type=kind, default=default, help=f"{meaning} (default: {default})"
        )

    number("events", int, "acknowledged events that end the run")
    number("writers", int, "concurrent writers")
    number("transactors", int, "writers that append in SQL transactions of their own")
    number("batch", int, "events of a plain append, up to 1000")
    number("readers", int, "tailing readers")
    number("services", int, "service processes, one of which is the writer")
    number("streams", int, "streams that all writers share")
    number("kill-every-s", float, "seconds between kills")
    number("delay-s", float, "longest pause of a writer, now and then")
    number("seed", int, "seed of the workload")
    parser.add_argument(
        "--kill",
        default=",".join(KILLS),
        help=f"what to do to the store, in turn: some of {','.join(KILLS)}, or none",
    )
    parser.add_argument("--folder", type=Path, default=_DEFAULTS["folder"], help="working folder")
    parser.add_argument("--out", type=Path, default=None, help="where the result goes, as JSON")
    given = vars(parser.parse_args(arguments))
    kinds = given.pop("kill")
    return Options(kills=() if kinds == "none" else tuple(kinds.split(",")), **given)


if __name__ == "__main__":
    main()
