"""Text to declarations: `CREATE SOURCE` and `CREATE PROJECTION` statements.

The statements' frames are read here, token by token; the query inside is parsed by sqlglot as
Spark SQL, with `STREAM name` as a table. What the query may contain is the planner's matter.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokens import Token, TokenType

from projections.sql.forms.arguments import read_query
from projections.sql.statements.declarations import (
    Called,
    DeclaredScript,
    ProjectionDecl,
    SourceDecl,
)
from projections.sql.statements.match_clause import without_matches
from projections.sql.statements.spellings import Spellings
from projections.sql.words import options as opt
from projections.sql.words.collected_refusals import apart, collected, refuse
from projections.sql.words.functions import FunctionFile, Functions, read_statement, with_statements
from projections.sql.words.options import OptionValue, StatementOptions, value_of
from projections.sql.words.places import Script as Text
from projections.sql.words.places import refusing_depth, too_deep
from projections.sql.words.sinks import sink_of
from projections.sql.words.tokens import TokenCursor, split, tokenized, with_sessions, with_streams

DEFAULT_FRESHNESS = timedelta(seconds=1)
SOURCE_FORM = (
    "CREATE SOURCE name (columns) WITH (topic = '…', format = 'json');  or  "
    "CREATE SOURCE name ON <source>.<schema>.<table> WITH (key = '…');"
)
PROJECTION_FORM = "CREATE PROJECTION name WITH (key = '…') AS SELECT …;"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@refusing_depth
def parse_script(text: str, *, origin: str = "<sql>") -> DeclaredScript:
    """Read the statements of `text`; `origin` is its name in messages.

    Raises `InvalidRequest` with origin, line and column of the first statement that is refused;
    where errors are collected, those that can be read are returned.
    """
    script = Text(origin=origin, text=text)
    read = _Declared()
    statements = [*_statements(script)]
    files: list[FunctionFile] = []
    rest = []
    for text_of_it, tokens in statements:
        with apart():
            file = read_statement(text_of_it, tokens)
            if file is None:
                rest.append((text_of_it, tokens))
            else:
                files.append(file)
    functions = Functions(files)
    for text_of_it, tokens in rest:
        with _apart_with_its_name(tokens):
            try:
                read.add(text_of_it, tokens, functions)
            except RecursionError as error:
                raise too_deep(text_of_it, int(tokens[0].start)) from error
    return DeclaredScript(
        sources=tuple(read.sources.values()), projections=tuple(read.projections.values())
    )


@dataclass(slots=True)
class _Declared:
    """What the statements before declare, by name."""

    sources: dict[str, SourceDecl] = field(default_factory=dict)
    projections: dict[str, ProjectionDecl] = field(default_factory=dict)

    def add(self, script: Text, tokens: list[Token], functions: Functions) -> None:
        """Read a statement. Raises `InvalidRequest`, also for a name that there is."""
        cursor = TokenCursor(script, tokens, form=f"{SOURCE_FORM}  or  {PROJECTION_FORM}")
        cursor.expect("CREATE")
        at = cursor.at
        if cursor.take("SOURCE"):
            source = _source(cursor, tokens)
            _once(script, source.name, self.sources, at)
            _refuse_other_terms(script, source, self.sources.values(), at)
            self.sources[source.name] = source
        elif cursor.take("PROJECTION"):
            projection = _projection(cursor, tokens, functions)
            _once(script, projection.name, self.projections, at)
            self.projections[projection.name] = projection
        else:
            raise cursor.refusal(f"expected SOURCE or PROJECTION, found {cursor.found()}")


@contextmanager
def _apart_with_its_name(tokens: Sequence[Token]) -> Iterator[None]:
    """Read a statement apart from the others, and note its name with the errors met in it."""
    found = collected()
    before = 0 if found is None else len(found.errors)
    name = next((each.text for each in tokens[2:3]), "")
    whole = False
    if found is not None:
        found.guessed = False
    with apart():
        yield
        whole = True
    if found is None:
        return
    for error in found.errors[before:]:
        error.fields["statement"] = name
    if not whole:
        found.lost.add(name.lower())


def _statements(script: Text) -> Iterator[tuple[Text, list[Token]]]:
    """Yield the statements of a text, those in other spellings in the dialect's own words."""
    spellings = Spellings(script=script)
    for tokens in split(tokenized(script)):
        made: list[tuple[Text, list[Token]]] = []
        with _apart_with_its_name(tokens):
            other = spellings.respelled(tokens)
            if other is None:
                made.append((script, tokens))
            elif other.text:
                made.append((other, tokenized(other)))
        yield from made


