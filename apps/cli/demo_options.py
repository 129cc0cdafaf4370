"""What a run of the demo is asked for. Imports nothing heavy: every command's start reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from stack.ports import DEFAULT_BASE

DEFAULT_FLIGHTS = 34_000
"""The first flights of the year, 100,926 events."""
FEWEST_FLIGHTS = 1_000
"""Below that the flights span too little time for an event to be later than the lateness."""
DEFAULT_FOLDER = Path(".penstock") / "demo"
"""Beneath the current folder, out of the way of a workspace that is there."""


class LakePlace(StrEnum):
    """Where the demo's tables lie."""

    FOLDER = "folder"
    S3 = "s3"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """`flights` None takes all of the year; `seed` decides which events come late. On `s3`
    the lake lies in a store that runs as long as the demo does, on the port behind the stack's."""

    flights: int | None = DEFAULT_FLIGHTS
    folder: Path = DEFAULT_FOLDER
    keep: bool = False
    seed: int = 2013
    port_base: int = DEFAULT_BASE
    offline: bool = False
    lake: LakePlace = LakePlace.FOLDER
    deadline_s: float = 900.0
