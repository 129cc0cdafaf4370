"""Windows as Flink and Spark spell them, in the dialect's own words.

`FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), size)) … GROUP BY window_start, window_end` is read as
`FROM t … GROUP BY TUMBLE(ts, size)`; `window(ts, size)` is TUMBLE, with a slide HOP, and
`session_window(ts, gap)` SESSION. `TUMBLE_START(…)` and `window.start` are `window_start`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from kernel.errors import InvalidRequest
from projections.sql.operators.windows import Window, WindowKind, read_window
from projections.sql.values.expressions import render
from projections.sql.words.durations import in_us
from projections.sql.words.places import Script, offset_of
from projections.sql.words.tokens import SPARK, between_commas, made_like, retyped

_OPENS, _CLOSES = TokenType.L_PAREN, TokenType.R_PAREN
_SETS = (TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT)
_BEHIND_GROUP = (
    *(TokenType.HAVING, TokenType.QUALIFY, TokenType.ORDER_BY, TokenType.LIMIT),
    *_SETS,
)
_BOUNDS = ("window_start", "window_end", "window_time")
_LAST = "rowtime"
_NUMBER = "penstock_window"
"""Numbers the windows of a row: a query has no such name."""
_FORM = (
    "Group by the window: FROM t GROUP BY key, TUMBLE(ts, INTERVAL '10' MINUTES), HOP(ts, slide, "
    "size), CUMULATE(ts, step, size) or SESSION(ts, gap), and select window_start and window_end."
)


def without_table_functions(script: Script, tokens: list[Token]) -> list[Token]:
    """Read windows of tables as windows in GROUP BY. Raises `InvalidRequest` for one of no group.

    Behind it no word of them is left.
    """
    made = _in_full(tokens)
    while (place := _table_function(made)) is not None:
        made = _with_group(script, made, place)
    return made


_NAMES = {"DATA": 0, "TIMECOL": 1, "SLIDE": 2, "STEP": 2, "GAP": 2, "SIZE": 3, "OFFSET": 4}
"""Names by which Flink knows the arguments, and their order."""


def _in_full(tokens: list[Token]) -> list[Token]:
    """Write windows of tables as TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), size)), as Flink does.

    Others leave TABLE and DESCRIPTOR out, or name the arguments.
    """
    made = [*tokens]
    place = 0
    while place < len(made) - 2:
        end = place + 2 + _end(made[place + 2 :])
        if not _is_window_of_table(made, place) or end >= len(made):
            place += 1
            continue
        parts = _ordered(between_commas(made[place + 2 : end]))
        inside = (
            made[place - 1].token_type is _OPENS and made[place - 2].token_type is TokenType.TABLE
        )
        comma = made_like(made[place], TokenType.COMMA, ",")
        whole = [
            *made[place : place + 2],
            *_joined(_of_table(parts, made[place]), [comma]),
            made[end],
        ]
        if not inside:
            word = made_like(made[place], TokenType.TABLE, "TABLE")
            whole = [word, made_like(word, _OPENS, "("), *whole, made_like(word, _CLOSES, ")")]
        made[place : end + 1] = whole
        place += 3
    return made


def _is_window_of_table(tokens: Sequence[Token], place: int) -> bool:
    before = tokens[place - 1].token_type if place else None
    within = before is _OPENS and place > 1 and tokens[place - 2].token_type is TokenType.TABLE
    named = tokens[place].text.upper() in (*WindowKind.__members__, "SESSION")
    opened = tokens[place + 1].token_type is _OPENS
    return named and opened and (within or before in (TokenType.FROM, TokenType.JOIN))


def _ordered(parts: list[list[Token]]) -> list[list[Token]]:
    """Put arguments that are named in the order of those that are not."""
    named = [len(part) > 2 and part[1].token_type is TokenType.FARROW for part in parts]
    if not all(named) or any(part[0].text.upper() not in _NAMES for part in parts):
        return parts
    return [part[2:] for part in sorted(parts, key=lambda part: _NAMES[part[0].text.upper()])]


def _of_table(parts: list[list[Token]], at: Token) -> list[list[Token]]:
    """Put TABLE before the first argument, and DESCRIPTOR around the second one."""
    made = [*parts]
    if made and not _is_of_table(made[0]):
        made[0] = [made_like(at, TokenType.TABLE, "TABLE"), *made[0]]
    if len(made) > 1 and not _is_descriptor(made[1]):
        opened, closed = made_like(at, _OPENS, "("), made_like(at, _CLOSES, ")")
        made[1] = [made_like(at, TokenType.VAR, "DESCRIPTOR"), opened, *made[1], closed]
    return made


def _table_function(tokens: Sequence[Token]) -> int | None:
    """Return where a TABLE( … ) stands."""
    pairs = enumerate(pairwise(tokens))
    is_opened = (
        place
        for place, (word, sign) in pairs
        if word.token_type is TokenType.TABLE and sign.token_type is _OPENS
    )
    return next(is_opened, None)


def _with_group(script: Script, tokens: list[Token], place: int) -> list[Token]:
    at = int(tokens[place].start)
    end = place + 1 + _end(tokens[place + 2 :]) + 1
    call = tokens[place + 2 : end]
    parts = between_commas(call[2:-1])
    word = call[0].text.upper() if call else ""
    known = word in (*WindowKind.__members__, "SESSION") and len(parts) > 2
    if not known or not _is_of_table(parts[0]) or not _is_descriptor(parts[1]):
        raise _refusal(script, at, "TABLE(…) is not a window of a table that is known here")
    stream, table = parts[0][1], parts[0][2:]
    by = next(
        (p for p, each in enumerate(table) if each.token_type is TokenType.PARTITION_BY), None
    )
    partitions, table = ([], table) if by is None else (between_commas(table[by + 1 :]), table[:by])
    if table and stream.token_type is TokenType.VAR and stream.text.upper() == "STREAM":
        stream = retyped(stream, TokenType.STREAM)
    window = [*call[:2], *_joined([parts[1][2:-1], *parts[2:]], call), call[-1]]
    rest = tokens[end + 1 :]
    first = next((p for p, level in _levels(rest) if _is_group(rest[p], level)), None)
    made = _windows_of_rows(script, word, parts, [stream, *table], tokens[place])
    if first is None:
        if made is None:
            raise _refusal(script, at, f"{word} of a table without GROUP BY")
        return [*tokens[:place], *made, *rest]
    stop = first + 1 + _end(rest[first + 1 :], *_BEHIND_GROUP)
    groups = between_commas(rest[first + 1 : stop])
    others = [each for each in groups if not _is_bound(each)]
    bounds = {each[0].text.lower() for each in groups if _is_bound(each)}
    named = bool(bounds) and (word != WindowKind.CUMULATE or "window_end" in bounds)
    if made is not None and not named:
        return [*tokens[:place], *made, *rest]
    if not named:
        raise _refusal(script, at, f"{word} of a table that GROUP BY does not name")
    if word == "SESSION" and {*map(_words, partitions)} != {*map(_words, others)}:
        raise _refusal(script, at, "SESSION of a table by other columns than GROUP BY")
    grouped = _joined([*others, window], call)
    before = _with_last_moments(tokens[:place])
    return [*before, stream, *table, *rest[: first + 1], *grouped, *rest[stop:]]


def _with_last_moments(before: Sequence[Token]) -> list[Token]:
    """Write window_time in the SELECT of a window, its last millisecond, by the window's end."""
    level, first = 0, len(before) - 1
    while first > 0 and not (level == 0 and before[first].token_type is TokenType.SELECT):
        level += (before[first].token_type is _CLOSES) - (before[first].token_type is _OPENS)
        first -= 1
    made = [*before[:first]]
    for place in range(first, len(before)):
        token, behind = before[place], [each.token_type for each in before[place + 1 : place + 2]]
        named = place > first and before[place - 1].token_type in (TokenType.DOT, TokenType.ALIAS)
        if token.text.lower() != _BOUNDS[-1] or named:
            made.append(token)
            continue
        text = "timestamp_micros(unix_micros(window_end) - 1000)"
        if behind in ([TokenType.COMMA], [TokenType.FROM]):
            text = f"{text} AS {_BOUNDS[-1]}"
        made += _made_of(text, token)
    return made


