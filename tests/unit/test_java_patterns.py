"""Patterns of Java in Python's words, and those that are left to Java."""

from __future__ import annotations

import re
from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.sql.words.java_patterns import (
    fits_nothing,
    groups_in,
    pattern_of,
    plain_pattern_of,
    replacement_of,
)


@pytest.mark.parametrize(
    ("java", "fits", "fails"),
    [
        (r"^\d{2,3}$", ["12", "123\n"], ["1", "1234", "\u0661\u0662", "12\n\n"]),
        ("a.c", ["abc", "a\tc"], ["a\nc", "a\u2028c", "a\rc"]),
        (r"\w+\s", ["ab "], ["é ", "ab\u00a0"]),
        (r"[\w.]+@[a-z]+", ["a.b@c"], ["@c"]),
        ("x$", ["x", "x\r\n", "x\u0085"], ["x\r\n\n", "xy"]),
        ("(?:ab|cd)+?e", ["abcde"], ["ae"]),
        ("^[^&]*&[a&]$", ["x&&", "&a"], ["x&b", "a&&&"]),
    ],
)
def test_a_pattern_means_what_java_means_by_it(
    java: str, fits: list[str], fails: list[str]
) -> None:
    pattern = pattern_of(java)
    assert pattern is not None
    assert all(re.search(pattern, text) for text in fits)
    assert not any(re.search(pattern, text) for text in fails)


@pytest.mark.parametrize(
    "java",
    [
        *(
            "(?i)a",
            "(?=a)",
            "a*+",
            "a++",
            "(a*)*",
            "(a|)+",
            "[a&&b]",
            "[[a]b]",
            r"\bword",
            r"\p{L}",
        ),
        *(r"\1", "(a", "a)", "*a", "a{", "a{2", "a**", "^*", "[", "[]", "[^]", "[b-a]", r"\u0041"),
        *(r"\Qa\E", "\\", "[a-]", r"[\d-z]", "(?<n>a)", "a{1000}", "[^a-c-]x"),
    ],
)
def test_what_java_may_mean_otherwise_is_left_to_it(java: str) -> None:
    assert pattern_of(java) is None


@pytest.mark.parametrize(
    ("java", "python"),
    [
        ("$1-$0", r"\g<1>-\g<0>"),
        ("$12", r"\g<1>2"),
        (r"\$\\", "$\\\\"),
        ("$2", None),
        ("$", None),
        ("${n}", None),
        ("\\", None),
    ],
)
def test_a_replacement_means_what_java_means_by_it(java: str, python: str | None) -> None:
    assert replacement_of(java, groups=1) == python


def test_groups_are_counted_and_empty_finds_are_seen() -> None:
    assert groups_in("(a)(?:b)(c)") == 2
    assert fits_nothing("a*")
    assert not fits_nothing("a+")


_PIECES = st.sampled_from(
    [*"ab&^.|é", "(a|ab)", "(b?)", "(?:é|^)", "[^&]*", "[a&]", r"\d{1,3}?", r"\\u0061", r"\W"]
)
_TEXTS = st.text(alphabet="ab&é1\n\r\u2028\\u0", max_size=8)


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


@settings(max_examples=200, deadline=None)
@given(st.lists(_PIECES, min_size=1, max_size=6), st.lists(_TEXTS, min_size=1, max_size=5))
def test_what_is_plain_is_found_alike_by_re2(
    engine: duckdb.DuckDBPyConnection, pieces: list[str], texts: list[str]
) -> None:
    java = "".join(pieces)
    if plain_pattern_of(java) is None:
        return
    for text in texts:
        _check_finds(engine, java, text)


def _check_finds(connection: duckdb.DuckDBPyConnection, java: str, text: str) -> None:
    pattern = pattern_of(java)
    assert pattern is not None
    given = {"text": text, "plain": plain_pattern_of(java)}
    found = re.search(pattern, text)
    for group in range(groups_in(pattern) + 1):
        words = f"SELECT regexp_extract($text, $plain, {group})"
        (answer,) = connection.execute(words, given).fetchall()[0]
        assert answer == ((found[group] or "") if found else ""), (java, text, group)
    if not fits_nothing(pattern):
        words = "SELECT regexp_replace($text, $plain, '-', 'g')"
        (answer,) = connection.execute(words, given).fetchall()[0]
        assert answer == re.sub(pattern, "-", text), (java, text)


@pytest.mark.parametrize("java", ["a$", "(a|b)+", "(a){2}", "a{101}", "a{60}b{60}", "a\0", "a*+"])
def test_what_re2_may_mean_otherwise_is_not_plain(java: str) -> None:
    assert plain_pattern_of(java) is None
