"""Functions of a workspace: Python files beside the SQL, called by name in a projection's query.

A file is read, never run, to know what its functions take and give: their annotations say it. What
a projection calls is part of its statement: `CREATE FUNCTIONS` holds the text of the file and of
those that it imports, so that whoever has the statement can compute it, and another text is
another query.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokens import Token

from kernel.errors import InvalidRequest
from projections.sql.words.places import Script, near_of, offset_of
from projections.sql.words.tokens import SPARK, TokenCursor

FOLDER = "functions"
_FORM = "CREATE FUNCTIONS FROM 'functions/name.py' AS '…';"
CALLED = "function"
NEAR = "near"
"""On a call of what is no function: the one of the workspace that is nearest."""
"""Under this a call in a query has its function, in the `meta` of its node."""
_TYPES = {
    "str": "STRING",
    "int": "BIGINT",
    "float": "DOUBLE",
    "bool": "BOOLEAN",
    "datetime": "TIMESTAMP",
    "date": "DATE",
}
_ANNOTATIONS = (
    "Annotate parameters and result by str, int, float, bool, datetime or date, with | None where "
    "NULL may be, or all of them by Annotated[pa.Array, float] and the like."
)
_IMPURE = (
    *("random", "secrets", "uuid", "time", "os", "sys", "subprocess", "socket", "urllib", "http"),
    *("requests", "pathlib", "io", "threading", "multiprocessing", "asyncio", "tempfile"),
    *("shutil", "ctypes", "importlib"),
)
_UNSTABLE_CALLS = (
    *("open", "input", "exec", "eval", "compile", "globals", "hash", "id", "__import__"),
    *("now", "utcnow", "today"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument of a function. Where it is not `nullable`, NULL makes the result NULL."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class FunctionFile:
    """A file with functions, and those that it imports: name and text of each, its own first."""

    texts: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Return the file's name, as `functions/prices.py`."""
        return self.texts[0][0]

    @property
    def fingerprint(self) -> str:
        """Name what results depend on."""
        return hashlib.sha256(repr(self.texts).encode()).hexdigest()[:12]

    @property
    def statement(self) -> str:
        """Return the statement that declares the file."""
        given = (f"'{name}' AS {quoted(text)}" for name, text in self.texts)
        return f"CREATE FUNCTIONS FROM {', '.join(given)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceFunction:
    """What may be called. `vectorised`: it takes and gives whole columns, as Arrow arrays.

    `line` is where its file defines it.
    """

    name: str
    takes: tuple[Parameter, ...]
    gives: str
    vectorised: bool
    line: int
    file: FunctionFile = field(repr=False)

    def __deepcopy__(self, memo: object) -> WorkspaceFunction:
        """Copies of a query share their functions."""
        return self

    @property
    def known_as(self) -> str:
        """Return the name for engines, which know several versions of a function."""
        return f"{self.name}__{self.file.fingerprint}"


