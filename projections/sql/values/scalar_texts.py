"""Functions of text that the small executor computes; see `projections.sql.values.scalar`."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from projections.sql.values.scalar import (
    TEXT,
    Rule,
    Scalar,
    TypeOf,
    form,
    literal_number,
    literal_text,
    of_texts,
    quoted,
)
from projections.sql.words.java_patterns import (
    fits_nothing,
    groups_in,
    pattern_of,
    plain_pattern_of,
    replacement_of,
)

_NO_LENGTH = "2147483647"
_MOST_GROUPS = 9
"""The last group that DuckDB's own search gives."""


def _in_case(node: exp.Expr, types: TypeOf) -> Scalar | None:
    inner = node.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    # Spark leaves the inner one of two out, which makes another text of ß.
    if types(node.this) != TEXT or isinstance(inner, exp.Upper | exp.Lower):
        return None
    return form(TEXT, f"spark_{type(node).__name__.lower()}({{0}})", node.this)


def _trim(node: exp.Expr, types: TypeOf) -> Scalar | None:
    cut = node.expression if isinstance(node, exp.Trim) else (node.expressions[1:] or [None])[0]
    text = node.this if isinstance(node, exp.Trim) else node.expressions[0]
    side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.text("position").upper(), "trim")
    if types(text) != TEXT or (cut is not None and types(cut) != TEXT):
        return None
    if cut is None:
        # Without a second argument DuckDB takes other blanks off, too.
        return form(TEXT, f"{side}({{0}}, ' ')", text)
    return form(TEXT, f"spark_{side}({{0}}, {{1}})", text, cut)


def _substring(node: exp.Expr, types: TypeOf) -> Scalar | None:
    match node:
        case exp.Left():
            start, length = exp.Literal.number(1), node.expression
        case exp.Right():
            if types(node.this) != TEXT or types(node.expression) != "INT":
                return None
            part = f"spark_substring({{0}}, - CAST({{1}} AS BIGINT), {_NO_LENGTH})"
            words = f"CASE WHEN {{1}} <= 0 AND {{0}} IS NOT NULL THEN '' ELSE {part} END"
            return form(TEXT, f"({words})", node.this, node.expression)
        case _:
            start, length = node.args["start"], node.args.get("length")
    whole = [part for part in (start, length) if part is not None]
    if types(node.this) != TEXT or any(types(part) != "INT" for part in whole):
        return None
    last = "{2}" if length is not None else _NO_LENGTH
    return form(TEXT, f"spark_substring({{0}}, {{1}}, {last})", node.this, *whole)


def _pad(node: exp.Expr, types: TypeOf) -> Scalar | None:
    fill = node.args.get("fill_pattern") or exp.Literal.string(" ")
    parts = (node.this, node.expression, fill)
    if [types(part) for part in parts] != [TEXT, "INT", TEXT]:
        return None
    side = "lpad" if node.args.get("is_left") else "rpad"
    return form(TEXT, f"spark_{side}({{0}}, {{1}}, {{2}})", *parts)


def _position(node: exp.Expr, types: TypeOf) -> Scalar | None:
    start = node.args.get("position") or exp.Literal.number(1)
    parts = (node.this, node.args["substr"], start)
    if [types(part) for part in parts] != [TEXT, TEXT, "INT"]:
        return None
    if literal_number(start) is None:
        return None
    return form("INT", "spark_locate({0}, {1}, {2})", *parts)


def _repeat(node: exp.Expr, types: TypeOf) -> Scalar | None:
    parts = (node.this, node.args["times"])
    known = [types(part) for part in parts] == [TEXT, "INT"]
    return form(TEXT, "spark_repeat({0}, {1})", *parts) if known else None


def _index(node: exp.Expr, types: TypeOf) -> Scalar | None:
    parts = (node.this, node.args["delimiter"], node.args["count"])
    known = [types(part) for part in parts] == [TEXT, TEXT, "INT"]
    return form(TEXT, "spark_substring_index({0}, {1}, {2})", *parts) if known else None


