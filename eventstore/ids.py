"""Event ids for callers who bring none."""

from __future__ import annotations

import os
import time
from uuid import UUID

_RANDOM_BITS = 74
_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62
_LOW_62 = (1 << 62) - 1


def new_id() -> UUID:
    """Return a UUID of version 7 (RFC 9562): ids made later sort later, which keeps the index on
    ids compact and quick to write.
    """
    random = int.from_bytes(os.urandom(10), "big") >> (80 - _RANDOM_BITS)
    milliseconds = time.time_ns() // 1_000_000
    return UUID(
        int=(milliseconds << 80) | _VERSION | ((random >> 62) << 64) | _VARIANT | (random & _LOW_62)
    )