def quoted(text: str) -> str:
    """Write a text as a literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def read_statement(script: Script, tokens: Sequence[Token]) -> FunctionFile | None:
    """Read `CREATE FUNCTIONS FROM 'functions/x.py' AS '…'`; None for any other statement."""
    cursor = TokenCursor(script, tokens, form=_FORM)
    if not (cursor.take("CREATE") and cursor.take("FUNCTIONS")):
        return None
    cursor.expect("FROM")
    texts = []
    while True:
        name = cursor.string()
        cursor.expect("AS")
        text = cursor.string()
        if name is None or text is None:
            raise cursor.refusal(f"expected a string, found {cursor.found()}")
        texts.append((name, text))
        if not cursor.take(","):
            break
    if cursor.rest:
        raise cursor.refusal(f"expected the end of the statement, found {cursor.found()}")
    return FunctionFile(tuple(texts))


def with_statements(text: str, functions: Iterable[WorkspaceFunction]) -> str:
    """Put the files of functions behind a statement that calls them."""
    files = dict.fromkeys(function.file for function in functions)
    return ";\n".join([text, *(file.statement for file in files)])


def files_of(texts: Mapping[str, str]) -> list[FunctionFile]:
    """Return the files of a folder that offer functions, each with those that it imports.

    Files whose name begins with `_` are there for others to import: `from ._prices import …`.
    """
    stems = {name.rpartition("/")[2].removesuffix(".py"): name for name in texts}
    found = []
    for name in sorted(texts):
        if name.rpartition("/")[2].startswith("_"):
            continue
        wanted = [name]
        for each in wanted:
            beside = _imported(_tree(each, texts[each]), beside=True)
            # What is added here is looked at in its turn.
            wanted += [stems[m] for m in beside if m in stems and stems[m] not in wanted]
        found.append(FunctionFile(tuple((each, texts[each]) for each in wanted)))
    return found


class Functions:
    """The functions that queries of a text may call, by name in lower case."""

    def __init__(self, files: Iterable[FunctionFile]) -> None:
        self._files: dict[str, tuple[FunctionFile, ast.FunctionDef]] = {}
        self._twice: dict[str, list[str]] = {}
        for file in files:
            for node in _tree(*file.texts[0]).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    key = node.name.lower()
                    if key in self._files and self._files[key][0] != file:
                        self._twice.setdefault(key, [self._files[key][0].name]).append(file.name)
                    self._files[key] = file, node

    def resolve(self, script: Script, query: exp.Expr) -> tuple[WorkspaceFunction, ...]:
        """Mark the calls in a query; return the functions that it calls, each once.

        Raises `InvalidRequest`, with the place of the call, for one that cannot be called so.
        """
        called: dict[str, WorkspaceFunction] = {}
        for node in [*query.find_all(exp.Anonymous)]:
            key = node.name.lower()
            if key not in self._files:
                near = near_of(key, self._files)
                if near is not None:
                    node.meta[NEAR] = near
                continue
            at = offset_of(node, 0)
            function = self._function(script, key, at)
            given = _in_order(function, node.expressions)
            if len(given) != len(function.takes):
                raise script.refusal(
                    f"{function.name} takes {len(function.takes)} arguments, not "
                    f"{len(node.expressions)}"
                    + (", each of its names once" if node.find(exp.Kwarg) else ""),
                    at=at,
                    fix=f"Write {function.name}({', '.join(p.name for p in function.takes)}).",
                )
            node.set("expressions", given)
            node.set("this", function.known_as)
            node.meta[CALLED] = function
            called[key] = function
        return tuple(called[key] for key in sorted(called))

    def _function(self, script: Script, key: str, at: int) -> WorkspaceFunction:
        if key in self._twice:
            raise script.refusal(
                f"{key} is a function in {' and in '.join(self._twice[key])}",
                at=at,
                fix="Give every function its own name.",
            )
        file, node = self._files[key]
        try:
            _check_pure(file)
            return _declared(file, node)
        except InvalidRequest as error:
            raise script.refusal(error.message, at=at, fix=error.remedy) from error


def _in_order(function: WorkspaceFunction, given: list[exp.Expr]) -> list[exp.Expr]:
    """Return arguments in the order of the parameters, those behind their names, too.

    Where a name is none, or is given twice, those behind names are left out.
    """
    first = [each for each in given if not isinstance(each, exp.Kwarg)]
    named = {each.this.name: each.expression for each in given if isinstance(each, exp.Kwarg)}
    rest = [each.name for each in function.takes[len(first) :]]
    whole = len(first) + len(named) == len(given) and {*rest} == {*named}
    return [*first, *(named[name] for name in rest)] if whole else first


def function_of(node: exp.Expr) -> WorkspaceFunction | None:
    """Return the function of the workspace that a node calls."""
    found = node.meta.get(CALLED) if isinstance(node, exp.Anonymous) else None
    return found if isinstance(found, WorkspaceFunction) else None


def _tree(name: str, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise InvalidRequest(
            f"{name}:{error.lineno}: {error.msg}", remedy="Correct the Python file."
        ) from error


def _imported(tree: ast.AST, *, beside: bool) -> Iterator[str]:
    """Yield the names of the modules that a file imports: of those beside it, or of all others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and not beside:
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and beside == bool(node.level):
            # `from . import _a, _b` has the modules where others have what is in them.
            names = [node.module] if node.module else [each.name for each in node.names]
            yield from (name if beside else name.partition(".")[0] for name in names)


