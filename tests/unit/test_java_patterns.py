"""Patterns of Java in Python's words, and those that are left to Java."""

from __future__ import annotations

import re

import pytest

from projections.sql.java_patterns import fits_nothing, groups_in, pattern_of, replacement_of


@pytest.mark.parametrize(
    ("java", "fits", "fails"),
    [
        (r"^\d{2,3}$", ["12", "123\n"], ["1", "1234", "\u0661\u0662", "12\n\n"]),
        ("a.c", ["abc", "a\tc"], ["a\nc", "a\u2028c", "a\rc"]),
        (r"\w+\s", ["ab "], ["é ", "ab\u00a0"]),
        (r"[\w.]+@[a-z]+", ["a.b@c"], ["@c"]),
        ("x$", ["x", "x\r\n", "x\u0085"], ["x\r\n\n", "xy"]),
        ("(?:ab|cd)+?e", ["abcde"], ["ae"]),
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
