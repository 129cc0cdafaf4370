"""The block of ports that each stack of the tests starts at, so that no two of them meet.

Some live for the whole run while others come and go. Blocks lie below the range from which Linux
takes the ports of outgoing connections. Two runs on one machine keep apart by `TESTS_PORT_BASE`,
the first of 3,000 ports that are one run's.
"""

from __future__ import annotations

import os
from enum import IntEnum, unique

_BASE = int(os.environ.get("TESTS_PORT_BASE", "24000"))


@unique
class PortBlock(IntEnum):
    """First ports, 500 apart: as many as one module takes."""

    DEMO = _BASE
    WHOLE = _BASE + 500
    WARM = _BASE + 1_000
    PARTS = _BASE + 1_500
    COMMANDS = _BASE + 2_000
    SOAK = _BASE + 2_500