def _check_pure(file: FunctionFile) -> None:
    """Refuse what plainly gives other values another time; what is not plain cannot be seen."""
    for name, text in file.texts:
        tree = _tree(name, text)
        _check_beside(file, name, tree)
        for module in _imported(tree, beside=False):
            if module in _IMPURE:
                raise InvalidRequest(
                    f"{name} imports {module}: a rebuild would differ",
                    remedy="A function depends on its arguments alone: give it what it needs.",
                )
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            word = getattr(called, "id", getattr(called, "attr", None))
            if word in _UNSTABLE_CALLS or isinstance(node, ast.Global | ast.Nonlocal):
                what = f"calls {word}" if word in _UNSTABLE_CALLS else "changes what it keeps"
                raise InvalidRequest(
                    f"{name}:{getattr(node, 'lineno', 1)} {what}: a rebuild would differ",
                    remedy="A function depends on its arguments alone: give it what it needs.",
                )


def _check_beside(file: FunctionFile, name: str, tree: ast.Module) -> None:
    """Refuse imports of what is not part of the statement: they would fail at the first row."""
    there = {each.rpartition("/")[2].removesuffix(".py") for each, _ in file.texts}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            missing = [one for one in _imported(node, beside=True) if one not in there]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            missing = [one for one in _imported(node, beside=False) if one == FOLDER]
        else:
            continue
        if missing or getattr(node, "level", 0) > 1:
            raise InvalidRequest(
                f"{name}:{node.lineno} has no such file beside it: {ast.unparse(node)}",
                remedy="Import files of the same folder: from ._prices import RATE.",
            )


def _declared(file: FunctionFile, node: ast.FunctionDef) -> WorkspaceFunction:
    names = {
        target.id: each.value
        for each in _tree(*file.texts[0]).body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    place = f"{file.name}:{node.lineno}"
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or node.decorator_list:
        raise InvalidRequest(
            f"{place}: {node.name} has other than plain parameters, or a decorator",
            remedy="Write def name(a: int, b: str) -> str, without * and without defaults.",
        )
    parameters, kinds = [], set()
    for each in (*arguments.posonlyargs, *arguments.args):
        kind, nullable, column = _annotation(each.annotation, names)
        if kind is None:
            raise _untyped(place, node, f"parameter {each.arg}")
        parameters.append(Parameter(name=each.arg, type=kind, nullable=nullable or column))
        kinds.add(column)
    gives, _, column = _annotation(node.returns, names)
    if gives is None:
        raise _untyped(place, node, "its result")
    if len(kinds | {column}) > 1 or not parameters or not _callable_by(node.name):
        raise InvalidRequest(
            f"{place}: {node.name} takes columns and single values, takes nothing, or is called "
            "as a function of SQL",
            remedy=f"Give it parameters of one kind, and a name of its own. {_ANNOTATIONS}",
        )
    return WorkspaceFunction(
        name=node.name,
        takes=tuple(parameters),
        gives=gives,
        vectorised=column,
        line=node.lineno,
        file=file,
    )


def _untyped(place: str, node: ast.FunctionDef, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{place}: {what} of {node.name} has no type that SQL has", remedy=_ANNOTATIONS
    )


def _annotation(
    node: ast.expr | None, names: Mapping[str, ast.expr]
) -> tuple[str | None, bool, bool]:
    """Return the SQL type of an annotation, whether NULL is passed, and whether it is a column."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except (SyntaxError, ValueError):
            return None, False, False
    if isinstance(node, ast.Name) and node.id in names:
        node = names[node.id]
    match node:
        case ast.Name() | ast.Attribute():
            word = node.id if isinstance(node, ast.Name) else node.attr
            return _TYPES.get(word), False, False
        case ast.BinOp(op=ast.BitOr(), right=ast.Constant(value=None)):
            return _annotation(node.left, names)[0], True, False
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[_, inner])):
            return _annotation(inner, names)[0], True, True
        case _:
            return None, False, False


def _callable_by(name: str) -> bool:
    """Say whether a name is no function of SQL already, whatever its arguments."""
    try:
        read = SPARK.parser().parse(SPARK.tokenize(f"SELECT {name}(a)"), "")[0]
    except ParseError:
        return False
    return read is not None and isinstance(read.expressions[0], exp.Anonymous)
