"""`penstock projection test`: projections against the tests that stand beside them.

Runs without a stack, and without Spark but for what only Spark computes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli.commands import CommandCall
from kernel.errors import EXIT_FAILED
from projections.trial.places import computed_on, tests_at
from projections.trial.sql_files import read_files
from schemas.text_files import text_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from projections.sql.operators.shape import Plan
    from projections.trial.playback import ExpectationVerdict

Places = Annotated[
    list[Path],
    typer.Argument(metavar="FILE|DIR", help="Test files, SQL files with one, or folders of them."),
]


def test_(call: CommandCall, places: Places) -> None:
    """Play the tests beside projections: as one batch, row by row, and in other orders.

    The tests of NAME.sql are in NAME.test; the SQL files of its folder are read together.
    """
    from projections.trial.playback import played
    from projections.trial.statements import parse_tests

    found = call.settings
    started = time.perf_counter()
    documents: list[dict[str, object]] = []
    lines: list[str] = []
    with OnSpark(found) as spark:
        for file in tests_at(places):
            tests = parse_tests(text_of(file, "tests"), origin=str(file))
            declared = read_files(sorted(file.parent.glob("*.sql")))
            for error in declared.refused:
                raise error
            verdicts = played(
                tests,
                declared.sources,
                declared.projections,
                lateness=found.lateness,
                on_spark=spark.run,
            )
            for verdict in verdicts:
                documents.append({"file": str(file), **_document(verdict)})
                lines += _lines(file, verdict)
    seconds = round(time.perf_counter() - started, 2)
    failed = sum(1 for each in documents if not each["ok"])
    held = len(documents) - failed
    what = "expectation holds" if held == 1 else "expectations hold"
    fail = "fails" if failed == 1 else "fail"
    lines.append(f"{held} {what}, {failed} {fail} ({seconds} s)")
    answer = {"ok": not failed, "expectations": documents, "seconds": seconds}
    call.answer(answer, text="\n".join(lines))
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _document(verdict: ExpectationVerdict) -> dict[str, object]:
    differences = [
        {"way": way, "kind": one.kind, "key": one.key, "expected": one.expected, "found": one.found}
        for way, several in verdict.failures.items()
        for one in several
    ]
    return {
        "test": verdict.test,
        "projection": verdict.projection,
        "line": verdict.line,
        "ok": verdict.ok,
        "ways": list(verdict.ways),
        "differences": differences,
        "error": verdict.error,
    }


def _lines(file: Path, verdict: ExpectationVerdict) -> list[str]:
    """Say what became of an expectation; the same differences of several ways are said once."""
    title = f"{file}:{verdict.line}: {verdict.test}: {verdict.projection}"
    if verdict.ok:
        return [f"ok      {title}"]
    lines = [f"FAILED  {title}"]
    if verdict.error is not None:
        return [*lines, f"  {verdict.error}"]
    said: dict[tuple[str, ...], list[str]] = {}
    for way, several in verdict.failures.items():
        said.setdefault(tuple(one.line for one in several), []).append(way)
    for differences, ways in said.items():
        everywhere = len(ways) == len(verdict.ways)
        lines.append(f"  {'in every order' if everywhere else ', '.join(ways)}:")
        lines += [f"    {line}" for line in differences]
    return lines


class OnSpark:
    """Computes plans on Spark, which is started when one needs it, and stopped in the end."""

    def __init__(self, found: settings.Settings) -> None:
        self._found = found
        self._session: SparkSession | None = None

    def __enter__(self) -> OnSpark:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.stop()

    def run(self, plan: Plan, views: dict[str, pa.Table]) -> pa.Table:
        """Compute all rows of a plan over the views of its inputs."""
        from apps.spark_session import session_of_command

        if self._session is None:
            self._session = session_of_command(self._found, "tests", master="local[2]")
        return computed_on(self._session, plan, views)
