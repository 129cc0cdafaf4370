"""Regular expressions of Java as those of Python, as far as both mean the same.

Only what is read here is translated: characters, classes, groups, choices, greedy and reluctant
repetition, and both ends of the text. Java's meaning is written out where Python's is another:
digits, letters and blanks are ASCII, `.` is no line's end of five kinds, and `$` stands before the
last one too. Source: the documentation of `java.util.regex.Pattern`.

The plain ones among them mean the same to RE2, DuckDB's own, which is many times as fast: those
without the end of the text and without groups that are repeated, whose last find is another one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENDS = "\\n\\r\\u0085\\u2028\\u2029"
_ENDS_OF_RE2 = "\\n\\r\\x{0085}\\x{2028}\\x{2029}"
_LAST = "(?:(?=\\r\\n\\Z)|(?=[\\r\\u0085\\u2028\\u2029]?\\Z)|(?<!\\r)(?=\\n\\Z))"  # not amid \r\n
_CLASSES = {"d": "0-9", "w": "a-zA-Z_0-9", "s": " \\t\\n\\x0b\\f\\r"}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_REPEATED = re.compile(r"[*+?]|\{(\d{1,3})(,(\d{1,3})?)?\}")
_MOST_REPEATED = 100
"""Up to so many repetitions of one pattern are written out by RE2, within its memory."""


class _BeyondError(Exception):
    """What is met is not translated."""


@dataclass(slots=True)
class _Reader:
    """What is left of a pattern, whether RE2 may have it, and how often it counts up to."""

    text: str
    at: int = 0
    is_plain: bool = True
    counted: int = 0

    def next(self) -> str:
        """Return the character that comes, the empty text at the end."""
        return self.text[self.at : self.at + 1]

    def take(self, word: str) -> bool:
        """Pass by a word if it comes."""
        found = self.text.startswith(word, self.at)
        self.at += len(word) if found else 0
        return found

    def choices(self) -> tuple[str, bool]:
        """Return the pattern up to a bracket or the end, and whether it fits the empty text."""
        parts, empty = [], False
        while True:
            text, may_be_empty = self.sequence()
            parts.append(text)
            empty = empty or may_be_empty
            if not self.take("|"):
                return "|".join(parts), empty

    def sequence(self) -> tuple[str, bool]:
        """Return what follows each other up to `|`, a bracket or the end."""
        parts, empty = [], True
        while self.next() and self.next() not in "|)":
            text, may_be_empty = self.repeated()
            parts.append(text)
            empty = empty and may_be_empty
        return "".join(parts), empty

    def repeated(self) -> tuple[str, bool]:
        """Return one thing with the number of its repetitions."""
        before = self.at
        text, may_be_empty = self.single()
        times = _REPEATED.match(self.text, self.at)
        if times is None:
            if self.next() == "{":
                raise _BeyondError
            return text, may_be_empty
        # What may be empty is repeated by rules that differ, and so is an end of the text.
        if may_be_empty or self.text[before] in "^$":
            raise _BeyondError
        self.at = times.end()
        reluctant = "?" if self.take("?") else ""
        if self.next() in ("*", "+", "?", "{"):
            raise _BeyondError
        least = int(times[1]) if times[1] else {"*": 0, "?": 0}.get(times[0], 1)
        self.counted += int(times[3] or times[1] or 0)
        self.is_plain &= self.text[before] != "(" and self.counted <= _MOST_REPEATED
        return f"{text}{times[0]}{reluctant}", least == 0

    def single(self) -> tuple[str, bool]:
        """Return a character, a class, a group or an end of the text."""
        if self.take("("):
            opening = "(?:" if self.take("?:") else "("
            if self.next() == "?":
                raise _BeyondError
            inner, empty = self.choices()
            if not self.take(")"):
                raise _BeyondError
            return f"{opening}{inner})", empty
        if self.take("["):
            return self.members(), False
        if self.take("."):
            return f"[^{_ENDS}]", False
        if self.take("^"):
            return "\\A", True
        if self.take("$"):
            self.is_plain = False
            return _LAST, True
        if self.take("\\z"):
            self.is_plain = False
            return "\\Z", True
        if self.next() in ("*", "+", "?", "{", "}", "]"):
            raise _BeyondError
        return self.character(), False

    def character(self) -> str:
        """Return a character as a pattern, or a class that a backslash names."""
        if not self.take("\\"):
            found = self.next()
            self.at += 1
            return re.escape(found)
        found = self.next()
        self.at += 1
        if found.lower() in _CLASSES and found:
            return f"[{'^' if found.isupper() else ''}{_CLASSES[found.lower()]}]"
        return re.escape(self.escaped(found))

    def escaped(self, found: str) -> str:
        """Return the character that stands behind a backslash."""
        if found in _CONTROLS:
            return _CONTROLS[found]
        if not found or not found.isascii() or found.isalnum():
            raise _BeyondError
        return found

    def members(self) -> str:
        """Return a class of characters, whose bracket was passed by."""
        negated = "^" if self.take("^") else ""
        parts = []
        while not self.take("]"):
            first = self.member()
            if not first.startswith("\\C") and self.next() == "-":
                self.at += 1
                if self.next() == "]":
                    raise _BeyondError
                last = self.member()
                if last.startswith("\\C") or last < first:
                    raise _BeyondError
                parts.append(f"{re.escape(first)}-{re.escape(last)}")
            else:
                parts.append(first[2:] if first.startswith("\\C") else re.escape(first))
        if not parts:
            raise _BeyondError
        return f"[{negated}{''.join(parts)}]"

    def member(self) -> str:
        """Return a character of a class; what begins with `\\C` are several."""
        found = self.next()
        self.at += 1
        # Two of `&` are what two classes share; one is a character.
        if not found or found in "[^-" or (found == "&" and self.next() == "&"):
            raise _BeyondError
        if found != "\\":
            return found
        named = self.next()
        self.at += 1
        if named and named in _CLASSES:
            return f"\\C{_CLASSES[named]}"
        return self.escaped(named)


def pattern_of(java: str) -> str | None:
    """Return the pattern of Python that finds what one of Java finds; None for others."""
    found = _read(java)
    return None if found is None else found[0]


def plain_pattern_of(java: str) -> str | None:
    """Return the pattern of RE2 that finds what one of Java finds, groups too; None for others."""
    found = _read(java)
    if found is None or not found[1] or "\0" in java:
        return None
    return found[0].replace(_ENDS, _ENDS_OF_RE2)


def _read(java: str) -> tuple[str, bool] | None:
    reader = _Reader(java)
    try:
        text, _ = reader.choices()
    except _BeyondError:
        return None
    return (text, reader.is_plain) if not reader.next() else None


def fits_nothing(pattern: str) -> bool:
    """Say whether a translated pattern fits the empty text."""
    return re.compile(pattern).match("") is not None


def groups_in(pattern: str) -> int:
    """Return how many groups a translated pattern has."""
    return re.compile(pattern).groups


def replacement_of(java: str, groups: int) -> str | None:
    """Return Java's replacement text as Python's; None where it names what is not there."""
    found, at = [], 0
    while at < len(java):
        char = java[at]
        at += 1
        if char == "\\":
            if at == len(java):
                return None
            found.append(java[at].replace("\\", "\\\\"))
            at += 1
        elif char == "$":
            digits = re.match(r"[0-9]+", java[at:])
            if digits is None or int(digits[0][0]) > groups:
                return None
            size = 1
            # Further digits belong to the number as long as there is such a group.
            while size < len(digits[0]) and int(digits[0][: size + 1]) <= groups:
                size += 1
            found.append(f"\\g<{int(digits[0][:size])}>")
            at += size
        else:
            found.append(char)
    return "".join(found)