def _once(script: Text, name: str, seen: object, at: int) -> None:
    if isinstance(seen, dict) and name in seen:
        raise script.refusal(
            f"{name} is declared twice", at=at, fix="Give every source and projection its own name."
        )


def _refuse_other_terms(
    script: Text, source: SourceDecl, others: Iterable[SourceDecl], at: int
) -> None:
    """Refuse two sources on one input by which other rows of it are late: there is one line."""
    for other in others:
        both = zip(_terms(source), _terms(other), strict=True)
        differ = any(None not in (ours, theirs) and ours != theirs for ours, theirs in both)
        if source.on is not None and other.on == source.on and differ:
            raise script.refusal(
                f"{source.name} and {other.name} are both {source.on}, and say otherwise when its "
                "rows are late",
                at=at,
                fix="Give both the same lateness (WATERMARK), closed_after and idle_timeout, or "
                "leave them out of one.",
            )


def _terms(source: SourceDecl) -> tuple[timedelta | None, ...]:
    return source.lateness, source.closed_after, source.idle_timeout


def _source(cursor: TokenCursor, tokens: list[Token]) -> SourceDecl:
    cursor.form = SOURCE_FORM
    name = _declared_name(cursor, "a source")
    at = int(tokens[0].start)
    columns: tuple[tuple[str, str], ...] = ()
    on = None
    if cursor.take("ON"):
        on_at = cursor.at
        on = cursor.dotted("<source>.<schema>.<table> or events.<category>")
        _check_on(cursor.script, on, on_at)
        on_events = on.startswith("events.")
        given = _options(
            cursor,
            opt.EVENT_OPTIONS if on_events else opt.TABLE_OPTIONS,
            of="a source on events" if on_events else "a source on a table",
        )
    else:
        bare = bool(cursor.rest) and cursor.rest[0].text.upper() == "WITH"
        columns = () if bare else declared_columns(cursor)
        given = _options(cursor, opt.TOPIC_OPTIONS, of="a source on a topic")
        from projections.sql.statements.topics import (
            check_topic,  # Arrow: no other statement pays for it.
        )

        check_topic(cursor.script, given, columns, at)
    if cursor.rest:
        raise cursor.refusal(f"expected the end of the statement, found {cursor.found()}")
    return SourceDecl(
        name=name,
        on=on,
        columns=columns,
        topic=given.text("topic"),
        format=given.text("format"),
        key=given.columns("key"),
        event_time=given.column("event_time"),
        lateness=given.duration("lateness"),
        closed_after=given.closed_after(),
        idle_timeout=given.duration("idle_timeout"),
        sequence=given.columns("sequence"),
        deleted=given.text("deleted"),
        identity=given.columns("identity"),
        text=_text_of(cursor.script, tokens),
        script=cursor.script,
        offset=at,
    )


def _projection(cursor: TokenCursor, tokens: list[Token], known: Functions) -> ProjectionDecl:
    cursor.form = PROJECTION_FORM
    name = _declared_name(cursor, "a projection")
    at = int(tokens[0].start)
    given = _options(cursor, opt.PROJECTION_OPTIONS, of="a projection")
    key = given.columns("key")
    if not key:
        refuse(
            cursor.script.refusal(
                f"projection {name} names no key",
                at=at,
                fix="Name the columns that identify a row: WITH (key = 'a, b').",
            )
        )
    freshness = given.duration("freshness") or DEFAULT_FRESHNESS
    cursor.expect("AS")
    if not cursor.rest:
        raise cursor.refusal("expected a SELECT after AS")
    body = list(cursor.rest)
    plain, matches = without_matches(cursor.script, body)
    query = _query(cursor.script, plain)
    _refuse_doubled(cursor.script, query)
    functions = known.resolve(cursor.script, query)
    # Where errors are collected, the query is looked at with a key all the same.
    first = query.find(exp.Select)
    key = key or tuple(each.alias_or_name for each in (first.expressions[:1] if first else ()))
    return ProjectionDecl(
        name=name,
        key=key,
        freshness=freshness,
        emit=given.emit(),
        sink=sink_of(cursor.script, given, at),
        query=query,
        matches=tuple(matches),
        functions=functions,
        text=with_statements(_text_of(cursor.script, tokens), functions),
        fingerprint=_fingerprint(name, key, with_streams(body), given.emit(), functions),
        script=cursor.script,
        offset=at,
        key_at=given.place("key", at),
        emit_at=given.place("emit", at),
    )


