"""Every error of SQL files that there is, each with its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kernel.errors import InvalidRequest
from projections.trial.sql_files import Declared

if TYPE_CHECKING:
    from projections.sql.operators.shape import Plan
    from projections.sql.statements.declarations import ProjectionDecl
    from projections.sql.words.catalog import Catalog

Result = dict[str, object]


def checked(
    decl: ProjectionDecl, known: Catalog | None, catalog: Catalog | None, files: Declared
) -> tuple[Result, Plan | None]:
    """Say what is wrong with a projection, and return its plan where nothing is.

    `catalog` is `known` with what the files declare.
    """
    earlier = files.wrong.get(decl.name, ())
    if known is None or catalog is None:
        if earlier:
            return refused(decl.name, earlier), None
        return {"name": decl.name, "ok": True, "fingerprint": decl.fingerprint}, None
    from projections.run.relations import LakeCatalog, waits_for_input
    from projections.sql.plans.plan import plan
    from projections.sql.words.collected_refusals import result_and_refusals

    made, found = result_and_refusals(lambda: plan(decl, catalog), guessed=bool(earlier))
    errors = [_told(decl, error, files.lost) for error in found.errors]
    waits = [waits_for_input(error) for error in errors]
    if isinstance(known, LakeCatalog) and any(waits):
        # What is behind it was looked up in another input, which is near by its name alone.
        first = waits.index(True)
        if not first and not earlier:
            told = {"fingerprint": decl.fingerprint, "waits": errors[first].message}
            return {"name": decl.name, "ok": True, **told}, None
        errors = errors[:first]
    if earlier or errors:
        return refused(decl.name, [*earlier, *errors]), None
    assert made is not None, "what is not planned is refused"
    done = {"fingerprint": made.fingerprint, "cost": made.cost}
    return {"name": decl.name, "ok": True, **done}, made


def _told(decl: ProjectionDecl, error: InvalidRequest, lost: frozenset[str]) -> InvalidRequest:
    """Say of what another statement is to blame for that it is."""
    from projections.sql.operators.inputs import UNKNOWN
    from projections.sql.words.collected_refusals import CIRCLE, UNREAD

    name = error.fields.get(UNREAD, error.fields.get(UNKNOWN))
    circle = error.fields.get(CIRCLE)
    if isinstance(circle, list) and circle[0] != decl.name:
        name = circle[0]
    elif UNREAD not in error.fields and str(name).lower() not in lost:
        return error
    return decl.script.refusal(
        f"{decl.name} reads {name}, which is refused", at=decl.offset, fix=f"Correct {name} first."
    )


def unread(errors: Sequence[InvalidRequest]) -> Iterator[Result]:
    """Yield what is wrong with each statement that could not be read."""
    named: dict[object, list[InvalidRequest]] = {}
    for number, error in enumerate(errors):
        name = error.fields.get("statement")
        named.setdefault((error.fields.get("origin"), name) if name else number, []).append(error)
    for each in named.values():
        yield refused(str(each[0].fields.get("statement") or "-"), each)


def refused(name: str, errors: Sequence[InvalidRequest]) -> Result:
    """Describe a refused statement: all of its errors, and the first beside them."""
    told = {error.message: _document(error) for error in errors}
    several = sorted(told.values(), key=_place)
    first = {key: several[0][key] for key in ("error", "remedy", "line", "column")}
    return {"name": name, "ok": False, **first, "errors": several}


def _place(told: Result) -> tuple[str, int, int]:
    line, column = told["line"], told["column"]
    return (
        str(told["file"]),
        line if isinstance(line, int) else 0,
        column if isinstance(column, int) else 0,
    )


def _document(error: InvalidRequest) -> Result:
    return {
        "error": error.message,
        "remedy": error.remedy,
        "file": error.fields.get("origin"),
        "line": error.fields.get("line"),
        "column": error.fields.get("column"),
    }


def lines_of(result: Result) -> list[str]:
    """Lay a result out for people."""
    errors = result.get("errors")
    if isinstance(errors, list):
        return [f"{each['error']}\n  fix: {each['remedy']}" for each in errors]
    warnings = result.get("warnings", [])
    assert isinstance(warnings, list)
    waits = f", but {result['waits']}" if "waits" in result else ""
    return [f"{result['name']}: ok{waits}", *(f"  warning: {each}" for each in warnings)]


def summary(results: Sequence[Result], files: Declared) -> list[str]:
    """Say how many errors there are, where there are several, and that nothing was declared."""
    if not results:
        named = ", ".join(each.name for each in files.sources)
        return [f"sources: {named}" if named else "the files declare nothing"]
    count = sum(len(errors) for each in results if isinstance(errors := each.get("errors"), list))
    if count > 1:
        return [f"{count} errors"]
    return []
