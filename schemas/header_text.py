"""The headers of a Kafka record as text: a JSON object of hexadecimal values.

It has a member for each header, in their order: a name may occur twice, and a value be null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable


def text_of_headers(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Return the text of headers."""
    values = ((name, None if v is None else v.hex()) for name, v in headers)
    return f"{{{', '.join(f'{json.dumps(name)}: {json.dumps(value)}' for name, value in values)}}}"


def headers_of(text: str | None) -> list[tuple[str, bytes | None]]:
    """Read the headers of a record of the log or of quarantine, all of them in their order."""
    told: list[tuple[str, str | None]] = json.loads(text or "{}", object_pairs_hook=list)
    return [(name, None if value is None else bytes.fromhex(value)) for name, value in told]
