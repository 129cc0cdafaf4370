"""The block of ports that each stack of the tests starts at, so that no two of them meet.

Some live for the whole run while others come and go. Blocks lie below the range from which Linux
takes the ports of outgoing connections.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class PortBlock(IntEnum):
    """First ports, 500 apart: as many as one module takes."""

    DEMO = 24_000
    NEWCOMER = 26_000
    WARM = 26_500
    PARTS = 27_000
    COMMANDS = 27_500
    FAULTS = 28_000
