"""The clauses of a flow, in any order, and what they have to say together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlglot.tokens import Token, TokenType

from projections.sql.words.places import Piece, Script, nearest
from projections.sql.words.tokens import TokenCursor, between_commas, closing

START_AT, END_AT = "start_at", "end_at"
FLOW_FORM = (
    "CREATE FLOW name AS AUTO CDC INTO table FROM STREAM source KEYS (key, …) "
    "[WHERE condition] [IGNORE NULL UPDATES [ON (column, …)]] [APPLY AS DELETE WHEN condition] "
    "[APPLY AS TRUNCATE WHEN condition] SEQUENCE BY expression COLUMNS (column, …) "
    "[STORED AS SCD TYPE 1 | 2] [TRACK HISTORY ON (column, …)] [WITH (freshness = '…')];"
)
_CLAUSES = (
    "FROM",
    "KEYS",
    "WHERE",
    "IGNORE NULL UPDATES",
    "APPLY AS DELETE WHEN",
    "APPLY AS TRUNCATE WHEN",
    "SEQUENCE BY",
    "COLUMNS",
    "STORED AS",
    "TRACK HISTORY ON",
    "WITH",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clauses:
    """What a flow says. `filled` are the columns whose nulls say nothing; `tracked`, of SCD type
    2 (`versions`), those by whose change a version begins. `columns` have their places. A `Piece`
    is what was written.
    """

    source: Piece
    alias: Piece | None
    keys: tuple[str, ...]
    where: Piece | None
    deletes: Piece | None
    truncates: Piece | None
    sequence: tuple[Piece, ...]
    columns: Mapping[str, int]
    filled: tuple[str, ...]
    versions: bool
    tracked: tuple[str, ...]
    options: Piece | None

    @property
    def tracks_all(self) -> bool:
        """Whether every change of a column begins a version."""
        return len(self.tracked) + len(self.keys) == len(self.columns)


def read_clauses(script: Script, tokens: Sequence[Token], at: int) -> Clauses:
    """Read what stands behind `INTO table`. Raises `InvalidRequest`."""
    parts = _parted(script, tokens)
    reader = _Reader(script, parts, at)
    columns = reader.columns()
    keys = reader.keys(columns)
    rest = tuple(name for name in columns if name not in keys)
    versions = reader.scd_type() == 2
    track = reader.some("TRACK HISTORY ON", [*columns])
    sequence = reader.sequence()
    _refuse_ours(script, columns, versions=versions)
    if track is not None and not versions:
        raise reader.refusal("TRACK HISTORY ON", "SCD type 1 has no history to track")
    if len(sequence) > 1 and (versions or "APPLY AS TRUNCATE WHEN" in parts):
        raise reader.refusal(
            "SEQUENCE BY",
            f"several expressions have no one value for {_NEEDS_ONE[versions]}",
            fix="Name one expression that orders the changes of a key.",
        )
    if versions and "APPLY AS TRUNCATE WHEN" in parts:
        raise reader.refusal("APPLY AS TRUNCATE WHEN", "SCD type 2 keeps versions for ever")
    source, alias = reader.source()
    return Clauses(
        source=source,
        alias=alias,
        keys=keys,
        where=reader.written("WHERE"),
        deletes=reader.written("APPLY AS DELETE WHEN"),
        truncates=reader.written("APPLY AS TRUNCATE WHEN"),
        sequence=sequence,
        columns=columns,
        filled=reader.filled(rest),
        versions=versions,
        # Where only keys are tracked, no change of a column begins a version.
        tracked=rest if track is None else tuple(n for n in track if n not in keys),
        options=reader.options(),
    )


_NEEDS_ONE = {True: START_AT, False: "the last TRUNCATE"}


def _refuse_ours(script: Script, columns: Mapping[str, int], *, versions: bool) -> None:
    """Refuse names that the columns have which a flow adds."""
    for name, at in columns.items():
        if name.lower().startswith("flow_") or (versions and name.lower() in (START_AT, END_AT)):
            raise script.refusal(
                f"{name} is a name that a flow gives to a column of its own",
                at=at,
                fix="Read a view that calls it otherwise: CREATE VIEW v AS SELECT x AS other, ….",
            )


def _parted(script: Script, tokens: Sequence[Token]) -> dict[str, tuple[int, list[Token]]]:
    """Cut a statement where its clauses begin, outside of brackets, which are all closed."""
    parts: dict[str, tuple[int, list[Token]]] = {}
    current: list[Token] | None = None
    place = 0
    opened: list[int] = []
    while place < len(tokens):
        clause, length = ("", 0) if opened else _clause_at(tokens, place)
        if clause:
            at = int(tokens[place].start)
            if clause in parts:
                raise script.refusal(
                    f"{clause} stands there twice",
                    at=at,
                    fix="Leave one out. A column of that name stands in backquotes.",
                )
            current = []
            parts[clause] = (at, current)
            place += length
            continue
        token = tokens[place]
        if token.token_type is TokenType.L_PAREN:
            opened.append(int(token.start))
        elif token.token_type is TokenType.R_PAREN:
            if not opened:
                raise script.refusal(
                    "a bracket is closed that was not opened", at=int(token.start), fix=FLOW_FORM
                )
            opened.pop()
        if current is None:
            raise script.refusal(
                f"expected FROM, found {token.text!r}", at=int(token.start), fix=FLOW_FORM
            )
        current.append(token)
        place += 1
    if opened:
        raise script.refusal("a bracket is not closed", at=opened[-1], fix=FLOW_FORM)
    return parts


_NO_CLAUSE = (TokenType.STRING, TokenType.IDENTIFIER)
_BEFORE_NONE = (TokenType.DISTINCT, TokenType.DOT)
"""Behind these a word begins no clause: in `a IS DISTINCT FROM b`, and in `x.keys`."""


def _clause_at(tokens: Sequence[Token], place: int) -> tuple[str, int]:
    """Return the clause whose words stand at a place, and how many tokens these are."""
    if place and tokens[place - 1].token_type in _BEFORE_NONE:
        return "", 0
    for clause in _CLAUSES:
        words: list[str] = []
        for length, token in enumerate(tokens[place : place + 4], start=1):
            words += [] if token.token_type in _NO_CLAUSE else token.text.upper().split()
            if " ".join(words) == clause:
                return clause, length
            if token.token_type in _NO_CLAUSE or not clause.startswith(" ".join(words)):
                break
    return "", 0


def _is_bracket(tokens: Sequence[Token]) -> bool:
    """Say whether a bracket is opened by the first token and closed by the last one."""
    opens = bool(tokens) and tokens[0].token_type is TokenType.L_PAREN
    return opens and closing(tokens, 0) == len(tokens) - 1


class _Reader:
    """Reads the parts of a flow."""

    def __init__(self, script: Script, parts: dict[str, tuple[int, list[Token]]], at: int) -> None:
        self._script = script
        self._parts = parts
        self._at = at

    def place(self, clause: str) -> int:
        return self._parts[clause][0] if clause in self._parts else self._at

    def refusal(self, clause: str, message: str, *, fix: str | None = None) -> Exception:
        return self._script.refusal(
            message, at=self.place(clause), fix=fix or f"Leave out {clause}. {FLOW_FORM}"
        )

    def written(self, clause: str) -> Piece | None:
        """Return what a clause says as it was written; None where it is not there."""
        if clause not in self._parts:
            return None
        tokens = self._parts[clause][1]
        if not tokens:
            raise self.refusal(clause, f"nothing stands behind {clause}", fix=FLOW_FORM)
        return self._whole(tokens)

    def _whole(self, tokens: Sequence[Token]) -> Piece:
        first, last = tokens[0], tokens[-1]
        return Piece(self._script.text[first.start : last.end + 1], int(first.start), True)

    def _needed(self, clause: str) -> list[Token]:
        if not self._parts.get(clause, (0, []))[1]:
            raise self.refusal(clause, f"a flow has no {clause}", fix=FLOW_FORM)
        return self._parts[clause][1]

    def source(self) -> tuple[Piece, Piece | None]:
        """Return the name of what is read, without the word STREAM and brackets, and its alias."""
        tokens = self._needed("FROM")
        if tokens[0].text.upper() == "STREAM" and len(tokens) > 1:
            tokens = tokens[1:]
            if tokens[0].token_type is TokenType.L_PAREN:
                end = [token.token_type for token in tokens].index(TokenType.R_PAREN)
                tokens = [*tokens[1:end], *tokens[end + 1 :]]
        cursor = TokenCursor(self._script, tokens, form=FLOW_FORM) if tokens else None
        if cursor is not None and cursor.rest[0].token_type is not TokenType.L_PAREN:
            cursor.dotted("the name of a stream")
            named = tokens[: len(tokens) - len(cursor.rest)]
            if not cursor.rest:
                return self._whole(named), None
            cursor.take("AS")
            alias = list(cursor.rest)
            if len(alias) == 1:
                cursor.name("an alias")
                return self._whole(named), self._whole(alias)
        raise self.refusal(
            "FROM",
            "a flow reads one stream",
            fix="Name it: FROM STREAM source. What is to be computed before belongs to a view: "
            "CREATE VIEW v AS SELECT …; CREATE FLOW … FROM STREAM v.",
        )

    def _names(self, cursor: TokenCursor) -> dict[str, int]:
        """Pass names with commas between them, which may stand in brackets; return their places.

        Names are the same in any case, as columns are.
        """
        bracket = cursor.take("(")
        found: dict[str, int] = {}
        while True:
            at, name = cursor.at, cursor.name("a column")
            if name.lower() in map(str.lower, found):
                raise self._script.refusal(
                    f"{name} stands there twice", at=at, fix="Once is enough."
                )
            found[name] = at
            if not cursor.take(","):
                break
        if bracket:
            cursor.expect(")")
        if cursor.rest:
            raise cursor.refusal(f"expected another clause, found {cursor.found()}")
        return found

    def _known(
        self, found: Mapping[str, int], columns: Collection[str], what: str
    ) -> tuple[str, ...]:
        """Return names as they stand in COLUMNS."""
        spelled = {name.lower(): name for name in columns}
        for name, at in found.items():
            if name.lower() not in spelled:
                raise self._script.refusal(
                    f"{name} is {what}, and not among COLUMNS{nearest(name, columns)}",
                    at=at,
                    fix="Name it in COLUMNS too.",
                )
        return tuple(spelled[name.lower()] for name in found)

    def keys(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the keys of the table."""
        cursor = TokenCursor(self._script, self._needed("KEYS"), form=FLOW_FORM)
        return self._known(self._names(cursor), columns, "a key of the table")

    def some(self, clause: str, columns: Sequence[str]) -> tuple[str, ...] | None:
        """Return some of the columns, or all `* EXCEPT (…)` some; None without the clause."""
        if clause not in self._parts:
            return None
        cursor = TokenCursor(self._script, self._needed(clause), form=FLOW_FORM)
        without = cursor.take("*")
        if without:
            cursor.expect("EXCEPT")
        found = self._known(self._names(cursor), columns, f"in {clause}")
        return tuple(name for name in columns if name not in found) if without else found

    def columns(self) -> dict[str, int]:
        """Return the columns of the table, which have to be named, and their places."""
        tokens = self._parts.get("COLUMNS", (0, []))[1]
        if not tokens or tokens[0].text == "*":
            raise self.refusal(
                "COLUMNS",
                "the columns of the table are not named: a new field would change it",
                fix="Name them, the keys among them: COLUMNS (id, name, …).",
            )
        return self._names(TokenCursor(self._script, tokens, form=FLOW_FORM))

    def scd_type(self) -> int:
        """Return 1 or 2."""
        if "STORED AS" not in self._parts:
            return 1
        words = " ".join(token.text.upper() for token in self._parts["STORED AS"][1])
        if words not in ("SCD TYPE 1", "SCD TYPE 2"):
            raise self.refusal(
                "STORED AS", f"stored as {words}?", fix="Write STORED AS SCD TYPE 1, or 2."
            )
        return int(words[-1])

    def sequence(self) -> tuple[Piece, ...]:
        """Return what orders the changes of a key: an expression, or those in `STRUCT (…)`."""
        tokens = self._needed("SEQUENCE BY")
        if tokens[0].text.upper() != "STRUCT" or not _is_bracket(tokens[1:]):
            return (self._whole(tokens),)
        parts = between_commas(tokens[2:-1])
        # The names of its fields say nothing of their order.
        named = [len(p) > 2 and p[-2].token_type is TokenType.ALIAS for p in parts]
        parts = [p[:-2] if name else p for p, name in zip(parts, named, strict=True)]
        if not all(parts):
            raise self.refusal("SEQUENCE BY", "STRUCT has an empty part", fix=FLOW_FORM)
        return tuple(map(self._whole, parts))

    def filled(self, rest: Sequence[str]) -> tuple[str, ...]:
        """Return the columns whose nulls say nothing."""
        if "IGNORE NULL UPDATES" not in self._parts:
            return ()
        at, tokens = self._parts["IGNORE NULL UPDATES"]
        if not tokens:
            return tuple(rest)
        if tokens[0].text.upper() == "ON":
            self._parts["IGNORE NULL UPDATES"] = at, tokens[1:]
        return self.some("IGNORE NULL UPDATES", rest) or ()

    def options(self) -> Piece | None:
        """Return the options of the projection, without their brackets."""
        if "WITH" not in self._parts:
            return None
        tokens = self._needed("WITH")
        if not _is_bracket(tokens) or len(tokens) < 3:
            raise self.refusal("WITH", "options stand in brackets", fix=FLOW_FORM)
        pairs = pairwise(tokens)
        named = next((t for t, n in pairs if t.text.lower() == "key" and n.text == "="), None)
        if named is not None:
            raise self._script.refusal(
                "a flow has KEYS, and no option key", at=int(named.start), fix="Leave it out."
            )
        return self._whole(tokens[1:-1])
