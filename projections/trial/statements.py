"""A test file of projections: the inputs that it has, what comes in them, what is expected then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlglot.tokens import Token, TokenType

from projections.sql.statements.parse import declared_columns
from projections.sql.words.catalog import Column
from projections.sql.words.places import Script
from projections.sql.words.tokens import TokenCursor, split, tokenized
from projections.sql.words.type_names import normal
from projections.trial.literals import Literal, has_literals

INPUT_FORM = (
    "INPUT events.<category>.<type> (column TYPE, …);  or  "
    "INPUT <source>.<schema>.<table> (column TYPE, …) KEY (column, …);"
)
GIVEN_FORM = "GIVEN name (column, …) VALUES (value, …), …;"
EXPECT_FORM = "EXPECT projection (column, …) VALUES (value, …), …;  or  EXPECT projection NOTHING;"
FORM = f"{INPUT_FORM}  TEST 'what is shown';  {GIVEN_FORM}  {EXPECT_FORM}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDecl:
    """An input that exists in a test. `key` is a captured table's primary key."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    at: int

    @property
    def events(self) -> bool:
        """Whether these are events of the store."""
        return self.name.startswith("events.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Columns, and rows of values under them. `name` is an input or a projection."""

    name: str
    columns: tuple[str, ...]
    values: tuple[tuple[Literal, ...], ...]
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRows(Rows):
    """Rows that come, in the order of their arrival. `deleted`: they end rows of a table."""

    deleted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected(Rows):
    """All rows that a projection has after what was given before."""


Step = GivenRows | Expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One test: what comes and what is expected, one after the other."""

    name: str
    steps: tuple[Step, ...]
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFile:
    """Everything that one file says."""

    script: Script
    inputs: tuple[InputDecl, ...]
    trials: tuple[Trial, ...]


@dataclass(slots=True, kw_only=True)
class _Reader:
    script: Script
    inputs: dict[str, InputDecl] = field(default_factory=dict)
    trials: list[tuple[str, int, list[Step]]] = field(default_factory=list)

    def statement(self, tokens: Sequence[Token]) -> None:
        cursor = TokenCursor(self.script, tokens, form=FORM)
        at = cursor.at
        readers: dict[str, Callable[[TokenCursor, int], None]] = {
            "INPUT": self._input,
            "TEST": self._test,
            "GIVEN": self._given,
            "EXPECT": self._expected,
        }
        for word, reader in readers.items():
            if cursor.take(word):
                reader(cursor, at)
                break
        else:
            raise cursor.refusal(f"expected {' or '.join(readers)}, found {cursor.found()}")
        if cursor.rest:
            raise cursor.refusal(f"expected ; and the next statement, found {cursor.found()}")

    def _input(self, cursor: TokenCursor, at: int) -> None:
        cursor.form = INPUT_FORM
        name = cursor.dotted("the name of an input")
        columns = tuple(Column(name=n, type=normal(t)) for n, t in declared_columns(cursor))
        for column in columns:
            if not has_literals(column.type):
                raise self.script.refusal(
                    f"column {column.name} is {column.type}: tests give rows of plain types",
                    at=at,
                    fix="Leave the column out, or test a projection that reads a plain one.",
                )
        key = _names(cursor, "a column of the key") if cursor.take("KEY") else ()
        parts = len(name.split("."))
        if name.startswith("events.") == bool(key) or parts < (3 if name.startswith("e") else 2):
            raise self.script.refusal(
                f"{name} is neither an event type nor a table with its key", at=at, fix=INPUT_FORM
            )
        if name in self.inputs:
            raise self.script.refusal(
                f"{name} is declared twice", at=at, fix="Declare each input once."
            )
        self.inputs[name] = InputDecl(name=name, columns=columns, key=key, at=at)

    def _test(self, cursor: TokenCursor, at: int) -> None:
        name = cursor.string()
        if name is None:
            raise cursor.refusal(f"expected the test's name in quotes, found {cursor.found()}")
        if name in [known for known, _, _ in self.trials]:
            raise self.script.refusal(
                f"two tests are named {name!r}", at=at, fix="Give each test its own name."
            )
        self.trials.append((name, at, []))

    def _given(self, cursor: TokenCursor, at: int) -> None:
        cursor.form = GIVEN_FORM
        name = cursor.dotted("the name of an input")
        if name not in self.inputs:
            raise self.script.refusal(
                f"there is no input {name}",
                at=at,
                fix=f"Declare it above: {INPUT_FORM}  Declared: {', '.join(self.inputs) or 'none'}",
            )
        deleted = cursor.take("DELETED")
        if deleted and self.inputs[name].events:
            raise self.script.refusal(
                "events are not deleted", at=at, fix="Give an event that says what happened."
            )
        columns, values = _rows(cursor)
        self._step(GivenRows(name=name, columns=columns, values=values, at=at, deleted=deleted))

    def _expected(self, cursor: TokenCursor, at: int) -> None:
        cursor.form = EXPECT_FORM
        name = cursor.name("the name of a projection")
        nothing = cursor.take("NOTHING")
        columns, values = ((), ()) if nothing else _rows(cursor)
        self._step(Expected(name=name, columns=columns, values=values, at=at))

    def _step(self, step: Step) -> None:
        if not self.trials:
            raise self.script.refusal(
                "rows before the first test", at=step.at, fix="Begin a test: TEST 'what is shown';"
            )
        self.trials[-1][2].append(step)


def parse_tests(text: str, *, origin: str) -> TrialFile:
    """Read a test file; `origin` is its name in messages.

    Raises `InvalidRequest` with origin, line and column of the first statement that is refused.
    """
    script = Script(origin=origin, text=text)
    reader = _Reader(script=script)
    for tokens in split(tokenized(script)):
        reader.statement(tokens)
    if not reader.trials:
        raise script.refusal("the file has no test", at=len(text), fix=f"The form is: {FORM}")
    for name, at, steps in reader.trials:
        if not any(isinstance(step, Expected) for step in steps):
            raise script.refusal(f"test {name!r} expects nothing", at=at, fix=EXPECT_FORM)
    return TrialFile(
        script=script,
        inputs=tuple(reader.inputs.values()),
        trials=tuple(Trial(name=n, steps=tuple(s), at=at) for n, at, s in reader.trials),
    )


def _names(cursor: TokenCursor, what: str) -> tuple[str, ...]:
    cursor.expect("(")
    names: list[str] = []
    while True:
        at = cursor.at
        name = cursor.name(what)
        if name.lower() in [known.lower() for known in names]:
            raise cursor.script.refusal(f"{name} stands there twice", at=at, fix="Name it once.")
        names.append(name)
        if not cursor.take(","):
            break
    cursor.expect(")")
    return tuple(names)


def _rows(cursor: TokenCursor) -> tuple[tuple[str, ...], tuple[tuple[Literal, ...], ...]]:
    columns = _names(cursor, "a column")
    cursor.expect("VALUES")
    rows = []
    while True:
        at = cursor.at
        cursor.expect("(")
        row = [_literal(cursor)]
        while cursor.take(","):
            row.append(_literal(cursor))
        cursor.expect(")")
        if len(row) != len(columns):
            raise cursor.script.refusal(
                f"{len(row)} values under {len(columns)} columns",
                at=at,
                fix=f"Give a value for each of: {', '.join(columns)}.",
            )
        rows.append(tuple(row))
        if not cursor.take(","):
            break
    return columns, tuple(rows)


def _literal(cursor: TokenCursor) -> Literal:
    at = cursor.at
    text = cursor.string()
    if text is not None:
        return Literal(value=text, quoted=True, at=at)
    for word, value in (("NULL", None), ("TRUE", True), ("FALSE", False)):
        if cursor.take(word):
            return Literal(value=value, quoted=False, at=at)
    sign = "-" if cursor.take("-") else ""
    if not cursor.rest or cursor.rest[0].token_type is not TokenType.NUMBER:
        raise cursor.refusal(
            f"expected a number, a quoted text or time, TRUE, FALSE or NULL, found {cursor.found()}"
        )
    return Literal(value=sign + cursor.until_comma(), quoted=False, at=at)