def _joined(node: exp.Expr, types: TypeOf) -> Scalar | None:
    parts = tuple(node.expressions)
    places = ", ".join(f"{{{number}}}" for number in range(len(parts)))
    known = len(parts) > 1 and all(types(part) == TEXT for part in parts)
    return form(TEXT, f"concat_ws({places})", *parts) if known else None


def _hashed(node: exp.Expr, types: TypeOf) -> Scalar | None:
    bits = literal_number(node.args["length"])
    if types(node.this) != TEXT or bits not in (0, 224, 256, 384, 512):
        return None
    words = "sha256({0})" if bits in (0, 256) else f"spark_sha{bits}({{0}})"
    return form(TEXT, words, node.this)


def _like(node: exp.Expr, types: TypeOf) -> Scalar | None:
    pattern = literal_text(node.expression)
    if types(node.this) != TEXT or pattern is None or "\\" in pattern:
        return None
    word = "NOT LIKE" if node.args.get("negate") else "LIKE"
    words = quoted(pattern)
    return Scalar("BOOLEAN", (node.this,), lambda given: f"({given[0]} {word} {words})")


def _searched(node: exp.Expr, types: TypeOf) -> Scalar | None:
    """Read RLIKE, REGEXP_REPLACE and REGEXP_EXTRACT by a literal that Python reads alike."""
    written = literal_text(node.expression)
    pattern = None if written is None else pattern_of(written)
    if written is None or pattern is None or types(node.this) != TEXT:
        return None
    plain = plain_pattern_of(written)
    by = quoted(pattern if plain is None else plain)
    if isinstance(node, exp.RegexpLike):
        function = "spark_rlike" if plain is None else "regexp_matches"
        return Scalar("BOOLEAN", (node.this,), lambda given: f"{function}({given[0]}, {by})")
    if isinstance(node, exp.RegexpExtract):
        group = node.args.get("group")
        number = 1 if group is None else literal_number(group)
        if number is None or not 0 <= number <= groups_in(pattern):
            return None
        if plain is not None and number <= _MOST_GROUPS:
            words = f"{by}, {number}"
            return Scalar(TEXT, (node.this,), lambda given: f"regexp_extract({given[0]}, {words})")
        words = f"{quoted(pattern)}, {number}"
        return Scalar(TEXT, (node.this,), lambda given: f"spark_extract({given[0]}, {words})")
    given_text = literal_text(node.args.get("replacement"))
    new = None if given_text is None else replacement_of(given_text, groups_in(pattern))
    # What fits the empty text is found between the halves of a character by Java.
    if new is None or fits_nothing(pattern) or node.args.get("position") is not None:
        return None
    if plain is not None and "\\" not in new:
        words = f"{by}, {quoted(new)}, 'g'"
        return Scalar(TEXT, (node.this,), lambda given: f"regexp_replace({given[0]}, {words})")
    words = f"{quoted(pattern)}, {quoted(new)}"
    return Scalar(TEXT, (node.this,), lambda given: f"spark_replace({given[0]}, {words})")


CLASSES: Mapping[type[exp.Expr], Rule] = {
    exp.Upper: _in_case,
    exp.Lower: _in_case,
    exp.Trim: _trim,
    exp.Substring: _substring,
    exp.Left: _substring,
    exp.Right: _substring,
    exp.Translate: of_texts("spark_translate"),
    exp.Pad: _pad,
    exp.StrPosition: _position,
    exp.Repeat: _repeat,
    exp.SubstringIndex: _index,
    exp.ConcatWs: _joined,
    exp.MD5: of_texts("md5"),
    exp.SHA: of_texts("sha1"),
    exp.SHA2: _hashed,
    exp.Hex: of_texts("hex"),
    exp.Reverse: of_texts("spark_reverse"),
    exp.Like: _like,
    exp.RegexpLike: _searched,
    exp.RegexpExtract: _searched,
    exp.RegexpReplace: _searched,
}
NAMED: Mapping[str, Rule] = {
    "btrim": _trim,
    "crc32": of_texts("spark_crc32", "BIGINT"),
    "octet_length": of_texts("spark_octets", "INT"),
}