def _windows_of_rows(
    script: Script, word: str, parts: list[list[Token]], table: Sequence[Token], at: Token
) -> list[Token] | None:
    """Return a query of the rows of a table, each once for each of its windows.

    Their bounds stand beside its columns. None where the time is computed, and for sessions.
    """
    names = all(token.token_type in (TokenType.VAR, TokenType.DOT) for token in parts[1][2:-1])
    if not names or word not in WindowKind.__members__:
        return None
    window = _read(script, WindowKind[word], parts[2:], at)
    size, step, moved = (in_us(each) for each in (window.size, window.step, window.offset))
    grows, count = window.kind is WindowKind.CUMULATE, window.of_a_row
    micros, number = f"unix_micros({_words(parts[1][2:-1])})", f"{_NUMBER} * {step}"
    behind = f"pmod({micros}{f' - {moved}' if moved else ''}, {size if grows else step})"
    start = f"{micros} - {behind}{f' - {number}' if count > 1 and not grows else ''}"
    length = f"{f'{number} + ' if count > 1 and grows else ''}{step if grows else size}"
    text = (
        f"(SELECT *{f' EXCEPT ({_NUMBER})' if count > 1 else ''}, "
        f"timestamp_micros({start}) AS window_start, "
        f"timestamp_micros({start} + {length}) AS window_end, "
        f"timestamp_micros({start} + {length} - 1000) AS window_time FROM"
    )
    listed = ", ".join(map(str, range(count)))
    several = (
        f"LATERAL VIEW stack({count}, {listed}) {_NUMBER}s AS {_NUMBER} "
        f"WHERE {start} + {length} > {micros}"
    )
    made = [*_made_of(text, at), *table, *(_made_of(several, at) if count > 1 else [])]
    return [*made, made_like(at, _CLOSES, ")")]


