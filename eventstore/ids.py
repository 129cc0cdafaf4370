"""Event ids for callers who bring none."""

from __future__ import annotations

import random
import time
from uuid import UUID

_RANDOM_BITS = 74
_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62
_LOW_62 = (1 << 62) - 1
# Seeded by the system. Ids must be unique, not secret, and a system call for each shows.
_random = random.Random()


def new_id() -> UUID:
    """Return a UUID of version 7 (RFC 9562): ids made later sort later, which keeps the index on
    ids compact and quick to write.
    """
    bits = _random.getrandbits(_RANDOM_BITS)
    milliseconds = time.time_ns() // 1_000_000
    return UUID(
        int=(milliseconds << 80) | _VERSION | ((bits >> 62) << 64) | _VARIANT | (bits & _LOW_62)
    )
