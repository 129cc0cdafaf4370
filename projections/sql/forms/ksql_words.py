"""Words of ksqlDB that say what the dialect says in others.

`WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY k` is `GROUP BY k, TUMBLE(ROWTIME, '1 HOUR')`, WINDOWSTART
is `window_start`, and EMIT CHANGES says nothing: a projection is kept by itself. `JOIN b WITHIN 1
HOUR ON …` bounds the times of both sides. How late rows may be is said of their source, so GRACE
PERIOD is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import Token, TokenType

from projections.sql.words.places import Script
from projections.sql.words.tokens import SPARK, retyped, with_sessions

_KINDS = {"TUMBLING": "TUMBLE", "HOPPING": "HOP", "SESSION": "SESSION"}
_FORMS = {
    "TUMBLING": "WINDOW TUMBLING (SIZE 1 HOUR)",
    "HOPPING": "WINDOW HOPPING (SIZE 1 HOUR, ADVANCE BY 10 MINUTES)",
    "SESSION": "WINDOW SESSION (30 MINUTES)",
}
_BOUNDS = {"WINDOWSTART": "window_start", "WINDOWEND": "window_end"}
_BEHIND = (
    *(TokenType.HAVING, TokenType.QUALIFY, TokenType.ORDER_BY, TokenType.LIMIT, TokenType.UNION),
    *(TokenType.INTERSECT, TokenType.EXCEPT),
)


def without_ksql_words(script: Script, tokens: list[Token]) -> list[Token]:
    """Read the windows of ksqlDB as windows in GROUP BY. Raises `InvalidRequest` for others."""
    made = _without_emit(_with_window_calls(tokens))
    while (place := _window(made)) is not None:
        made = _grouped(script, made, place)
    while (place := _bound(made)) is not None:
        made = _bounded(script, made, place)
    return made


def _without_emit(tokens: list[Token]) -> list[Token]:
    words = [token.text.upper() for token in tokens]
    found = [p for p in range(len(words) - 1) if words[p : p + 2] == ["EMIT", "CHANGES"]]
    dropped = {each for place in found for each in (place, place + 1)}
    return [token for place, token in enumerate(tokens) if place not in dropped]


def _with_window_calls(tokens: list[Token]) -> list[Token]:
    """Read WINDOW before a bracket as the name of a function: no clause begins so."""
    made = [*tokens]
    for place, token in enumerate(tokens[:-1]):
        opened = tokens[place + 1].token_type is TokenType.L_PAREN
        if token.token_type is TokenType.WINDOW and opened:
            made[place] = retyped(token, TokenType.VAR)
    return made


def _window(tokens: Sequence[Token]) -> int | None:
    """Return where a window of ksqlDB stands."""
    for place in range(len(tokens) - 2):
        words = [token.text.upper() for token in tokens[place : place + 3]]
        if words[0] == "WINDOW" and words[1] in _KINDS and words[2] == "(":
            return place
    return None


def _grouped(script: Script, tokens: list[Token], place: int) -> list[Token]:
    kind = tokens[place + 1].text.upper()
    end = next(
        (p for p in range(place, len(tokens)) if tokens[p].token_type is TokenType.R_PAREN),
        len(tokens) - 1,
    )
    call = _call(script, kind, tokens[place + 3 : end], tokens[place])
    rest = tokens[end + 1 :]
    group = next((p for p, token in enumerate(rest) if _begins_groups(token)), None)
    if group is None:
        raise script.refusal(
            f"WINDOW {kind} without GROUP BY",
            at=int(tokens[place].start),
            fix="Group by the key that the window is of: WINDOW … GROUP BY key.",
        )
    stop = _end(rest, group + 1)
    made = [*tokens[:place], *rest[:stop], *_made(f", {call}", tokens[place]), *rest[stop:]]
    return [_named(token) for token in made]


def _bound(tokens: Sequence[Token]) -> int | None:
    """Return where WITHIN bounds a join in time."""
    for place in range(2, len(tokens) - 2):
        number = tokens[place + 1].token_type in (TokenType.NUMBER, TokenType.L_PAREN)
        if tokens[place].text.upper() == "WITHIN" and number and _joins(tokens[:place]):
            return place
    return None


def _joins(before: Sequence[Token]) -> bool:
    """Say whether an input of JOIN ends here, with its alias or without."""
    kinds = [token.token_type for token in before[-9:]]
    behind = (
        kinds[len(kinds) - kinds[::-1].index(TokenType.JOIN) :] if TokenType.JOIN in kinds else []
    )
    return bool(behind) and not {TokenType.ON, TokenType.USING, TokenType.WHERE} & {*behind}


def _bounded(script: Script, tokens: list[Token], place: int) -> list[Token]:
    at = tokens[place]
    on = next((p for p in range(place, len(tokens)) if tokens[p].token_type is TokenType.ON), None)
    lengths = [] if on is None else _lengths(tokens[place + 1 : on])
    first = max(p for p in range(place) if tokens[p].token_type in (TokenType.FROM, TokenType.JOIN))
    begun = max((p for p in range(first) if tokens[p].token_type is TokenType.FROM), default=None)
    before = [] if begun is None else tokens[begun + 1 : first]
    # Of rows that are joined already ksqlDB bounds the later time of them.
    several = any(token.token_type is TokenType.JOIN for token in before)
    left = None if several else _alias_behind(before)
    if on is None or left is None or not lengths:
        raise script.refusal(
            "WITHIN of a join is not read here",
            at=int(at.start),
            fix="Bound the times of both sides: JOIN b ON b.key = a.key AND b.occurred_at BETWEEN "
            "a.occurred_at - INTERVAL 1 HOUR AND a.occurred_at + INTERVAL 1 HOUR.",
        )
    right = tokens[place - 1].text
    low, high = (f"INTERVAL '{count}' {unit}" for count, unit in lengths)
    text = (
        f"{right}.ROWTIME >= {left}.ROWTIME - {low} AND "
        f"{right}.ROWTIME <= {left}.ROWTIME + {high} AND"
    )
    return [*tokens[:place], tokens[on], *_made(text, at), *tokens[on + 1 :]]


def _lengths(inside: Sequence[Token]) -> list[tuple[str, str]]:
    """Return the lengths before and after: `1 HOUR` is both, `(1 HOUR, 2 HOURS)` names each."""
    words = [token.text for token in inside if token.text not in ("(", ")", ",")]
    pairs = [*zip(words[::2], words[1::2], strict=False)]
    plain = len(words) in (2, 4) and all(count.isdigit() for count, _ in pairs)
    return [pairs[0], pairs[-1]] if plain else []


def _alias_behind(tokens: Sequence[Token]) -> str | None:
    """Return the alias of the first input of FROM, which is its last word before JOIN."""
    kinds = (TokenType.INNER, TokenType.LEFT, TokenType.OUTER, TokenType.FULL, TokenType.RIGHT)
    joined = (p for p, token in enumerate(tokens) if token.token_type in (*kinds, TokenType.JOIN))
    words = tokens[: next(joined, len(tokens))]
    plain = words and words[-1].token_type is not TokenType.R_PAREN
    return words[-1].text if plain else None


def _begins_groups(token: Token) -> bool:
    return token.token_type is TokenType.GROUP_BY


def _end(tokens: Sequence[Token], place: int) -> int:
    """Return where GROUP BY ends: at the next clause, or the bracket around the query."""
    level = 0
    for end in range(place, len(tokens)):
        kind = tokens[end].token_type
        level += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
        if level < 0 or (level == 0 and kind in _BEHIND):
            return end
    return len(tokens)


def _call(script: Script, kind: str, inside: Sequence[Token], at: Token) -> str:
    parts = " ".join(token.text for token in inside).split(" , ")
    said = {_word_of(part): part for part in parts}
    for word in ("GRACE", "RETENTION"):
        if word in said:
            raise script.refusal(
                f"{said[word].upper()} is not said of a window: rows are as late as their source "
                "says, and the log keeps them",
                at=int(at.start),
                fix="Leave it out, and say it of the source: CREATE SOURCE x ON … WITH (lateness = "
                "'10 minutes').",
            )
    lengths = [part.split(maxsplit=1)[-1] for part in parts if _word_of(part) == "SIZE"]
    steps = [part.split(maxsplit=2)[-1] for part in parts if _word_of(part) == "ADVANCE"]
    lengths = parts if kind == "SESSION" else [*steps, *lengths]
    wanted = 2 if kind == "HOPPING" else 1
    if len(lengths) != wanted or len(parts) != wanted:
        raise script.refusal(
            f"WINDOW {kind} is not complete", at=int(at.start), fix=f"The form is {_FORMS[kind]}."
        )
    return f"{_KINDS[kind]}(ROWTIME, {', '.join(_quoted(length) for length in lengths)})"


def _word_of(part: str) -> str:
    return part.split(maxsplit=1)[0].upper() if part.strip() else ""


def _quoted(length: str) -> str:
    return "'" + length.replace("'", "") + "'"


def _made(text: str, at: Token) -> list[Token]:
    """Return the tokens of a text, all at the place of another one."""
    return [
        Token(each.token_type, each.text, at.line, at.col, at.start, at.end, [])
        for each in with_sessions(SPARK.tokenize(text))
    ]


def _named(token: Token) -> Token:
    """Return a bound of a window under its name here."""
    bound = _BOUNDS.get(token.text.upper()) if token.token_type is TokenType.VAR else None
    if bound is None:
        return token
    return Token(
        token.token_type, bound, token.line, token.col, token.start, token.end, token.comments
    )
