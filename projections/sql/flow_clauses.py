"""The clauses of a flow, in any order, and what they have to say together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlglot.tokens import Token

from projections.sql.places import Script, nearest
from projections.sql.tokens import TokenCursor

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


@dataclass(frozen=True, slots=True)
class Written:
    """A part of a statement as it was written, at its place."""

    text: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clauses:
    """What a flow says. `filled` are the columns whose nulls say nothing; `tracked`, of SCD type
    2 (`versions`), those by whose change a version begins.
    """

    source: Written
    keys: tuple[str, ...]
    where: Written | None
    deletes: Written | None
    truncates: Written | None
    sequence: tuple[Written, ...]
    columns: tuple[str, ...]
    filled: tuple[str, ...]
    versions: bool
    tracked: tuple[str, ...]
    options: Written | None

    @property
    def tracks_all(self) -> bool:
        """Whether every change of a column begins a version."""
        return len(self.tracked) + len(self.keys) == len(self.columns)


def read_clauses(script: Script, tokens: Sequence[Token], at: int) -> Clauses:
    """Read what stands behind `INTO table`. Raises `InvalidRequest`."""
    parts = _parted(script, tokens)
    reader = _Reader(script, parts, at)
    columns, keys = reader.columns(), reader.names("KEYS")
    _refuse_unknown(script, keys, columns, reader.place("KEYS"), "a key of the table")
    rest = tuple(name for name in columns if name not in keys)
    versions = reader.scd_type() == 2
    track = tuple(n for n in reader.names("TRACK HISTORY ON", columns=columns) if n not in keys)
    sequence = reader.sequence()
    _refuse_ours(script, columns, reader.place("COLUMNS"), versions=versions)
    if track and not versions:
        raise reader.refusal("TRACK HISTORY ON", "SCD type 1 has no history to track")
    if len(sequence) > 1 and (versions or "APPLY AS TRUNCATE WHEN" in parts):
        raise reader.refusal(
            "SEQUENCE BY",
            f"several expressions have no one value for {_NEEDS_ONE[versions]}",
            fix="Name one expression that orders the changes of a key.",
        )
    if versions and "APPLY AS TRUNCATE WHEN" in parts:
        raise reader.refusal("APPLY AS TRUNCATE WHEN", "SCD type 2 keeps versions for ever")
    return Clauses(
        source=reader.source(),
        keys=keys,
        where=reader.written("WHERE"),
        deletes=reader.written("APPLY AS DELETE WHEN"),
        truncates=reader.written("APPLY AS TRUNCATE WHEN"),
        sequence=sequence,
        columns=columns,
        filled=reader.filled(rest),
        versions=versions,
        tracked=track or rest,
        options=reader.options(),
    )


_NEEDS_ONE = {True: START_AT, False: "the last TRUNCATE"}


def _refuse_unknown(
    script: Script, names: Collection[str], known: Sequence[str], at: int, what: str
) -> None:
    for name in names:
        if name not in known:
            raise script.refusal(
                f"{name} is {what}, and not among COLUMNS{nearest(name, known)}",
                at=at,
                fix="Name it in COLUMNS too.",
            )


def _refuse_ours(script: Script, columns: Sequence[str], at: int, *, versions: bool) -> None:
    """Refuse names that the columns have which a flow adds."""
    for name in columns:
        if name.lower().startswith("flow_") or (versions and name.lower() in (START_AT, END_AT)):
            raise script.refusal(
                f"{name} is a name that a flow gives to a column of its own",
                at=at,
                fix="Read a projection that calls it otherwise: SELECT x AS other.",
            )


def _parted(script: Script, tokens: Sequence[Token]) -> dict[str, tuple[int, list[Token]]]:
    """Cut a statement where its clauses begin, outside of brackets."""
    parts: dict[str, tuple[int, list[Token]]] = {}
    current: list[Token] | None = None
    place, depth = 0, 0
    while place < len(tokens):
        clause, length = _clause_at(tokens, place) if depth == 0 else ("", 0)
        if clause:
            at = int(tokens[place].start)
            if clause in parts:
                raise script.refusal(f"{clause} stands there twice", at=at, fix="Leave one out.")
            current = []
            parts[clause] = (at, current)
            place += length
            continue
        token = tokens[place]
        depth += (token.text == "(") - (token.text == ")")
        if current is None:
            raise script.refusal(
                f"expected FROM, found {token.text!r}", at=int(token.start), fix=FLOW_FORM
            )
        current.append(token)
        place += 1
    return parts


def _clause_at(tokens: Sequence[Token], place: int) -> tuple[str, int]:
    """Return the clause whose words stand at a place, and how many tokens these are."""
    for clause in _CLAUSES:
        words: list[str] = []
        for length, token in enumerate(tokens[place : place + 4], start=1):
            words += token.text.upper().split()
            if " ".join(words) == clause:
                return clause, length
            if not clause.startswith(" ".join(words)):
                break
    return "", 0


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

    def written(self, clause: str) -> Written | None:
        """Return what a clause says as it was written; None where it is not there."""
        if clause not in self._parts:
            return None
        tokens = self._parts[clause][1]
        if not tokens:
            raise self.refusal(clause, f"nothing stands behind {clause}", fix=FLOW_FORM)
        return self._whole(tokens)

    def _whole(self, tokens: Sequence[Token]) -> Written:
        first, last = tokens[0], tokens[-1]
        return Written(self._script.text[first.start : last.end + 1], int(first.start))

    def _needed(self, clause: str) -> list[Token]:
        if not self._parts.get(clause, (0, []))[1]:
            raise self.refusal(clause, f"a flow has no {clause}", fix=FLOW_FORM)
        return self._parts[clause][1]

    def source(self) -> Written:
        """Return the name of what is read, without the word STREAM and brackets."""
        tokens = self._needed("FROM")
        if tokens[0].text.upper() == "STREAM" and len(tokens) > 1:
            tokens = tokens[1:]
            if tokens[0].text == "(" and tokens[-1].text == ")":
                tokens = tokens[1:-1]
        names = [token.text for token in tokens]
        if any(sign in "()," for sign in names) or not names:
            raise self.refusal(
                "FROM",
                "a flow reads one stream",
                fix="Name it: FROM STREAM source. What is to be computed before belongs to a view "
                "or a projection of its own.",
            )
        return self._whole(tokens)

    def names(self, clause: str, *, columns: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return the names that stand in brackets behind a clause, each once.

        Of `columns` also all `* EXCEPT (…)` some.
        """
        if clause not in self._parts:
            if columns is not None:
                return ()
            raise self.refusal(clause, f"a flow has no {clause}", fix=FLOW_FORM)
        cursor = TokenCursor(self._script, self._needed(clause), form=FLOW_FORM)
        without = columns is not None and cursor.take("*")
        if without:
            cursor.expect("EXCEPT")
        bracket = cursor.take("(")
        found: list[str] = []
        while True:
            at, name = cursor.at, cursor.name("a column")
            if name in found:
                raise self._script.refusal(
                    f"{name} stands there twice", at=at, fix="Once is enough."
                )
            if columns is not None:
                _refuse_unknown(self._script, [name], columns, at, f"in {clause}")
            found.append(name)
            if not cursor.take(","):
                break
        if bracket:
            cursor.expect(")")
        if cursor.rest:
            raise cursor.refusal(f"expected another clause, found {cursor.found()}")
        if without and columns is not None:
            return tuple(name for name in columns if name not in found)
        return tuple(found)

    def columns(self) -> tuple[str, ...]:
        """Return the columns of the table, which have to be named."""
        tokens = self._parts.get("COLUMNS", (0, []))[1]
        if not tokens or tokens[0].text == "*":
            raise self.refusal(
                "COLUMNS",
                "the columns of the table are not named: a new field would change it",
                fix="Name them, the keys among them: COLUMNS (id, name, …).",
            )
        return self.names("COLUMNS")

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

    def sequence(self) -> tuple[Written, ...]:
        """Return what orders the changes of a key: an expression, or those in `STRUCT (…)`."""
        tokens = self._needed("SEQUENCE BY")
        if tokens[0].text.upper() != "STRUCT" or len(tokens) < 4:
            return (self._whole(tokens),)
        parts: list[list[Token]] = [[]]
        depth = 0
        for token in tokens[2:-1]:
            depth += (token.text in "(<") - (token.text in ")>")
            if token.text == "," and depth == 0:
                parts.append([])
            else:
                parts[-1].append(token)
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
        return self.names("IGNORE NULL UPDATES", columns=rest)

    def options(self) -> Written | None:
        """Return the options of the projection, without their brackets."""
        if "WITH" not in self._parts:
            return None
        tokens = self._needed("WITH")
        if tokens[0].text != "(" or tokens[-1].text != ")" or len(tokens) < 3:
            raise self.refusal("WITH", "options stand in brackets", fix=FLOW_FORM)
        named = next((t for t in tokens if t.text.lower() == "key"), None)
        if named is not None:
            raise self._script.refusal(
                "a flow has KEYS, and no option key", at=int(named.start), fix="Leave it out."
            )
        return self._whole(tokens[1:-1])