def _read(script: Script, kind: WindowKind, lengths: list[list[Token]], at: Token) -> Window:
    """Read the lengths of a window."""
    written = (
        " ".join(f"'{t.text}'" if t.token_type is TokenType.STRING else t.text for t in part)
        for part in lengths
    )
    try:
        (query,) = SPARK.parse(f"SELECT {kind}({', '.join(['t', *written])})")
    except SqlglotError as error:
        raise _refusal(script, int(at.start), f"{kind} of no lengths") from error
    assert isinstance(query, exp.Select), "it is written here"
    return read_window(script, query.expressions[0], kind, at=int(at.start))


def _made_of(text: str, at: Token) -> list[Token]:
    return [made_like(at, each.token_type, each.text) for each in SPARK.tokenize(text)]


def _words(part: Sequence[Token]) -> str:
    return " ".join(token.text.lower() for token in part)


def _refusal(script: Script, at: int, message: str) -> InvalidRequest:
    return script.refusal(message, at=at, fix=_FORM)


def _levels(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Yield each place with the number of brackets that are open there, up to where they end."""
    level = 0
    for place, token in enumerate(tokens):
        level -= token.token_type is _CLOSES
        if level < 0 or (level == 0 and token.token_type in _SETS):
            return
        yield place, level
        level += token.token_type is _OPENS


def _end(tokens: Sequence[Token], *kinds: TokenType) -> int:
    """Return where the brackets around close, or a token of one of these kinds stands."""
    end = 0
    for place, level in _levels(tokens):
        if level == 0 and tokens[place].token_type in kinds:
            return place
        end = place + 1
    return end


def _joined(parts: Sequence[Sequence[Token]], call: Sequence[Token]) -> list[Token]:
    """Put parts behind each other, with a comma of the call between."""
    comma = next(each for each in call if each.token_type is TokenType.COMMA)
    found = [token for part in parts for token in (comma, *part)]
    return found[1:]


def _is_group(token: Token, level: int) -> bool:
    return level == 0 and token.token_type is TokenType.GROUP_BY


def _is_bound(part: Sequence[Token]) -> bool:
    return len(part) == 1 and part[0].text.lower() in _BOUNDS


def _is_of_table(part: Sequence[Token]) -> bool:
    return len(part) > 1 and part[0].token_type is TokenType.TABLE


def _is_descriptor(part: Sequence[Token]) -> bool:
    return len(part) > 3 and part[0].text.upper() == "DESCRIPTOR" and part[1].token_type is _OPENS


def with_windows(query: exp.Expr) -> exp.Expr:
    """Name the windows of GROUP BY and their bounds as the dialect does, in all SELECTs."""
    for select in [*query.find_all(exp.Select)]:
        group = select.args.get("group")
        for written in [*group.expressions] if group is not None else []:
            own = _window(written) if isinstance(written, exp.Anonymous) else None
            if own is not None:
                _name_bounds(select, written, own)
                written.replace(own)
    return query


def _window(written: exp.Expr) -> exp.Expr | None:
    """Return a window as the dialect writes it; None for what is none."""
    time, *lengths = [each.copy() for each in written.expressions] or [exp.Null()]
    match written.name.upper(), len(lengths):
        case (("TUMBLE" | "HOP" | "CUMULATE" | "SESSION"), _):
            return written.copy()
        case "WINDOW", 1:
            return exp.Anonymous(this="TUMBLE", expressions=[time, *lengths])
        case "WINDOW", 2 | 3:
            size, slide, *moved = lengths
            return exp.Anonymous(this="HOP", expressions=[time, slide, size, *moved])
        case "SESSION_WINDOW", 1:
            return exp.Anonymous(this="SESSION", expressions=[time, *lengths])
        case _:
            return None


def _name_bounds(select: exp.Select, written: exp.Expr, own: exp.Expr) -> None:
    further = [select.args[name] for name in ("having", "qualify") if select.args.get(name)]
    for part in (*select.expressions, *further):
        for found in [*part.find_all(exp.Anonymous, exp.Column, exp.Dot)]:
            bound = _bound(select, found, written, own)
            if bound is None or found.find_ancestor(exp.Select) is not select:
                continue
            made: exp.Expr = exp.column("window_end" if bound == _LAST else f"window_{bound}")
            made.meta["start"] = offset_of(found, 0)
            if bound == _LAST:
                made = _last_moment(made)
            field = found.parent is select and not isinstance(found, exp.Anonymous)
            found.replace(exp.alias_(made, bound) if field else made)


def _bound(select: exp.Select, found: exp.Expr, written: exp.Expr, own: exp.Expr) -> str | None:
    """Return `start`, `end` or `rowtime` for a bound of the window, as each of them writes it."""
    word, of = written.name.lower(), found.name.lower()
    match found:
        case exp.Anonymous():
            name, _, bound = of.rpartition("_")
            same = [*map(render, found.expressions)] == [*map(render, own.expressions)]
            same = same and name == own.name.lower()
        case exp.Column():
            bound, inputs = of, select.find_all(exp.Table, exp.Subquery)
            named = word.endswith("window") and len(found.parts) == 2
            same = named and found.table.lower() == word
            same = same and all(each.alias_or_name.lower() != word for each in inputs)
        case _:
            bound = found.expression.name.lower()
            same = render(found.this) == render(written)
    known = ("start", "end", _LAST) if isinstance(found, exp.Anonymous) else ("start", "end")
    return bound if same and bound in known else None


def _last_moment(end: exp.Expr) -> exp.Expr:
    """Return the last millisecond of a window."""
    (query,) = SPARK.parse("SELECT timestamp_micros(unix_micros(window_end) - 1000)")
    assert isinstance(query, exp.Select), "it is written here"
    made: exp.Expr = query.expressions[0]
    made.meta.update(end.meta)
    return made
