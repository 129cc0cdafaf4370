"""Where a request came from, for the metadata of what it appends.

Header to key of metadata; a key that the caller put into an event's metadata stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from eventstore.names import CAUSATION_ID, CORRELATION_ID, TRACEPARENT
from kernel.errors import InvalidRequest

TRACING_HEADERS: Final = (
    (b"traceparent", TRACEPARENT),
    (b"x-correlation-id", CORRELATION_ID),
    (b"x-causation-id", CAUSATION_ID),
)
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_ID_MAX_CHARS: Final = 255


def tracing_of(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return what the request's headers add to metadata; most requests have none of them.

    A malformed `traceparent` is ignored, as W3C Trace Context asks. Raises `InvalidRequest` for
    other ids that are empty, too long or not plain text.
    """
    found = {}
    for name, key in TRACING_HEADERS:
        value = headers.get(name)
        if value is None:
            continue
        text = value.decode("latin-1").strip()
        if key == TRACEPARENT:
            if _TRACEPARENT.fullmatch(text):
                found[key] = text
            continue
        if not (0 < len(text) <= _ID_MAX_CHARS and text.isascii() and text.isprintable()):
            raise InvalidRequest(
                f"the header {name.decode()} is no id",
                remedy=f"Send 1 to {_ID_MAX_CHARS} printable ASCII characters.",
            )
        found[key] = text
    return found
