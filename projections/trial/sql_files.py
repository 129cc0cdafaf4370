"""SQL files that are read together: sources may have a file of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernel.errors import InvalidRequest
from schemas.text_files import text_of

if TYPE_CHECKING:
    from projections.sql.statements.declarations import ProjectionDecl, SourceDecl

Decl = TypeVar("Decl", "SourceDecl", "ProjectionDecl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the files of one call declare, and what of them is refused.

    `refused` is of statements that could not be read, `wrong` of those that could be read in part,
    by the name of the projection. `lost` are the names that unreadable statements declare.
    """

    sources: tuple[SourceDecl, ...]
    projections: tuple[ProjectionDecl, ...]
    refused: tuple[InvalidRequest, ...]
    wrong: Mapping[str, tuple[InvalidRequest, ...]] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()


def read_files(files: Sequence[Path]) -> Declared:
    """Read SQL files together; a file that cannot be read is among `refused`."""
    # The SQL parser takes half a second to load, which `--help` should not pay.
    from projections.sql.statements.parse import parse_script

    sources: dict[str, SourceDecl] = {}
    projections: dict[str, ProjectionDecl] = {}
    refused: list[InvalidRequest] = []
    for file in files:
        try:
            script = parse_script(sql_of(file), origin=str(file))
            for source in script.sources:
                _once(sources, source)
            for projection in script.projections:
                _once(projections, projection)
        except InvalidRequest as error:
            refused.append(error)
    return Declared(
        sources=tuple(sources.values()),
        projections=tuple(projections.values()),
        refused=tuple(refused),
    )


def read_all_that_can_be(files: Sequence[Path]) -> Declared:
    """Read SQL files together, with every error that there is; for who mends them."""
    from projections.sql.statements.parse import parse_script
    from projections.sql.words.collected_refusals import apart, collecting

    sources: dict[str, SourceDecl] = {}
    projections: dict[str, ProjectionDecl] = {}
    errors: list[InvalidRequest] = []
    lost: set[str] = set()
    for file in files:
        with collecting() as found:
            script = parse_script(sql_of(file), origin=str(file))
            for source in script.sources:
                with apart():
                    _once(sources, source)
            for projection in script.projections:
                with apart():
                    _once(projections, projection)
        errors += found.errors
        lost |= found.lost
    wrong: dict[str, tuple[InvalidRequest, ...]] = {}
    for error in errors:
        name = error.fields.get("statement")
        if isinstance(name, str) and name in projections:
            wrong[name] = (*wrong.get(name, ()), error)
    return Declared(
        sources=tuple(sources.values()),
        projections=tuple(projections.values()),
        refused=tuple(each for each in errors if each.fields.get("statement") not in wrong),
        wrong=wrong,
        lost=frozenset(lost),
    )


def sql_of(file: Path) -> str:
    """Return the text of a SQL file with the functions that are beside it.

    They are the Python files of the folder `functions`, in the file's own folder or the one above.
    """
    from projections.sql.words.functions import FOLDER, files_of

    text = text_of(file, "SQL")
    own = file.resolve().parent
    folder = next((p / FOLDER for p in (own, own.parent) if (p / FOLDER).is_dir()), None)
    if folder is None:
        return text
    texts = {
        f"{FOLDER}/{path.name}": text_of(path, "functions")
        for path in sorted(folder.glob("*.py"))
        if not path.name.startswith("test_") and path.name != "conftest.py"
    }
    # A line of its own, for a text that ends with a comment.
    return "\n;\n".join([text, *(each.statement for each in files_of(texts))])


def _once(seen: dict[str, Decl], decl: Decl) -> None:
    if decl.name in seen:
        raise decl.script.refusal(
            f"{decl.name} is declared in {seen[decl.name].script.origin} too",
            at=decl.offset,
            fix="Give every source and projection its own name.",
        )
    seen[decl.name] = decl
