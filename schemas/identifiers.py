"""Names of tables and columns as each target takes them, whatever characters they have.

A name comes from a captured database, an event type or a projection, and may contain quotes, dots,
slashes or anything else. Whoever writes a name into SQL or into a path calls one of these; for
PostgreSQL that is psycopg's `sql.Identifier`.
"""

from __future__ import annotations

import re
import unicodedata

OUTBOX = "outbox"
"""The event store's own source, which no file declares."""
EVENTS = "events"
"""Begins the names of the event store's topics, behind the workspace's prefix."""
_SEGMENT_BYTES = 200
"""File systems take 255 bytes a segment; engines put suffixes of their own behind names."""
_ESCAPE = "@"
GOES_ON = _ESCAPE
"""Ends the name of a folder whose table's name goes on in the folder below."""
_ESCAPED = re.compile(r"(?:@[0-9A-F]{2})+")


def spark_name(name: str) -> str:
    """Quote a name for Spark SQL, and for Spark's functions that take the name of a column."""
    return "`" + name.replace("`", "``") + "`"


def duckdb_name(name: str) -> str:
    """Quote a name for DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def datafusion_name(name: str, *, of: str | None = None) -> str:
    """Quote a name for deltalake's predicates and MERGE, behind the alias `of` where given."""
    quoted = '"' + name.replace('"', '""') + '"'
    return f"{of}.{quoted}" if of else quoted


def text_literal(text: str) -> str:
    """Quote a text for DuckDB, and for deltalake's predicates; Spark reads backslashes in it."""
    return "'" + text.replace("'", "''") + "'"


def path_of(name: str) -> str:
    """Return the path of a table's folder below the folder of its kind.

    Letters and digits of any language, `_`, `-` and dots stay as they are; of anything else each
    byte is `@` and two hexadecimal digits, so that no engine decodes or splits it. What is longer
    than a folder's name may be goes on in a folder below, whose parent's name ends in `@`.
    `name_at` is the inverse.
    """
    plain = unicodedata.is_normalized("NFC", name) and name.strip(".")
    escaped = "".join(
        each if plain and (each.isalnum() or each in "_-.") else _bytes_of(each) for each in name
    )
    parts, part = [], ""
    for each in re.findall(r"@[0-9A-F]{2}|[^@]", escaped):
        if len((part + each).encode()) > _SEGMENT_BYTES:
            parts.append(part + GOES_ON)
            part = ""
        part += each
    return "/".join([*parts, part])


def name_at(path: str) -> str:
    """Return the name whose folder `path_of` gave."""
    whole = path.replace(f"{GOES_ON}/", "")
    return _ESCAPED.sub(lambda m: bytes.fromhex(m[0].replace(_ESCAPE, "")).decode(), whole)


def _bytes_of(character: str) -> str:
    return "".join(f"{_ESCAPE}{byte:02X}" for byte in character.encode())


def topic_part(table: str) -> str:
    """Return the end of the topic's name that Debezium makes of a table's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", table)
