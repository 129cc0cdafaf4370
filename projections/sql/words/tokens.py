"""Reading tokens one after the other, with a refusal at the place of a wrong one."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from sqlglot import Dialect, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokens import Token, TokenType

from kernel.errors import InvalidRequest
from projections.sql.words.call_parser import CallParser
from projections.sql.words.places import Script

# What it does not know is refused here, in words; its warnings would stand among a command's JSON.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


class _AsWritten(Spark):
    """Spark SQL with the formats of times, paths of JSON, and most calls as they are written.

    sqlglot reads them as formats of its own, which do not tell `y` from `yyyy`, nor `a` from `$.a`.
    """

    Parser = CallParser
    TIME_MAPPING: dict[str, str] = {}  # noqa: RUF012 (sqlglot declares it so)

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        """Leave a path as it is."""
        return path


SPARK = Dialect.get_or_raise(_AsWritten)
_UNITS = {
    **dict.fromkeys(("MS", "MSEC"), "MILLISECOND"),
    **dict.fromkeys(("S", "SEC", "SECS"), "SECOND"),
    **dict.fromkeys(("MIN", "MINS"), "MINUTE"),
    **dict.fromkeys(("H", "HR", "HRS"), "HOUR"),
    "D": "DAY",
}
"""Short names of units that sqlglot reads, and Spark does not."""
BEHIND_FROM = (
    *(TokenType.SELECT, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.QUALIFY),
    *(TokenType.ORDER_BY, TokenType.LIMIT, TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT),
)
"""Words that end the inputs of a query."""
_BY_WORD = {
    "PIVOT": "Put what PIVOT reads in brackets: FROM (SELECT key, region, amount FROM …) q PIVOT "
    "(…).",
    "CREATE": "End the statement before it with a semicolon.",
}
"""What to do about a word at which a query cannot be read."""
_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)

_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")
_CLOSED = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|(?P<open>['\"`]|/\*)",
    re.DOTALL,
)
"""Comments, strings and backquoted names; and what opens one that does not end."""
_TYPOGRAPHIC = re.compile("[‘’‚“”„]")  # noqa: RUF001 (that is what is looked for)
_INCOMPLETE = re.compile(r"Required keyword: '\w+' missing for <class '[\w.]*\.(\w+)'>")


def why_unread(said: str) -> str:
    """Return the first line of what the parser said, in words for people.

    It names classes of its own, and underlines the wrong place by a terminal's codes.
    """
    plain = _TERMINAL_CODE.sub("", said).strip().partition("\n")[0]
    return _INCOMPLETE.sub(lambda found: f"{found[1].upper()} is incomplete", plain)


def tokenized(script: Script) -> list[Token]:
    """Cut a text into tokens. Raises `InvalidRequest` where something is not closed."""
    try:
        return join_doubled_quotes(script, SPARK.tokenize(script.text))
    except TokenError as error:
        opened = _unclosed(script.text)
        if opened is not None:
            raise script.refusal(
                f"what begins with {script.text[opened]} here is not closed: the rest cannot be "
                "read",
                at=opened,
                fix="Close it; if it is closed, one before it is not.",
            ) from error
        raise script.refusal(
            f"the text cannot be read: {why_unread(str(error))}",
            at=len(script.text),
            fix="Look for a string, comment or backquoted name that is not closed.",
        ) from error


def _unclosed(text: str) -> int | None:
    """Return where a string, backquoted name or comment begins that does not end."""
    for found in _CLOSED.finditer(text):
        if found.lastgroup == "open":
            return found.start()
    return None


def parsed(script: Script, tokens: list[Token]) -> exp.Expr:
    """Read the tokens of a query as Spark SQL. Raises `InvalidRequest` at a wrong one."""
    try:
        query = SPARK.parser().parse(tokens, script.text)[0]
    except ParseError as error:
        found = error.errors[0] if error.errors else {}
        line, column = int(found.get("line") or 1), int(found.get("col") or 1)
        lines = script.text.split("\n")
        at = sum(len(text) + 1 for text in lines[: line - 1]) + column
        at -= max(1, len(str(found.get("highlight") or "")))
        word = str(found.get("highlight") or "")
        why = why_unread(str(found.get("description") or error))
        if word and why.startswith("Invalid expression"):
            why = f"{word!r} is not expected here"
        raise script.refusal(
            f"the query cannot be read: {why}",
            at=at,
            fix=_BY_WORD.get(
                word.upper(), "Correct the SQL at that place; the query is a Spark SQL SELECT."
            ),
        ) from error
    assert query is not None, "a statement has tokens"
    return _with_whole_intervals(query)


def spark_expression(text: str) -> exp.Expr:
    """Read an expression of Spark SQL that is written in this code."""
    (query,) = SPARK.parse(f"SELECT {text}")
    assert isinstance(query, exp.Select), "it is written here"
    made: exp.Expr = query.expressions[0]
    return made


def _with_whole_intervals(query: exp.Expr) -> exp.Expr:
    """Put INTERVAL 1 DAY 2 HOURS in brackets, and call units as Spark does.

    sqlglot makes a sum of it: behind a minus its second part would change sides.
    """
    for interval in [*query.find_all(exp.Interval)]:
        unit = interval.args.get("unit")
        if isinstance(unit, exp.Var) and unit.name.upper() in _UNITS:
            interval.set("unit", exp.Var(this=_UNITS[unit.name.upper()]))
        top: exp.Expr = interval
        while isinstance(top.parent, exp.Add) and _is_length(top.parent):
            top = top.parent
        if top is not interval and top.parent is not None and not isinstance(top.parent, exp.Paren):
            bracket = exp.Paren()
            top.replace(bracket)
            bracket.set("this", top)
    return query


def _is_length(node: exp.Expr) -> bool:
    if isinstance(node, exp.Add):
        return _is_length(node.this) and _is_length(node.expression)
    return isinstance(node, exp.Interval)


def split(tokens: Sequence[Token]) -> list[list[Token]]:
    """Cut tokens into statements at semicolons; empty statements are left out."""
    statements: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            statements.append([])
        else:
            statements[-1].append(token)
    return [statement for statement in statements if statement]


def closing(tokens: Sequence[Token], opening: int) -> int | None:
    """Return the place of the bracket that closes the one at `opening`; None where none does."""
    depth = 0
    for place, token in enumerate(tokens[opening:], start=opening):
        depth += token.token_type is TokenType.L_PAREN
        depth -= token.token_type is TokenType.R_PAREN
        if depth == 0:
            return place
    return None


def between_commas(tokens: Sequence[Token]) -> list[list[Token]]:
    """Cut tokens at the commas outside all brackets; nothing may stand between two of them."""
    found: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += token.token_type is TokenType.L_PAREN
        depth -= token.token_type is TokenType.R_PAREN
        if depth == 0 and token.token_type is TokenType.COMMA:
            found.append([])
        else:
            found[-1].append(token)
    return found


def made_like(at: Token, kind: TokenType, text: str) -> Token:
    """Return a token at the place of another one."""
    return Token(kind, text, at.line, at.col, at.start, at.end, [])


def retyped(token: Token, kind: TokenType) -> Token:
    """Return a token of another kind at the same place."""
    return Token(kind, token.text, token.line, token.col, token.start, token.end, token.comments)


def with_sessions(body: list[Token]) -> list[Token]:
    """Read SESSION before a bracket as the name of a function, as TUMBLE and HOP are."""
    following: list[Token | None] = [*body[1:], None]
    return [
        retyped(token, TokenType.VAR)
        if token.token_type is TokenType.SESSION
        and after is not None
        and after.token_type is TokenType.L_PAREN
        else token
        for token, after in zip(body, following, strict=True)
    ]


def with_streams(body: list[Token]) -> list[Token]:
    """Mark the word STREAM before an input; elsewhere `stream` stays a name (events have it).

    Inputs stand after FROM, JOIN and a comma of FROM. `FROM stream s` therefore reads the log `s`;
    a table called stream stands in backquotes.
    """
    marked, before = [], None
    listing = [False]
    for index, token in enumerate(body):
        opens = before in (TokenType.FROM, TokenType.JOIN)
        opens = opens or (before is TokenType.COMMA and listing[-1])
        _enter(listing, token.token_type, before)
        names = index + 1 < len(body) and body[index + 1].token_type is not TokenType.ALIAS
        before = token.token_type
        if opens and names and before is TokenType.VAR and token.text.upper() == "STREAM":
            token = retyped(token, TokenType.STREAM)
        marked.append(token)
    return marked


def _enter(listing: list[bool], kind: TokenType, before: TokenType | None) -> None:
    """Note, for each pair of brackets around, whether commas in it stand between inputs."""
    if kind is TokenType.L_PAREN:
        listing.append(False)
    elif kind is TokenType.R_PAREN and len(listing) > 1:
        listing.pop()
    elif kind is TokenType.FROM:
        listing[-1] = before is not TokenType.DISTINCT
    elif kind in BEHIND_FROM:
        listing[-1] = False


def join_doubled_quotes(script: Script, tokens: Sequence[Token]) -> list[Token]:
    """Read `'it''s'` as Spark does, as one string with a quote inside.

    sqlglot gives two strings, which it would join without the quote. Two strings with a space
    between them are refused: engines differ on what they mean.
    """
    joined: list[Token] = []
    for token in tokens:
        last = joined[-1] if joined else None
        if last is None or {last.token_type, token.token_type} != {TokenType.STRING}:
            joined.append(token)
            continue
        quote = script.text[last.end]
        if token.start != last.end + 1 or script.text[token.start] != quote:
            raise script.refusal(
                "two strings in a row", at=token.start, fix="Write one string, or use concat(a, b)."
            )
        joined[-1] = Token(
            TokenType.STRING,
            last.text + quote + token.text,
            token.line,
            token.col,
            last.start,
            token.end,
            last.comments,
        )
    return joined


class TokenCursor:
    """A place in one statement's tokens. `form` is shown by every refusal."""

    def __init__(self, script: Script, tokens: Sequence[Token], *, form: str) -> None:
        self.script = script
        self.form = form
        self._tokens = tokens
        self._next = 0

    @property
    def rest(self) -> Sequence[Token]:
        """The tokens that were not read yet."""
        return self._tokens[self._next :]

    @property
    def at(self) -> int:
        """The offset of the next token, or of the statement's end."""
        if self._next < len(self._tokens):
            return int(self._tokens[self._next].start)
        return int(self._tokens[-1].end) + 1

    def refusal(self, message: str) -> InvalidRequest:
        """Make an error at the next token."""
        straight = ""
        if self.rest and _TYPOGRAPHIC.search(self.rest[0].text):
            straight = "Write straight quotes, as ' and not as in a printed text. "
        return self.script.refusal(message, at=self.at, fix=f"{straight}The form is: {self.form}")

    def found(self) -> str:
        """Return what stands next, for messages."""
        return repr(self._tokens[self._next].text) if self.rest else "the end of the statement"

    def take(self, word: str) -> bool:
        """Pass an unquoted word or sign if it stands next. Words are read in any case."""
        rest = self.rest
        if not rest or rest[0].token_type in _QUOTED or rest[0].text.upper() != word:
            return False
        self._next += 1
        return True

    def expect(self, word: str) -> None:
        """Pass a word or sign that must stand next."""
        if not self.take(word):
            raise self.refusal(f"expected {word}, found {self.found()}")

    def name(self, what: str) -> str:
        """Pass a name: a word, or anything in backquotes."""
        rest = self.rest
        is_name = bool(rest) and (
            rest[0].token_type is TokenType.IDENTIFIER
            or (rest[0].token_type is not TokenType.STRING and rest[0].text.isidentifier())
        )
        if not is_name:
            raise self.refusal(f"expected {what}, found {self.found()}")
        self._next += 1
        return str(rest[0].text)

    def dotted(self, what: str) -> str:
        """Pass a name of several parts joined by dots."""
        parts = [self.name(what)]
        while self.take("."):
            parts.append(self.name(what))
        return ".".join(parts)

    def string(self) -> str | None:
        """Pass a quoted string if one stands next."""
        rest = self.rest
        if not rest or rest[0].token_type is not TokenType.STRING:
            return None
        self._next += 1
        return str(rest[0].text)

    def until_comma(self) -> str:
        """Pass everything up to a comma or closing bracket of this level; return its text."""
        start, depth = self._next, 0
        while self.rest:
            sign = self.rest[0].text if self.rest[0].token_type not in _QUOTED else ""
            if depth == 0 and sign in (",", ")"):
                break
            depth += (sign in ("(", "<")) - (sign in (")", ">"))
            self._next += 1
        passed = self._tokens[start : self._next]
        return self.script.text[passed[0].start : passed[-1].end + 1] if passed else ""