def _refuse_doubled(script: Text, query: exp.Expr) -> None:
    """Refuse a WITH that gives one name to two queries: which one is read would be a guess."""
    for clause in query.find_all(exp.With):
        named: set[str] = set()
        for each in clause.expressions:
            if each.alias.lower() in named:
                raise script.refusal(
                    f"WITH names {each.alias} twice",
                    at=int(each.args["alias"].this.meta.get("start", 0)),
                    fix="Give every query of WITH its own name.",
                )
            named.add(each.alias.lower())


def _declared_name(cursor: TokenCursor, what: str) -> str:
    at = cursor.at
    name = cursor.dotted(f"the name of {what}")
    if not _NAME.fullmatch(name) or name == "events":
        raise cursor.script.refusal(
            f"{name!r} cannot name {what}",
            at=at,
            fix="Names have lower-case letters, digits and _, begin with a letter, have at most "
            "63 characters, and are not 'events'.",
        )
    return name


def _check_on(script: Text, on: str, at: int) -> None:
    parts = on.split(".")
    if parts[0] == "events" and len(parts) != 2:
        raise script.refusal(
            f"ON {on}: lateness belongs to a whole category",
            at=at,
            fix="Write ON events.<category>.",
        )
    if not 2 <= len(parts) <= 3:
        raise script.refusal(
            f"ON {on} names no captured table",
            at=at,
            fix="Write ON <source>.<schema>.<table>, as ON shop.public.orders.",
        )


def declared_columns(cursor: TokenCursor) -> tuple[tuple[str, str], ...]:
    """Pass `(name TYPE, …)`; return names and types, as Spark writes them."""
    cursor.expect("(")
    columns: list[tuple[str, str]] = []
    while True:
        at = cursor.at
        name = cursor.name("a column's name")
        type_at = cursor.at
        written = cursor.until_comma()
        try:
            kind = exp.DataType.build(written, dialect="spark").sql(dialect="spark")
        except (ParseError, ValueError) as error:
            refusal = cursor.script.refusal(
                f"column {name}: {written!r} is no type",
                at=type_at,
                fix="Write a Spark SQL type, as BIGINT, STRING, TIMESTAMP or DECIMAL(10, 2).",
            )
            refusal.__cause__ = error
            refuse(refusal)
            kind = "STRING"
        if name.lower() in {known.lower() for known, _ in columns}:
            refuse(
                cursor.script.refusal(
                    f"column {name} is declared twice", at=at, fix="Name each column once."
                )
            )
        columns.append((name, kind))
        if not cursor.take(","):
            break
    cursor.expect(")")
    return tuple(columns)


def _options(cursor: TokenCursor, known: tuple[str, ...], *, of: str) -> StatementOptions:
    given: dict[str, tuple[int, OptionValue]] = {}
    if cursor.take("WITH"):
        cursor.expect("(")
        while True:
            at = cursor.at
            name = cursor.name("an option's name").lower()
            value = value_of(cursor, name, at, given, form="a quoted string or a bare name")
            given[name] = (at, value)
            if not cursor.take(","):
                break
        cursor.expect(")")
    return StatementOptions(cursor.script, given, known, of=of)


def _query(script: Text, body: list[Token]) -> exp.Expr:
    if body[0].token_type not in (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN):
        raise script.refusal(
            f"expected SELECT, found {body[0].text!r}", at=body[0].start, fix=PROJECTION_FORM
        )
    query = read_query(script, with_sessions(with_streams(body)))
    if not isinstance(query, exp.Select | exp.SetOperation | exp.Subquery):
        raise script.refusal(
            f"a projection is a SELECT, found {type(query).__name__.upper()}",
            at=body[0].start,
            fix="Write AS SELECT …, or several with UNION ALL between them.",
        )
    return query


def _text_of(script: Text, tokens: list[Token]) -> str:
    return script.text[tokens[0].start : tokens[-1].end + 1]


def _fingerprint(
    name: str, key: tuple[str, ...], body: list[Token], emit: str, called: Called
) -> str:
    kept_as_written = (TokenType.VAR, TokenType.STRING, TokenType.IDENTIFIER, TokenType.NUMBER)
    words = [
        [token.token_type.name, token.text]
        if token.token_type in kept_as_written
        else ["", token.text.upper()]
        for token in body
    ]
    if emit == "final" or emit.lower().startswith("when "):
        words.append(["", emit])
    words += [["", each.known_as] for each in called]
    normal = json.dumps([name, list(key), words], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(normal.encode()).hexdigest()[:32]
