"""What pydantic finds wrong with a document, in the words of whoever wrote the document.

Its own name classes and types of Python, which whoever sent JSON or wrote TOML has never seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WORDS: Mapping[str, str] = {
    "missing": "required, and missing",
    "extra_forbidden": "there is no such field",
    "model_type": "expected an object",
    "model_attributes_type": "expected an object",
    "dict_type": "expected an object",
    "list_type": "expected a list",
    "string_type": "expected a text",
    "value_error": "{error}",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_parsing_size": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "uuid_type": "expected a UUID",
    "uuid_parsing": "expected a UUID",
    "literal_error": "expected {expected}",
    "enum": "expected {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
}


def complaint_of(errors: Sequence[Mapping[str, Any]], root: str = "") -> str:
    """Return `place: complaint` of the first of pydantic's errors, of which there is at least one.

    `root`: what the place begins with. A value for which several types would do has an error for
    each of them, at places that end in their names: they are told as one.
    """
    place = _place(errors[0])
    told = dict.fromkeys(_words(each) for each in errors if _place(each) == place)
    return f"{(root + place).removeprefix('.')}: {', or '.join(told)}"


def _place(error: Mapping[str, Any]) -> str:
    """Leave out of a place what names one of several types, as `dict[str,any]` or `str`."""
    loc, unknown = error["loc"], error["type"] == "extra_forbidden"
    named = [part for part in loc[:-1] if not _is_type(part)]
    named += [part for part in loc[-1:] if unknown or not _is_type(part)]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in named)


def _is_type(part: str | int) -> bool:
    if isinstance(part, int):
        return False
    return part in ("str", "int", "float", "bool", "uuid") or not part.replace("_", "").isalnum()


def _words(error: Mapping[str, Any]) -> str:
    found = _WORDS.get(error["type"])
    return str(error["msg"]) if found is None else found.format_map(error.get("ctx", {}))
