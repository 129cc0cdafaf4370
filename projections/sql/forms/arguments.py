"""Calls with more arguments than a function takes: the parser reads some of them over.

Spark refuses them. Read over, `date_trunc('day', t, 'UTC')` would be days of another zone than its
author asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from projections.sql.forms.all_groups import with_all_groups
from projections.sql.forms.comma_joins import with_conditions
from projections.sql.forms.constant_queries import with_written_rows
from projections.sql.forms.element_forms import with_explosions
from projections.sql.forms.ksql_words import without_ksql_words
from projections.sql.forms.other_forms import with_own_forms
from projections.sql.forms.unpivots import with_unpivots
from projections.sql.forms.window_spellings import with_windows, without_table_functions
from projections.sql.values.expressions import render
from projections.sql.values.refusals import refuse_forms, refuse_words
from projections.sql.words.places import Script
from projections.sql.words.spark_functions import CLASSES, OPERATORS
from projections.sql.words.tokens import SPARK, parsed

_OPENS = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSES = (TokenType.R_PAREN, TokenType.R_BRACKET)
_PARSER = SPARK.parser_class
_MARK = "a_mark_{}_"


def read_query(script: Script, tokens: list[Token], *, with_names: bool = False) -> exp.Expr:
    """Read the tokens of a query as Spark SQL. Raises `InvalidRequest` at what is none.

    `with_names`: all names of WITH are left, also those of rows that are written out.
    """
    tokens = without_table_functions(script, without_ksql_words(script, tokens))
    _refuse_surplus(script, tokens)
    refuse_words(script, tokens)
    query = with_own_forms(parsed(script, tokens))
    query = with_unpivots(query if with_names else with_written_rows(query))
    query = with_explosions(script, refuse_forms(script, query))
    query = with_all_groups(query)
    return with_conditions(with_windows(query))


def _refuse_surplus(script: Script, tokens: Sequence[Token]) -> None:
    """Raise `InvalidRequest` at a call whose arguments the parser does not all take."""
    for token, count in _calls(tokens):
        name = token.text.upper()
        known = name in _PARSER.FUNCTIONS or name in _PARSER.FUNCTION_PARSERS
        if known and token.token_type not in _PARSER.TYPE_TOKENS and _loses(name, count):
            raise script.refusal(
                f"{name.lower()} does not take {count} arguments",
                at=int(token.start),
                fix="Leave out what it does not take, or name the function that does.",
            )


def _calls(tokens: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """Yield what stands before each pair of brackets, and how many arguments are in them."""
    open_: list[tuple[Token | None, int]] = []
    before: Token | None = None
    for token in tokens:
        if token.token_type in _OPENS:
            open_.append((before, 1))
        elif token.token_type == TokenType.COMMA and open_:
            name, count = open_[-1]
            open_[-1] = name, count + 1
        elif token.token_type == TokenType.ORDER_BY and open_:
            # Behind it are no arguments.
            open_[-1] = None, 1
        elif token.token_type in _CLOSES and open_:
            name, count = open_.pop()
            if name is not None and count > 1:
                yield name, count
        before = token


@cache
def _loses(name: str, count: int) -> bool:
    """Say whether a call with so many arguments is written again without one of them.

    Of functions that are not in the dialect it does not matter, nor of those that want words there.
    """
    marks = [_MARK.format(place) for place in range(count)]
    try:
        (query,) = SPARK.parse(f"SELECT {name}({', '.join(marks)})")
    except SqlglotError:
        return False
    call = query.selects[0] if isinstance(query, exp.Select) else None
    known = isinstance(call, exp.AggFunc) or type(call).__name__ in CLASSES | OPERATORS
    if call is None or not known:
        return False
    try:
        written = render(call).lower()
    except (KeyError, ValueError):
        return True  # What it lacks it cannot be written without.
    return any(mark not in written for mark in marks)
