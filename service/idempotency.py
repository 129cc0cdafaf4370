"""`Idempotency-Key`: a retry that brings no event ids is recognised all the same.

The key gives each event of the request its id, from stream and place, so that the store itself
tells a repetition from a new request, for ever and whichever service gets it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from kernel.errors import InvalidRequest

KEY_METADATA: Final = "idempotency"
_NAMESPACE: Final = UUID("0b7f6a52-58a1-5d0c-9d6b-5f6f3c1a7e64")
_KEY_MAX_CHARS: Final = 255


def idempotency_key(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the request's key, if it has one. Raises `InvalidRequest` for one of no use."""
    value = headers.get(b"idempotency-key")
    if value is None:
        return None
    key = value.decode("latin-1").strip()
    if 0 < len(key) <= _KEY_MAX_CHARS and key.isascii() and key.isprintable():
        return key
    raise InvalidRequest(
        "Idempotency-Key cannot be used as given",
        remedy=f"Send 1 to {_KEY_MAX_CHARS} printable ASCII characters, a new key per request.",
    )


def event_id(key: str, stream: str, index: int) -> UUID:
    """Return the id of the event at `index` of its stream in the request with this key."""
    return uuid.uuid5(_NAMESPACE, f"{stream}\n{index}\n{key}")


def key_metadata(key: str, events: int) -> dict[str, object]:
    """Return what a keyed event's metadata says.

    The number of events is part of it: a request that repeats only the first of them has other
    content, and is refused as such.
    """
    return {KEY_METADATA: {"key": key, "events": events}}
